"""Published ids and ours: PAD 0, BOS 1, EOS 2, UNK 3, then all others in order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transformer_jax.errors import UserError

#: How the name of a row without a piece begins.
UNUSED = "<unused:"


@dataclass(frozen=True)
class Arrangement:
    """Which of their ids each of ours is.

    Attributes:
        order: int [V]; their id, or -1 for a PAD or BOS that they do not have.
    """

    order: np.ndarray

    @property
    def size(self) -> int:
        """How many ids they have."""
        return int((self.order >= 0).sum())

    def ours(self, theirs: int) -> int:
        """Our id for one of theirs."""
        return int(np.flatnonzero(self.order == theirs)[0])


def arrange(
    size: int, *, pad: int | None, eos: int, unk: int, bos: int | None, origin: str
) -> Arrangement:
    """The arrangement of `size` ids with the given special ones.

    PAD and BOS are rows of their own where they have none. BOS need not be what a decoder starts
    with: `ModelConfig.start_id` says that.

    Raises:
        UserError: the special ids are not different ones below `size`.
    """
    special = [i for i in (pad, bos, eos, unk) if i is not None]
    if len(set(special)) < len(special) or not all(0 <= i < size for i in special):
        raise UserError(
            f"{origin}: the special ids pad={pad}, bos={bos}, eos={eos}, unk={unk} must be "
            f"different ones of {size}"
        )
    rest = [i for i in range(size) if i not in special]
    first = [-1 if i is None else i for i in (pad, bos, eos, unk)]
    return Arrangement(np.array([*first, *rest]))


def piece_ids(arrangement: Arrangement, pieces: Sequence[str]) -> dict[str, int]:
    """Their id of each piece, in the order of the ids: the inverse of `vocabulary`.

    Args:
        arrangement: which of their ids each of ours is.
        pieces: by our id.
    """
    pairs = zip(arrangement.order.tolist(), pieces, strict=True)
    return {piece: i for i, piece in sorted(pairs) if i >= 0 and not piece.startswith(UNUSED)}


def unused(
    arrangement: Arrangement, ids: Mapping[str, int], never: Iterable[int]
) -> tuple[int, ...]:
    """Our ids that have no piece of theirs, or are among their ids `never`."""
    known = set(ids.values()) - set(never)
    return tuple(i for i, theirs in enumerate(arrangement.order.tolist()) if theirs not in known)
