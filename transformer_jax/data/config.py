"""What to train on, how to cut it into pieces, and how to batch it."""

from dataclasses import dataclass
from typing import Literal

from transformer_jax.config_types import Strings


@dataclass(frozen=True)
class DataConfig:
    """A parallel corpus: text files or a TensorFlow Datasets name, and its direction.

    Exactly one of `tfds_name` and `train_source` names the training text. With
    files, source and target are read line by line in parallel; a `.tsv` file
    (source TAB target) or `.jsonl` file (one object a line, keys
    `source_language` and `target_language`) holds both sides and stands in
    `*_source` alone. `.gz` files are unpacked on the fly.
    """

    source_language: str = ""  #: translate from; "" = the ending of `train_source` (a.en)
    target_language: str = ""  #: translate into; "" = the ending of `train_target` (a.de)
    tfds_name: str = ""  #: e.g. "wmt14_translate/de-en"; "grammar_translate" is the embedded one
    tfds_data_dir: str = ""  #: where TFDS keeps its files; "" = the TFDS default
    train_source: Strings = ()
    train_target: Strings = ()
    validation_source: Strings = ()
    validation_target: Strings = ()
    test_source: Strings = ()
    test_target: Strings = ()
    train_split: str = "train"  #: TFDS split names, slices such as "train[:90%]" allowed
    validation_split: str = "validation"
    test_split: str = "test"
    validation_from_train: int = 0  #: hold out this many training pairs, unless a set is given
    cache_dir: str = ""  #: where id caches live; "" = <user cache>/transformer_jax


@dataclass(frozen=True)
class TokenizerConfig:
    """SentencePiece: trained on the training text, or a given model."""

    kind: Literal["unigram", "bpe"] = "unigram"
    vocab_size: int = 0  #: 0 = 8000, or as many as a given model has
    joint: bool = True  #: one model for both languages (allows three-way tied embeddings)
    byte_fallback: bool = True
    character_coverage: float = 1.0
    source_model: str = ""  #: path of a given SentencePiece model (with joint, for both)
    target_model: str = ""
    max_training_sentences: int = 2_000_000
    sampling_alpha: float = 0.0  #: > 0 samples segmentations (see data/segmentation.py)

    @property
    def trained_vocab_size(self) -> int:
        """Pieces of a model that is trained."""
        return self.vocab_size or 8000


@dataclass(frozen=True)
class BatchConfig:
    """Length-bucketed batches under a budget of tokens."""

    tokens: int = 4096  #: at most this many target slots (and source slots) in a batch
    max_length: int = 128  #: longer sentences (in pieces, EOS included) are skipped and counted
    num_buckets: int = 16  #: at most this many static shapes, each compiled once
    max_padding: float = 0.1  #: take as few shapes as keep the share of padding below this
    row_multiple: int = 0  #: of the rows of a batch; 0 = as the devices of the first start need
    length_multiple: int = 1  #: shapes' lengths are multiples of it (8 or more suits accelerators)
    seed: int = 0
