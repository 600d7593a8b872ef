"""Tags: vocabulary pieces that a sentence begins with, such as the language to translate into.

A model of several target languages reads a tag before the source, `<2fr>` (Johnson et al. 2017,
arXiv:1611.04558; Marian's `>>fr<<`), or has language tokens before source and target, `__fr__`
(M2M100, NLLB, mBART). Both are pieces of a `MappedTokenizer`: which ones a text gets that names
none is the tokenizer's prefix.
"""

import functools

from transformer_jax.data.config import Corpus, DataConfig
from transformer_jax.data.mapped_tokenizer import Tags, with_language
from transformer_jax.data.sources.base import Languages
from transformer_jax.data.tokenizer_pair import Tokenizers


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
        made["source"] = with_language(tokenizers.source, source, "source")
    if target is not None:
        side = "target" if before_target else "source"
        made[side] = with_language(made[side], target, "target")
    return Tokenizers(**made)


def tags_of(data: DataConfig) -> Tags:
    """What the vocabularies need: tags of several target languages, of corpora; a separator."""
    separator = bool(data.blocks)
    if not data.corpora:  # one direction, whose languages need not be known
        return Tags(separator=separator)
    targets = dict.fromkeys(target for _, target in data.directions)
    others = dict.fromkeys(corpus.tag for corpus in data.parts if corpus.tag)
    return Tags(tuple(targets) if len(targets) > 1 else (), tuple(others), separator)


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
