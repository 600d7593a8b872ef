"""A folder of a published model, and the form in which Transformers has a family's models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.models.config import ModelConfig
from transformer_jax.weights.arrangement import Arrangement, arrange, unused
from transformer_jax.weights.sentencepiece_model import open_model
from transformer_jax.weights.settings import REQUIRED, Settings, read_json
from transformer_jax.weights.tables import TRANSPOSED, Table, Tensor, chain, rows
from transformer_jax.weights.weight_files import read_weights
from transformer_jax.weights.weights import Weights


@dataclass(frozen=True)
class ModelFolder:
    """A downloaded model."""

    path: Path
    config: Settings  #: `config.json`
    generation: Settings  #: `generation_config.json`; in older folders `config.json` has its keys
    weights: Weights
    int8: bytes | None = None  #: as in `TrainedModel`

    def json(self, name: str) -> dict[str, Any]:
        """One of its JSON files; {} if it is not there."""
        return read_json(self.path / name) if (self.path / name).is_file() else {}

    def settings(self, name: str) -> Settings:
        """The keys of one of its JSON files; none if it is not there."""
        return Settings(str(self.path / name), self.json(name))

    def content(self, *names: str) -> bytes:
        """The first of these files that is there.

        Raises:
            UserError: none is, or it is not a SentencePiece model.
        """
        return open_model(self.path, names, "the SentencePiece model")[0]

    def piece_ids(self, name: str) -> dict[str, int]:
        """The ids by piece in one of its JSON files, which must be there."""
        values = self.json(name)
        if not values or not all(type(i) is int and i >= 0 for i in values.values()):
            raise UserError(f"{self.path / name}: missing, or not the ids of pieces")
        if "<unk>" not in values:
            raise UserError(f"{self.path / name}: has no piece <unk>")
        return values

    def check_added(self, ids: Mapping[str, int]) -> None:
        """Refuses tokens that were added to the tokenizer and that nothing here cuts out of a text.

        Args:
            ids: of all pieces that are known.

        Raises:
            UserError: a file lists another one.
        """
        decoder = self.json("tokenizer_config.json").get("added_tokens_decoder") or {}
        listed = [*decoder.values(), *(self.json("tokenizer.json").get("added_tokens") or ())]
        names = [str(token.get("content")) for token in listed if isinstance(token, dict)]
        if unknown := sorted({*self.json("added_tokens.json"), *names} - ids.keys()):
            raise UserError(
                f"{self.path}: its tokenizer has added tokens, which cannot be expressed: "
                f"{', '.join(unknown[:5])}{' ...' * (len(unknown) > 5)}"
            )

    def arrange(
        self, ids: Mapping[str, int], size: int, *, pad: int | None = None, bos: int | None = None
    ) -> Arrangement:
        """As `vocabularies.arrange`, with the special ids of `config.json`.

        Args:
            ids: of all pieces.
            size: of the vocabulary in the model, which may have rows without a piece.
            pad: where it is not `pad_token_id`.
            bos: None where there is none.

        Raises:
            UserError: an id is above `size`, or the special ids do not fit.
        """
        origin = self.config.origin
        if max(ids.values()) >= size:
            raise UserError(
                f"{origin}: a vocabulary of {size} pieces, but the tokenizer has ids up to "
                f"{max(ids.values())}"
            )
        if pad is None:
            pad = self.config.get("pad_token_id", int)
        eos = self.config.get("eos_token_id", int)
        return arrange(size, pad=pad, eos=eos, unk=ids["<unk>"], bos=bos, origin=origin)


def read_folder(path: Path) -> ModelFolder:
    """The files of a model in Transformers' form; the weights are read when they are asked for.

    Raises:
        UserError: there is no `config.json`, or there are no weights that can be read.
    """
    files = [path / "config.json", path / "generation_config.json"]
    if not files[1].is_file():
        files[1] = files[0]
    config, generation = (Settings(str(file), read_json(file)) for file in files)
    return ModelFolder(path, config, generation, read_weights(path))


#: The projection to logits in a file.
PROJECTION = "lm_head.weight"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The form in which Transformers has a family's models: names of tensors, keys of the config.

    Each of the three functions below holds for reading and for writing.
    """

    architecture: str  #: the class in Transformers
    ties: Sequence[str] = ()  #: values of `tie_embeddings` that are written; the first is usual
    prefix: str = ""  #: what the names of the embeddings begin with

    def model(self, config: Settings, **vocabulary: Any) -> ModelConfig:
        """The model that a `config.json` describes; options of the vocabulary are arguments.

        Raises:
            UserError: a key is missing, or what it says cannot be expressed.
        """
        raise NotImplementedError

    def keys(self, model: ModelConfig) -> dict[str, Any]:
        """The keys that `model` reads, of the most similar model that it gives.

        Where this is not the same model, an option has no place in the layout.
        """
        raise NotImplementedError

    def table(self, model: ModelConfig, source: Arrangement, target: Arrangement) -> Table:
        """All tensors of a model."""
        raise NotImplementedError

    def read(
        self,
        folder: ModelFolder,
        source: Arrangement,
        target: Arrangement,
        target_ids: Mapping[str, int],
        start: Any = REQUIRED,
    ) -> tuple[ModelConfig, Table]:
        """The model in a folder, and the table of its tensors.

        Args:
            folder: of the model.
            source: arrangement of the source vocabulary.
            target: of the target vocabulary.
            target_ids: their id of each piece of the target.
            start: `decoder_start_token_id` where the config has none.
        """
        model = self.model(
            folder.config,
            source_vocab_size=len(source.order),
            target_vocab_size=len(target.order),
            tie_embeddings=self._tie(folder.weights, source, target),
            start_id=target.ours(folder.config.get("decoder_start_token_id", int, start)),
            unused_ids=unused(target, target_ids, never_predicted(folder.generation)),
        )
        return model, self.table(model, source, target)

    def embeddings(self, tie: str, source: Arrangement, target: Arrangement) -> list[Tensor]:
        """The tensors of the embeddings and the projection to logits."""
        shared, encoder, decoder = self._names()
        names = (shared, encoder, decoder) if tie in ("all", "inputs") else (decoder, shared)
        if tie in ("all", "decoder"):
            names = (*names, PROJECTION)
        tensors = [Tensor("target_embedding/table", names, rows(target.order))]
        if tie not in ("all", "inputs"):
            tensors.append(Tensor("source_embedding/table", (encoder, shared), rows(source.order)))
        if tie not in ("all", "decoder"):
            change = chain(rows(target.order), TRANSPOSED)
            tensors.append(Tensor("projection/kernel", (PROJECTION,), change))
        return tensors

    def _names(self) -> list[str]:
        """Names of a matrix for both sides, and of one for each."""
        names = ("shared", "encoder.embed_tokens", "decoder.embed_tokens")
        return [f"{self.prefix}{name}.weight" for name in names]

    def _tie(self, weights: Weights, source: Arrangement, target: Arrangement) -> str:
        """Which embeddings are one matrix: `ModelConfig.tie_embeddings`.

        That follows from the file alone: two are one if the file has only one of them, or both
        with the same numbers. (`tie_word_embeddings` in `config.json` is not to be trusted:
        versions of Transformers write other values than they read.)
        """
        shared, encoder, decoder = self._names()

        def one(*kinds: Sequence[str]) -> bool:
            first, second = ([name for name in names if name in weights] for names in kinds)
            if not first or not second or set(first) & set(second):
                return True
            return np.array_equal(weights.take(first[0]), weights.take(second[0]))

        same_ids = np.array_equal(source.order, target.order)
        inputs = same_ids and one((shared, encoder), (shared, decoder))
        outputs = one((shared, decoder), (PROJECTION,))
        if inputs:
            return "all" if outputs else "inputs"
        return "decoder" if outputs else "none"


def never_predicted(generation: Settings) -> list[int]:
    """The single ids in `bad_words_ids`.

    Raises:
        UserError: it forbids a sequence of several.
    """
    forbidden = generation.get("bad_words_ids", list, [])
    for words in forbidden:
        if not isinstance(words, list) or len(words) != 1 or type(words[0]) is not int:
            raise UserError(
                f"{generation.origin}: bad_words_ids={forbidden!r}: only single ids can be left out"
            )
    return [words[0] for words in forbidden]
