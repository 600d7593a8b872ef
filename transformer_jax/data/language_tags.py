"""Tags: vocabulary pieces that a sentence begins with, such as the language to translate into.

A model of several target languages reads a tag before the source, `<2fr>` (Johnson et al. 2017,
arXiv:1611.04558; Marian's `>>fr<<`), or has language tokens before source and target, `__fr__`
(M2M100, NLLB, mBART). Both are pieces of a `MappedTokenizer`: which ones a text gets that names
none is the tokenizer's prefix.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from transformer_jax.data.config import Corpus, DataConfig
from transformer_jax.data.mapped_tokenizer import MappedTokenizer, Vocabulary, mapped_tokenizer
from transformer_jax.data.sources.base import Languages
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.errors import UserError


def language_tag(code: str) -> str:
    """The tag of a language in models that are trained here."""
    return f"<2{code}>"


def find_tag(tokenizer: Tokenizer, code: str) -> int | None:
    """The id of a language's tag in any of the known spellings; None: there is none."""
    if not isinstance(tokenizer, MappedTokenizer):
        return None
    vocabulary = tokenizer.vocabulary
    for tag in (language_tag(code), f">>{code}<<", f"__{code}__", code):
        number = tokenizer.id_of(tag)
        marked = vocabulary.marked_tags and tag.startswith(">>")
        if number is not None and (marked or number in vocabulary.tags):
            return number
    return None


@dataclass(frozen=True)
class Tags:
    """What the source vocabulary of a run must have."""

    languages: tuple[str, ...] = ()  #: target languages, each with a tag in some spelling
    others: tuple[str, ...] = ()  #: other tags, as they are written

    def missing_in(self, tokenizer: Tokenizer | None) -> tuple[str, ...]:
        """The pieces to add to a source tokenizer; None: one that is still to be trained."""
        known = _tags_of(tokenizer)
        languages = [
            language_tag(code)
            for code in self.languages
            if tokenizer is None or find_tag(tokenizer, code) is None
        ]
        return (*languages, *(tag for tag in self.others if tag not in known))


NO_TAGS = Tags()


def _tags_of(tokenizer: Tokenizer | None) -> list[str]:
    if not isinstance(tokenizer, MappedTokenizer):
        return []
    return tokenizer.pieces(tokenizer.vocabulary.tags)


def with_tags(tokenizer: Tokenizer, tags: Iterable[str]) -> Tokenizer:
    """The tokenizer with further pieces that are tags; the ids of the others stay."""
    tags = tuple(tags)
    if not tags:
        return tokenizer
    old = Vocabulary(tuple(tokenizer.pieces(range(tokenizer.vocab_size))))
    if isinstance(tokenizer, MappedTokenizer):
        old = tokenizer.vocabulary
    new = tuple(range(len(old.pieces), len(old.pieces) + len(tags)))
    vocabulary = replace(
        old, pieces=(*old.pieces, *tags), tags=(*old.tags, *new), hidden=(*old.hidden, *new)
    )
    return MappedTokenizer(
        mapped_tokenizer(tokenizer.sentencepiece_model, vocabulary), tokenizer.name
    )


@functools.lru_cache(maxsize=64)
def towards(tokenizers: Tokenizers, source: str | None, target: str | None) -> Tokenizers:
    """The tokenizers for a direction: the prefixes are the tags of its languages.

    Args:
        tokenizers: of a model with or without tags.
        source: code of the source language; models without tokens for it ignore it. None: stays.
        target: code of the target language. None: stays.

    Raises:
        UserError: the model has tags for other languages, but not for this one; or it has none,
            and so translates into one language alone.
    """
    before_target = bool(tokenizers.target.prefix)
    made = {"source": tokenizers.source, "target": tokenizers.target}
    if before_target and source is not None:
        made["source"] = _with_prefix(tokenizers.source, source, "source")
    if target is not None:
        side = "target" if before_target else "source"
        made[side] = _with_prefix(made[side], target, "target")
    return Tokenizers(**made)


def _with_prefix(tokenizer: Tokenizer, code: str, side: str) -> Tokenizer:
    tag = find_tag(tokenizer, code)
    if tag is None or not isinstance(tokenizer, MappedTokenizer):
        tags = _tags_of(tokenizer)
        known = f"it has {', '.join(tags[:8])}{' ...' * (len(tags) > 8)}" if tags else "it has none"
        raise UserError(f"{side}_language={code}: the model has no tag for it; {known}")
    return tokenizer.with_prefix((tag,))


def tags_of(data: DataConfig) -> Tags:
    """The tags that the source vocabulary needs: of several target languages, and of corpora."""
    if not data.corpora:  # one direction, whose languages need not be known
        return NO_TAGS
    targets = dict.fromkeys(target for _, target in data.directions)
    others = dict.fromkeys(corpus.tag for corpus in data.parts if corpus.tag)
    return Tags(tuple(targets) if len(targets) > 1 else (), tuple(others))


def in_languages(data: DataConfig, tokenizers: Tokenizers, direction: Languages) -> Tokenizers:
    """The tokenizers whose prefixes are the tags of a direction, where the run has several."""
    has_tags = tokenizers.target.prefix or tags_of(data).languages
    return towards(tokenizers, *direction) if has_tags and len(data.directions) > 1 else tokenizers


def text_tags(data: DataConfig, corpus: Corpus, tokenizers: Tokenizers) -> tuple[str, str]:
    """What to put before each source and target of a corpus; "" where that is the prefix."""
    needed = in_languages(data, tokenizers, corpus.direction)
    found = []
    for side, own in (("source", corpus.tag), ("target", "")):
        new, old = (getattr(each, side) for each in (needed, tokenizers))
        explicit = own or new.prefix != old.prefix
        found.append(own + "".join(new.pieces(new.prefix)) + " " if explicit else "")
    return found[0], found[1]
