"""What the model's functions take, checked before it can become wrong numbers.

Kinds and shapes are checked while a function is traced, which costs nothing afterwards. Values are
checked where they are known: outside `jit`, and by `fit` in each batch.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.models.config import ModelConfig
from transformer_jax.ops.arrays import AnyArray, check_mask, is_known, kind_of_array

#: The arrays of a batch, with the names of their masks.
_TEXTS = {"source": "source_mask", "target": "target_mask"}


def are_embeddings(x: AnyArray) -> bool:
    """Whether these are embeddings [B, L, E], in place of ids."""
    return x.ndim == 3 and jnp.issubdtype(x.dtype, jnp.floating)


def check_text(name: str, ids: AnyArray, mask: AnyArray, vocab_size: int | None) -> None:
    """Checks one side of a batch.

    Args:
        name: `source` or `target`.
        ids: integers [B, L], or embeddings [B, L, E].
        mask: see `check_mask`.
        vocab_size: how many ids there are.

    Raises:
        UserError: the arrays are of another kind or shape; or their values are known, and an id is
            not of the vocabulary, or padding stands before a real token.
    """
    if not are_embeddings(ids) and (not jnp.issubdtype(ids.dtype, jnp.integer) or ids.ndim != 2):
        raise UserError(
            f"{name} is {kind_of_array(ids)}: give int32 ids [batch, length] (the order is source, "
            "source_mask, target, target_mask)"
        )
    check_mask(_TEXTS[name], mask, name, ids)
    if are_embeddings(ids) or not is_known(ids):
        return
    ids = np.asarray(ids)
    if ids.size and vocab_size and not 0 <= ids.min() <= ids.max() < vocab_size:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise UserError(f"{name} has id {wrong}, the vocabulary {vocab_size}")


class Texts(NamedTuple):
    """What a model reads under teacher forcing: ids, or word embeddings [B, L, E], and masks."""

    source: Any
    source_mask_BS: Any  #: True at real tokens, which come first in their row
    target_in: Any  #: the target from `api.shift_right`
    target_mask_BT: Any


def check_texts(config: ModelConfig, texts: Texts) -> None:
    """Checks both sides of a batch; see `check_text`."""
    source, source_mask, target, target_mask = texts
    check_text("source", source, source_mask, config.source_vocab_size)
    check_text("target", target, target_mask, config.target_vocab_size)
    for name, x, stack in (("source", source, config.encoder), ("target", target, config.decoder)):
        width = stack.position.word_width(config.d_model)
        if are_embeddings(x) and x.shape[-1] != width:
            raise UserError(f"{name} is {kind_of_array(x)}: its embeddings have {width} features")
    if len(source) != len(target):
        raise UserError(f"source has {len(source)} rows, target {len(target)}")


def check_batch(config: ModelConfig, batch: Mapping[str, AnyArray]) -> None:
    """Checks the arrays of `models.api.loss`.

    Raises:
        UserError: one is missing, or as for `check_text`; the message names it.
    """
    for name, mask_name in _TEXTS.items():
        missing = {name, mask_name} - batch.keys()
        if missing:
            raise UserError(
                f"a batch lacks {', '.join(sorted(missing))}; it has {', '.join(batch)}"
            )
    if are_embeddings(batch["target"]):
        raise UserError(f"target is {kind_of_array(batch['target'])}: labels are int32 ids")
    check_texts(config, Texts(*(batch[key] for pair in _TEXTS.items() for key in pair)))


def checked(
    config: ModelConfig, batches: Callable[[int], Iterator[dict[str, np.ndarray]]]
) -> Callable[[int], Iterator[dict[str, np.ndarray]]]:
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
                try:
                    check_batch(config, batch)
                except UserError as error:
                    raise UserError(f"batches, position {position}: {error}") from None
                position += 1
                yield batch
        finally:
            getattr(iterator, "close", lambda: None)()

    return from_position
