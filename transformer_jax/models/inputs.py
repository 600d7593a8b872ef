"""What the model's functions take, checked before it can become wrong numbers.

Kinds and shapes are checked while a function is traced, which costs nothing afterwards. Values are
checked where they are known: outside `jit`, and by `fit` in each batch.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from transformer_jax.errors import UserError, placed
from transformer_jax.models.config import ModelConfig
from transformer_jax.ops.arrays import AnyArray, check_mask, is_known, kind_of_array

#: Batches from a position on; position p is the p-th batch of the run.
BatchesFrom = Callable[[int], Iterator[dict[str, np.ndarray]]]

#: The arrays of a batch.
_TEXTS = ("source", "source_mask", "target", "target_mask")


def are_embeddings(x: AnyArray) -> bool:
    """Whether these are embeddings [B, L, E], in place of ids."""
    return x.ndim == 3 and jnp.issubdtype(x.dtype, jnp.floating)


def check_text(config: ModelConfig, name: str, ids: AnyArray, mask: AnyArray) -> None:
    """Checks one side of a batch.

    Args:
        config: the model.
        name: `source` or `target`.
        ids: integers [B, L], or embeddings [B, L, E].
        mask: see `check_mask`.

    Raises:
        UserError: the arrays are of another kind or shape; or their values are known, and an id is
            not of the vocabulary, or padding stands before a real token.
    """
    if not are_embeddings(ids) and (not jnp.issubdtype(ids.dtype, jnp.integer) or ids.ndim != 2):
        raise UserError(
            f"{name} is {kind_of_array(ids)}: give int32 ids [batch, length] (the order is source, "
            "source_mask, target, target_mask)"
        )
    check_mask(f"{name}_mask", mask, name, ids)
    if are_embeddings(ids):
        stack = config.encoder if name == "source" else config.decoder
        width = stack.position.word_width(config.d_model)
        if ids.shape[-1] != width:
            raise UserError(f"{name} is {kind_of_array(ids)}: its embeddings have {width} features")
    elif is_known(ids):
        ids, size = np.asarray(ids), getattr(config, f"{name}_vocab_size")
        if ids.size and size and not 0 <= ids.min() <= ids.max() < size:
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise UserError(f"{name} has id {wrong}, the vocabulary {size}")


class Texts(NamedTuple):
    """What a model reads under teacher forcing: ids, or word embeddings [B, L, E], and masks."""

    source: Any
    source_mask_BS: Any  #: True at real tokens, which come first in their row
    target_in: Any  #: the target from `api.shift_right`
    target_mask_BT: Any


def check_texts(config: ModelConfig, texts: Texts) -> None:
    """Checks both sides of a batch; see `check_text`."""
    check_text(config, "source", texts.source, texts.source_mask_BS)
    check_text(config, "target", texts.target_in, texts.target_mask_BT)
    if len(texts.source) != len(texts.target_in):
        raise UserError(f"source has {len(texts.source)} rows, target {len(texts.target_in)}")


def check_batch(config: ModelConfig, batch: Mapping[str, AnyArray]) -> None:
    """Checks the arrays of `models.api.loss`.

    Raises:
        UserError: one is missing, or as for `check_text`; the message names it.
    """
    if missing := sorted(set(_TEXTS) - batch.keys()):
        raise UserError(f"a batch lacks {', '.join(missing)}; it has {', '.join(batch)}")
    if are_embeddings(batch["target"]):
        raise UserError(f"target is {kind_of_array(batch['target'])}: labels are int32 ids")
    check_texts(config, Texts(*(batch[name] for name in _TEXTS)))


def checked(config: ModelConfig, batches: BatchesFrom) -> BatchesFrom:
    """The same batches, each checked on the host.

    Raises:
        UserError: `batches` is no function; when a batch is taken, as `check_batch`.
    """
    if not callable(batches):
        raise UserError(
            f"batches is a {type(batches).__name__}: give a function that returns the batches from "
            "a position on, so that a run can be continued"
        )

    def from_position(position: int) -> Iterator[dict[str, np.ndarray]]:
        iterator = batches(position)
        try:
            for batch in iterator:
                with placed(f"batches, position {position}"):
                    check_batch(config, batch)
                position += 1
                yield batch
        finally:
            getattr(iterator, "close", lambda: None)()

    return from_position
