"""Tokenizers of fairseq's multilingual models: a language token before the source and the target.

A source is `[source language] pieces EOS`, a target `[target language] pieces EOS`, and the decoder
starts with EOS. The target's language token is given and not predicted.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.formats.family import Languages, Published, make_tokenizers
from transformer_jax.formats.vocabularies import vocabulary
from transformer_jax.weights.layout import Layout, ModelFolder
from transformer_jax.weights.sentencepiece_model import load_processor
from transformer_jax.weights.settings import REQUIRED

#: Names of the SentencePiece model.
SENTENCEPIECE = ("sentencepiece.bpe.model", "sentence.bpe.model", "sentencepiece.model")

_LANGUAGE = re.compile(r"[a-z]{2,3}_[A-Z][A-Za-z]+")


def fairseq_ids(folder: ModelFolder) -> dict[str, int]:
    """Ids of NLLB and mBART: four special ones, SentencePiece's plus 1, then language tokens.

    Raises:
        UserError: no file of the folder lists the language tokens.
    """
    model = load_processor(folder.content(*SENTENCEPIECE), str(folder.path / SENTENCEPIECE[0]))
    size = model.vocab_size()
    ids = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
    ids |= {model.id_to_piece(i): i + 1 for i in range(3, size)}
    listed = _listed(folder, first=size + 1)
    if not (found := {piece: i for piece, i in listed.items() if is_language(piece)}):
        raise UserError(
            f"{folder.path}: no file lists the language tokens; expected tokenizer.json or "
            "special_tokens_map.json"
        )
    return ids | found | {piece: i for piece, i in listed.items() if piece == "<mask>"}


def is_language(piece: str) -> bool:
    """Whether a piece is a language token of NLLB or mBART."""
    return bool(_LANGUAGE.fullmatch(piece))


def one_of(codes: Collection[str]) -> str:
    """The first of a model's languages, for a message."""
    return f"one of {', '.join(sorted(codes)[:6])} ... ({len(codes)} languages)"


def added_tokens(folder: ModelFolder) -> dict[str, int]:
    """The ids of the tokens in `tokenizer_config.json` that are not SentencePiece's."""
    numbered = folder.json("tokenizer_config.json").get("added_tokens_decoder") or {}
    return {token.get("content"): int(i) for i, token in numbered.items()}


def _listed(folder: ModelFolder, first: int) -> dict[str, int]:
    """Pieces that are not SentencePiece's; a list without ids counts from `first`."""
    whole = folder.json("tokenizer.json").get("added_tokens")
    if isinstance(whole, list):
        pairs = [(token.get("content"), token.get("id")) for token in whole]
    else:
        named = folder.json("tokenizer_config.json")
        pairs = list(added_tokens(folder).items())
        if not any(is_language(str(piece)) for piece, _ in pairs):
            named = folder.json("special_tokens_map.json") or named
            key = "additional_special_tokens"
            tokens = named.get(key) or named.get("extra_special_tokens") or []
            names = [t["content"] if isinstance(t, dict) else t for t in tokens]
            pairs = [(piece, first + i) for i, piece in enumerate(names)]
    if not all(isinstance(piece, str) and type(i) is int for piece, i in pairs):
        raise UserError(f"{folder.path}: the added tokens are not pieces with ids")
    return dict(pairs)


def read_with_language_tokens(
    layout: Layout,
    folder: ModelFolder,
    languages: Languages,
    ids: Mapping[str, int],
    tags: Mapping[str, str],
    start: Any = REQUIRED,
) -> Published:
    """A folder of a family with language tokens.

    Args:
        layout: of the family.
        folder: of the model.
        languages: those asked for; else those in `tokenizer_config.json`.
        ids: of all pieces, language tokens included.
        tags: language code -> its token.
        start: as in `Layout.read`.

    Raises:
        UserError: a language is not given or not known, or the ids do not fit the model.
    """
    settings = folder.settings("tokenizer_config.json")
    settings.need({"legacy_behaviour": False})
    codes = languages.or_of(settings, "src_lang", "tgt_lang")
    for side, code in zip(("source", "target"), codes, strict=True):
        if code not in tags:
            what = f"{code!r} is not a language of the model" if code else "needed by this model"
            raise UserError(f"{side}_language: {what}; {one_of(tags)}")
    bos = folder.config.get("bos_token_id", int)
    arrangement = folder.arrange(ids, folder.config.number("vocab_size"), bos=bos)
    sentencepiece = folder.content(*SENTENCEPIECE)
    hidden = [*tags.values(), *(["<mask>"] if "<mask>" in ids else [])]
    source, target = (
        vocabulary(arrangement, ids, tags=tags.values(), hidden=hidden, prefix=[tags[code or ""]])
        for code in codes
    )
    folder.check_added(ids)
    model, table = layout.read(folder, arrangement, arrangement, ids, start)
    tokenizers = make_tokenizers((sentencepiece, source), (sentencepiece, target))
    return Published(model, table, tokenizers, codes)
