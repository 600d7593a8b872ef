"""What a family of published models gives: a config, a table of its tensors, tokenizers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.data.mapped_tokenizer import MappedTokenizer, Vocabulary, mapped_tokenizer
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.decoding.base import Method
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.errors import UserError
from transformer_jax.interop.settings import REQUIRED, Settings
from transformer_jax.interop.tables import TRANSPOSED, Table, Tensor, chain, rows
from transformer_jax.interop.vocabularies import Arrangement, unused
from transformer_jax.interop.weights import Stored, Weights, read_json
from transformer_jax.models.config import ModelConfig


class Languages(NamedTuple):
    """The languages to translate from and into, as the family spells them; None: not said."""

    source: str | None = None
    target: str | None = None


@dataclass(frozen=True)
class ModelFolder:
    """A downloaded model."""

    path: Path
    config: Settings  #: `config.json`
    generation: Settings  #: `generation_config.json`; in older folders `config.json` has its keys
    weights: Weights
    made: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    #: JSON files that other files of the folder stand for

    def json(self, *names: str) -> dict[str, Any]:
        """The first of these JSON files that is there; {} if none is."""
        for name in names:
            if name in self.made:
                return self.made[name]
        there = [self.path / name for name in names if (self.path / name).is_file()]
        return read_json(there[0]) if there else {}

    def settings(self, name: str) -> Settings:
        """The keys of one of its JSON files; none if it is not there."""
        return Settings(str(self.path / name), self.json(name))

    def content(self, *names: str) -> bytes:
        """The first of these files that is there.

        Raises:
            UserError: none is.
        """
        for name in names:
            if (self.path / name).is_file():
                return (self.path / name).read_bytes()
        raise UserError(f"{self.path}: {' or '.join(names)} is missing, the SentencePiece model")

    def piece_ids(self, *names: str) -> dict[str, int]:
        """The ids by piece in the first of these files, which must be there."""
        values = self.json(*names)
        if not values or not all(type(i) is int and i >= 0 for i in values.values()):
            raise UserError(f"{self.path / names[0]}: missing, or not the ids of pieces")
        return values


@dataclass(frozen=True)
class Published:
    """A model folder in our terms."""

    model: ModelConfig
    table: Table
    tokenizers: Tokenizers
    languages: Languages


Family = Callable[[ModelFolder, Languages], Published]


class EmbeddingNames(NamedTuple):
    """Names that the embeddings, and the projection to logits, may have in a file."""

    source: Sequence[str]
    target: Sequence[str]
    output: Sequence[str]


@dataclass(frozen=True)
class Layout:
    """The form in which Transformers has a family's models, to read them."""

    names: EmbeddingNames
    model: Callable[..., ModelConfig]
    #: the model that the keys of a `config.json` describe; options of the vocabulary are arguments
    table: Callable[[ModelConfig, Sequence[Tensor], Arrangement], Table]
    #: of a model, its embeddings' tensors and the arrangement of its target vocabulary

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
        tie, tensors = embeddings(folder.weights, source, target, self.names)
        model = self.model(
            folder.config,
            source_vocab_size=len(source.order),
            target_vocab_size=len(target.order),
            tie_embeddings=tie,
            start_id=target.ours(folder.config.get("decoder_start_token_id", int, start)),
            unused_ids=unused(target, target_ids, never_predicted(folder.generation)),
        )
        return model, self.table(model, tensors, target)


@dataclass(frozen=True)
class WritableLayout(Layout):
    """A layout in which models are written too."""

    architecture: str  #: the class in Transformers
    keys: Callable[[ModelConfig], dict[str, Any]]
    #: `config.json` of a model, without its vocabulary
    ties: Mapping[str, Sequence[str]]
    #: the `tie_embeddings` that it can have, and the names of the matrices that are then written

    def embeddings(self, tie: str, source: Arrangement, target: Arrangement) -> list[Tensor]:
        """The tensors of embeddings and projection in a file to be written."""
        # Matrices of unequal shapes: each of the names is one of its own.
        written = {name: Stored((i,), lambda: np.zeros(0)) for i, name in enumerate(self.ties[tie])}
        found, tensors = embeddings(Weights("", written), source, target, self.names)
        assert found == tie, (found, tie)
        return tensors


def make_tokenizers(
    source: tuple[bytes, Vocabulary], target: tuple[bytes, Vocabulary]
) -> Tokenizers:
    """The tokenizers of a SentencePiece model and a vocabulary for each side."""
    first, second = (
        MappedTokenizer(mapped_tokenizer(model, vocabulary), f"the {side} tokenizer")
        for side, (model, vocabulary) in (("source", source), ("target", target))
    )
    return Tokenizers(first, first if first.model == second.model else second)


def search(generation: Settings) -> Method:
    """The search that the folder recommends."""
    beams = generation.number("num_beams", 1)
    if beams == 1:
        return Greedy()
    penalty = generation.get("length_penalty", float, 1.0)
    patience = 1.0 if generation.get("early_stopping", object, False) is True else None
    return Beam(
        beam_size=beams, length_penalty=penalty, length_penalty_form="power", patience=patience
    )


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


def embeddings(
    weights: Weights, source: Arrangement, target: Arrangement, names: EmbeddingNames
) -> tuple[str, list[Tensor]]:
    """(`ModelConfig.tie_embeddings`, the tensors of embeddings and projection).

    What is one matrix follows from the file alone: two are one if the file has only one of them,
    or both with the same numbers. (`tie_word_embeddings` in `config.json` is not to be trusted:
    versions of Transformers write other values than they read.)

    Args:
        weights: the file.
        source: arrangement of the source vocabulary.
        target: the same of the target.
        names: those that the matrices may have.

    Raises:
        UserError: an embedding is missing.
    """

    def there(names: Iterable[str]) -> list[str]:
        return [name for name in names if name in weights]

    def one(first: Sequence[str], second: Sequence[str]) -> bool:
        a, b = there(first), there(second)
        if not a or not b or set(a) & set(b):
            return True
        return weights.shape(a[0]) == weights.shape(b[0]) and np.array_equal(
            weights.take(a[0]), weights.take(b[0])
        )

    def tensor(path: str, arrangement: Arrangement, *groups: Sequence[str]) -> Tensor:
        found = [name for group in groups for name in group]
        first = there(found) or found[:1]
        ordered = dict.fromkeys([first[0], *found])
        return Tensor(path, tuple(ordered), rows(arrangement.order))

    inputs = one(names.source, names.target) and np.array_equal(source.order, target.order)
    outputs = one(names.target, names.output)
    tied = {(True, True): "all", (False, True): "decoder", (True, False): "inputs"}
    tie = tied.get((inputs, outputs), "none")
    table = "target_embedding/table"
    if inputs and outputs:
        return tie, [tensor(table, target, names.source, names.target, names.output)]
    tensors = [tensor(table, target, names.target, names.output if outputs else ())]
    if inputs:
        tensors = [tensor(table, target, names.source, names.target)]
    else:
        tensors.append(tensor("source_embedding/table", source, names.source))
    if not outputs:
        name = there(names.output)[0]
        change = chain(rows(target.order), TRANSPOSED)
        tensors.append(Tensor("projection/kernel", (name,), change))
    return tie, tensors
