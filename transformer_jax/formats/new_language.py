"""A language that a published model lacks: one more language token, with a row of its own.

A language of NLLB and M2M100 is a token before the source and before the target. Its row in the
embeddings is all that a new language adds to the parameters; the pieces of its words are those that
the SentencePiece model has. A row to begin with is that of a related language, or the mean of the
rows of all languages. It takes the place of a row that no piece has, where there is one: published
tables have a few at their end, and these are the ids that Transformers gives to further tokens.
"""

from dataclasses import replace

import numpy as np

from transformer_jax.data.mapped_tokenizer import MappedTokenizer, find_tag, mapped_tokenizer
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.errors import UserError
from transformer_jax.formats.exporter import TrainedModel
from transformer_jax.formats.transformers.language_tokens import is_language, one_of
from transformer_jax.models.api import Params, logical_axes
from transformer_jax.models.paths import by_path, from_paths
from transformer_jax.weights.arrangement import UNUSED


def with_language(model: TrainedModel, code: str, like: str | None = None) -> TrainedModel:
    """The model with a token for one more language; all other rows are the same to the bit.

    Args:
        model: that was imported, with one vocabulary for both sides.
        code: of the new language, written as the model writes its own: `xxx_Latn` in NLLB.
        like: the language whose row the new one copies; None: the mean of all.

    Raises:
        UserError: the model has no language tokens, or has one for this language already, or none
            for `like`; or the code is of another form.
    """
    tokenizer = model.tokenizers.target
    if not (isinstance(tokenizer, MappedTokenizer) and tokenizer.prefix):
        raise UserError(
            f"add_language={code}: the model has no language tokens before source and target, as "
            "NLLB and M2M100 have"
        )
    piece, sources = _token(tokenizer, code), list(tokenizer.vocabulary.tags)
    if like is not None:
        sources = [_place_of(tokenizer, like)]
    pieces, config = tokenizer.vocabulary.pieces, model.config.model
    free = [i for i in config.unused_ids if pieces[i].startswith(UNUSED)]
    place = min(free, default=len(pieces))
    size = max(len(pieces), place + 1)
    changed = replace(
        config,
        source_vocab_size=size,
        target_vocab_size=size,
        unused_ids=tuple(i for i in config.unused_ids if i != place),
    )
    flat = by_path(model.params)
    for path, axes in by_path(logical_axes(config)).items():
        if "vocab" in axes:  # a row for each piece
            axis = list(axes).index("vocab")
            flat[path] = _with_row(np.asarray(flat[path]), axis, sources, place)
    params: Params = from_paths(flat)
    source, target = (
        _with_tag(each, place, piece) for each in (model.tokenizers.source, tokenizer)
    )
    options = replace(model.config.tokenizer, vocab_size=size)
    whole = replace(model.config, model=changed, tokenizer=options)
    return TrainedModel(whole, params, Tokenizers(source, target))


def _names(tokenizer: MappedTokenizer) -> list[str]:
    """The codes of the languages."""
    return [piece.strip("_") for piece in tokenizer.pieces(tokenizer.vocabulary.tags)]


def _token(tokenizer: MappedTokenizer, code: str) -> str:
    """The piece of a new language, in the form of the others."""
    if find_tag(tokenizer, code) is not None:
        raise UserError(f"add_language={code}: the model has this language; leave the option out")
    name = _names(tokenizer)[0]
    if is_language(code) != is_language(name) or not code.replace("_", "").isalnum():
        raise UserError(
            f"add_language={code}: write the code as the model writes its own, such as {name}"
        )
    return tokenizer.pieces(tokenizer.vocabulary.tags[:1])[0].replace(name, code)


def _place_of(tokenizer: MappedTokenizer, code: str) -> int:
    """The id of the token of a language that the model has."""
    if (found := find_tag(tokenizer, code)) is None:
        known = one_of(_names(tokenizer))
        raise UserError(f"from_language={code}: not a language of the model; {known}")
    return found


def _with_row(x: np.ndarray, axis: int, sources: list[int], place: int) -> np.ndarray:
    """`x` whose row `place`, which may be a new one, is the mean of some rows along an axis."""
    rows = np.moveaxis(x, axis, 0)
    new = rows[sources].mean(axis=0, dtype=np.float64).astype(x.dtype)
    made = np.concatenate([rows[:place], new[None], rows[place + 1 :]])
    return np.moveaxis(made, 0, axis)


def _with_tag(tokenizer: Tokenizer, place: int, piece: str) -> Tokenizer:
    """The tokenizer with a language token of this id."""
    assert isinstance(tokenizer, MappedTokenizer)
    old = tokenizer.vocabulary
    tags = (*old.tags, place)
    vocabulary = replace(
        old,
        pieces=(*old.pieces[:place], piece, *old.pieces[place + 1 :]),
        tags=tags,
        hidden=(*tags, *(i for i in old.hidden if i not in old.tags)),
    )
    content = mapped_tokenizer(tokenizer.sentencepiece_model, vocabulary)
    return MappedTokenizer(content, tokenizer.name)
