"""Arrays that callers give, checked before they can become wrong numbers."""

import jax
import numpy as np
from jax import Array

from transformer_jax.errors import UserError

AnyArray = Array | np.ndarray


def check_mask(mask_name: str, mask: AnyArray, name: str, x: AnyArray) -> None:
    """Checks the mask of an array [B, L, ...].

    Real tokens must come first in their row: positions and recurrences count from its beginning.

    Raises:
        UserError: it is not boolean [B, L]; or its values are known, and padding stands before a
            real token.
    """
    if mask.dtype != bool or mask.shape != x.shape[:2]:
        raise UserError(
            f"{mask_name} is {kind_of_array(mask)} and {name} {kind_of_array(x)}: give a boolean "
            f"mask {list(x.shape[:2])}, True at real tokens"
        )
    if not is_known(mask):
        return
    mask = np.asarray(mask)
    is_late_B = (mask[:, 1:] & ~mask[:, :-1]).any(axis=1)
    if is_late_B.any():
        raise UserError(
            f"{mask_name}: row {is_late_B.argmax()} has padding before a real token; put the real "
            "tokens first, and pad on the right"
        )


def kind_of_array(x: AnyArray) -> str:
    """Its dtype and shape, for messages."""
    return f"{x.dtype}{list(x.shape)}"


def is_known(x: AnyArray) -> bool:
    """Whether the values of an array are there: not while a function is traced."""
    return not isinstance(x, jax.core.Tracer) and getattr(x, "is_fully_addressable", True)
