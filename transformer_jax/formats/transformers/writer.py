"""Transformers (github.com/huggingface/transformers): a folder in the form of a published family.

The folder holds `config.json`, `generation_config.json`, `model.safetensors` and a tokenizer, for
`AutoModelForSeq2SeqLM` and `AutoTokenizer`. `families/` has the layouts; a model fits one
if what its `config.json` describes is the same model. These differences are put into the weights:

* Sinusoids whose sines and cosines alternate, where the family has them in two halves: the features
  are reordered.
* Scales of the scores, and of the embeddings where the projection to logits allows it.
* Biases that the model does not have are zeros.

Ids are renumbered to the family's. Models that were imported get the files and the ids that they
came with. Others get Marian's tokenizer files in every family, since these number the pieces of
a SentencePiece model freely.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from etils import epath

from transformer_jax.config import Config
from transformer_jax.data.mapped_tokenizer import Vocabulary
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.decoding.beam import Beam
from transformer_jax.errors import UserError
from transformer_jax.formats.exporter import (
    Exporter,
    TrainedModel,
)
from transformer_jax.formats.families import LAYOUTS
from transformer_jax.formats.folding import check_like, converted, unlike
from transformer_jax.formats.safetensors import WEIGHTS
from transformer_jax.formats.transformers.language_tokens import is_language
from transformer_jax.formats.transformers.m2m100 import LANGUAGES
from transformer_jax.models.config import ModelConfig
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from transformer_jax.weights.arrangement import UNUSED, Arrangement, arrange, piece_ids
from transformer_jax.weights.settings import Settings


@dataclass(frozen=True)
class HuggingFace(Exporter):
    """A folder for Transformers."""

    family: Literal["auto", "marian", "m2m_100", "t5"] = "auto"  #: auto: the one that fits

    def check(self, config: Config) -> None:
        self._fitting(config.model)

    def write(self, model: TrainedModel, folder: epath.Path) -> None:
        from safetensors.numpy import save_file

        config = model.config.model
        family, theirs = self._fitting(config)
        assert config.start_id is not None  # no family has another
        layout = LAYOUTS[family]
        source, target = _vocabularies(family, config, model.tokenizers)
        table = layout.table(theirs, source.arrangement, target.arrangement)
        tensors = table.to_tensors(converted(config, theirs, model.params))
        save_file(tensors, str(folder / WEIGHTS), metadata={"format": "pt"})
        names = {
            "model_type": family,
            "architectures": [layout.architecture],
            "is_encoder_decoder": True,
            "vocab_size": source.arrangement.size,
        }
        if config.tie_embeddings == "decoder":
            names["decoder_vocab_size"] = target.arrangement.size
        named = {"pad": PAD_ID, "bos": BOS_ID, "eos": EOS_ID, "decoder_start": config.start_id}
        ids = {f"{name}_token_id": target.theirs(i) for name, i in named.items()}
        ids["forced_eos_token_id"] = None
        _write_json(folder / "config.json", names | layout.keys(config) | ids)
        _write_json(folder / "generation_config.json", ids | _generation(model, target))
        _write_tokenizer(family, model, source, target, folder)

    def _fitting(self, config: ModelConfig) -> tuple[str, ModelConfig]:
        """(the family, the model in its terms).

        Raises:
            UserError: the model fits none; names the options.
        """
        families = LAYOUTS if self.family == "auto" else [self.family]
        theirs = {family: _in_family(config, family) for family in families}
        nearest = min(theirs, key=lambda family: len(unlike(config, theirs[family])))
        check_like(config, theirs[nearest], f"{nearest}, the nearest family of Transformers,")
        return nearest, theirs[nearest]


def _in_family(config: ModelConfig, family: str) -> ModelConfig:
    """The most similar model that a `config.json` of the family describes."""
    layout, tie = LAYOUTS[family], config.tie_embeddings
    return layout.model(
        Settings("config.json", layout.keys(config)),
        source_vocab_size=config.source_vocab_size,
        target_vocab_size=config.target_vocab_size,
        start_id=BOS_ID if config.start_id is None else config.start_id,
        unused_ids=config.unused_ids,
        tie_embeddings=tie if tie in layout.ties else layout.ties[0],
    )


class _Vocabulary(NamedTuple):
    """The pieces of one side."""

    arrangement: Arrangement
    pieces: list[str]  #: by our id
    ids: dict[str, int]  #: the family's, by piece

    def theirs(self, ours: int) -> int | None:
        """The family's id for one of ours; None for a BOS that it does not have."""
        found = int(self.arrangement.order[ours])
        return found if found >= 0 else None


def _vocabularies(family: str, config: ModelConfig, tokenizers: Tokenizers) -> list[_Vocabulary]:
    """Both sides in the numbering of a family: of Marian, M2M100 or T5."""
    sides = tokenizers.source, tokenizers.target
    sizes = [side.vocab_size for side in sides]
    # A row that is never read and never predicted; the family has none.
    no_bos = config.start_id != BOS_ID and BOS_ID in config.unused_ids and family != "m2m_100"
    special: dict[str, int | None]
    if family == "m2m_100":
        special = {"bos": 0, "pad": 1, "eos": 2, "unk": 3}
    elif family == "marian":
        # One id for the padding of both sides.
        special = {"eos": 0, "unk": 1, "bos": None if no_bos else 2, "pad": min(sizes) - 1 - no_bos}
    elif no_bos:
        special = {"pad": 0, "eos": 1, "unk": 2, "bos": None}
    else:
        special = {"pad": PAD_ID, "bos": BOS_ID, "eos": EOS_ID, "unk": UNK_ID}
    found = []
    for side, size in zip(sides, sizes, strict=True):
        arrangement = arrange(size - no_bos, **special, origin="the vocabulary")  # type: ignore[arg-type]
        pieces = side.pieces(range(size))
        if pieces[PAD_ID].startswith(UNUSED):  # a padding id without a piece
            pieces[PAD_ID] = "<pad>"
        found.append(_Vocabulary(arrangement, pieces, piece_ids(arrangement, pieces)))
    return found


def _generation(model: TrainedModel, target: _Vocabulary) -> dict[str, Any]:
    """The search: what our searches never predict, and beams where both have them."""
    config = model.config.model
    unused = [target.theirs(i) for i in config.unused_ids]
    named = set(target.ids.values())
    never = [target.theirs(PAD_ID), target.theirs(BOS_ID), *unused]
    search: dict[str, Any] = {
        "suppress_tokens": sorted({i for i in never if i is not None}),
        "max_length": config.max_length,
    }
    if config.unused_ids:
        search["renormalize_logits"] = True  # without them, as ours are
    if bad_words := [[i] for i in unused if i in named]:
        search["bad_words_ids"] = bad_words
    if model.tokenizers.target.prefix:
        search["forced_bos_token_id"] = target.theirs(model.tokenizers.target.prefix[0])
    method = model.config.decode.method
    if isinstance(method, Beam):
        search["num_beams"] = method.beam_size
        if method.length_penalty_form == "power":
            search["length_penalty"] = method.length_penalty
        if method.patience == 1.0:
            search["early_stopping"] = True
    return search


def _write_tokenizer(
    family: str, model: TrainedModel, source: _Vocabulary, target: _Vocabulary, folder: epath.Path
) -> None:
    """The files of the family's tokenizer, or of Marian's."""
    tokenizers, data = model.tokenizers, model.config.data
    special = {"eos_token": EOS_ID, "unk_token": UNK_ID, "pad_token": PAD_ID}
    tokens: dict[str, Any] = {name: source.pieces[i] for name, i in special.items()}
    content = tokenizers.source.sentencepiece_model
    vocabulary = getattr(tokenizers.source, "vocabulary", Vocabulary(()))
    tags = [source.pieces[i] for i in vocabulary.tags]
    is_ours = tags or vocabulary.marked_tags or tokenizers.source.separator is not None
    if family == "t5" and vocabulary.pieces and not is_ours:
        kind = "T5Tokenizer"
        (folder / "spiece.model").write_bytes(content)
        settings: dict[str, Any] = {"extra_ids": len(vocabulary.hidden)}
    elif tags and family == "m2m_100":
        (folder / "sentencepiece.bpe.model").write_bytes(content)
        settings = {"src_lang": data.source_language, "tgt_lang": data.target_language}
        if all(is_language(tag) for tag in tags):
            kind = "NllbTokenizer"
            tokens |= {"bos_token": source.pieces[BOS_ID], "additional_special_tokens": tags}
            settings["added_tokens_decoder"] = _added(source, vocabulary.hidden)
        else:
            kind = "M2M100Tokenizer"
            ids = {piece: i for piece, i in source.ids.items() if piece not in tags}
            _write_json(folder / "vocab.json", ids)
            known = {key: {f"__{code}__" for code in of.split()} for key, of in LANGUAGES.items()}
            codes = next(key for key, own in known.items() if own <= set(tags))
            settings["language_codes"] = codes
            if added := [i for i in vocabulary.tags if source.pieces[i] not in known[codes]]:
                settings["added_tokens_decoder"] = _added(source, added)
    elif tags or vocabulary.prefix:
        raise UserError(
            f"tokenizer: Transformers has no tokenizer for {family} with these language tokens"
        )
    else:
        kind, separate = "MarianTokenizer", source.ids != target.ids
        (folder / "source.spm").write_bytes(content)
        (folder / "target.spm").write_bytes(tokenizers.target.sentencepiece_model)
        _write_json(folder / "vocab.json", source.ids)
        if separate:
            _write_json(folder / "target_vocab.json", target.ids)
        settings = {
            "separate_vocabs": separate,
            "source_lang": data.source_language,
            "target_lang": data.target_language,
        }
    settings |= {"tokenizer_class": kind, "model_max_length": model.config.model.max_length}
    _write_json(folder / "special_tokens_map.json", tokens)
    _write_json(folder / "tokenizer_config.json", settings | tokens)


def _added(source: _Vocabulary, ids: Iterable[int]) -> dict[str, Any]:
    """Tokens of our ids that SentencePiece does not have, in the form of Transformers."""
    return {str(source.theirs(i)): {"content": source.pieces[i], "special": True} for i in ids}


def _write_json(path: epath.Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n")
