"""A SentencePiece tokenizer: encodes and decodes.

A tokenizer that is trained here cleans white space and invisible marks (`normalization.py`), and
changes nothing else: no NFKC, so that `…`, `½`, `„` and decomposed accents stay. NFKC would rewrite
the target side too, and the output could then never equal such a reference. Runs of spaces, and
spaces at either end, are reduced, as SentencePiece does by default. Other text round-trips exactly
(with byte fallback also characters that the training text does not have), except U+2581 `▁`,
SentencePiece's own sign for a space.
"""

import functools
import hashlib
import re
from collections.abc import Iterable, Sequence
from itertools import chain, takewhile
from typing import Any, Literal

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from transformer_jax.weights.sentencepiece_model import load_processor

Side = Literal["source", "target"]
SIDES: tuple[Side, Side] = ("source", "target")
#: The piece between the sentences of a block.
SEPARATOR = "<sep>"
#: The place of a piece that is no part of the text, such as a language token.
NOWHERE = -1, -1
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


class Tokenizer:
    """One SentencePiece model. Ids carry no BOS or EOS; padding is never produced.

    Args:
        model: the bytes of a SentencePiece `.model` file.
        name: where the bytes came from, for error messages.

    Raises:
        UserError: not a SentencePiece model, or its special ids differ from ours.
    """

    #: What `encode` puts before a text, such as a language token.
    prefix: tuple[int, ...] = ()
    #: What `decode` leaves out: PAD, BOS and ids that are no text, such as language tokens.
    hidden: frozenset[int] = frozenset({PAD_ID, BOS_ID})

    def __init__(self, model: bytes, name: str = "the SentencePiece model"):
        self.model, self.name = model, name
        processor = self._processor = load_processor(model, name)
        special = (processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id())
        expected = (PAD_ID, BOS_ID, EOS_ID, UNK_ID)
        if special != expected:
            raise UserError(
                f"{name} has the special ids pad, bos, eos, unk = {special}, expected {expected}; "
                "train it with --pad_id=0 --bos_id=1 --eos_id=2 --unk_id=3"
            )
        #: Number of ids, the four special ones included.
        self.vocab_size = int(processor.vocab_size())
        separator: int = processor.piece_to_id(SEPARATOR)
        #: The id of the piece between the sentences of a block; None: there is none.
        self.separator = None if separator == UNK_ID else separator

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.model, self.name)

    def __repr__(self) -> str:
        return f"<Tokenizer: {self.kind}, {self.vocab_size} pieces, {self.fingerprint[:8]}>"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the model, 64 hexadecimal digits."""
        return hashlib.sha256(self.model).hexdigest()

    @property
    def sentencepiece_model(self) -> bytes:
        """The `.model` file that cuts text into pieces."""
        return bytes(self._processor.serialized_model_proto())

    @property
    def kind(self) -> str:
        """How it segments words: `unigram` or `bpe`."""
        try:
            self._processor.nbest_encode_as_ids("a", 1)
        except RuntimeError:  # raised for BPE models
            return "bpe"
        return "unigram"

    @property
    def byte_fallback(self) -> bool:
        """Whether it encodes unknown characters as bytes."""
        return any(map(self._processor.is_byte, range(self._processor.vocab_size())))

    def encode(self, text: str) -> list[int]:
        """Text -> ids, the most probable segmentation, without BOS or EOS."""
        return list(self._processor.encode(text))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, in SentencePiece's threads, one per core."""
        return list(self._processor.encode(list(texts), num_threads=-1))

    def places(self, text: str) -> list[tuple[int, int]]:
        """Where each piece of `encode(text)` is in the UTF-8 of the text, or `NOWHERE`.

        Of several pieces of one character only the last has an extent.
        """
        return list(self._processor.encode(text.encode(), return_type="offset_mapping")["offsets"])

    def surfaces(self, ids: Sequence[int]) -> list[bytes]:
        """The part of each id in the UTF-8 of their text, which begins with a space."""
        return [b"" if i in self.hidden else self._surface(i) for i in ids]

    def _surface(self, number: int) -> bytes:
        (piece,) = self.pieces([number])
        if number == UNK_ID:
            return " ⁇ ".encode()
        if match := _BYTE.fullmatch(piece):
            return bytes.fromhex(match[1])
        return piece.replace("▁", " ").encode()

    def nbest(self, text: str, size: int) -> tuple[list[list[int]], np.ndarray]:
        """The most probable segmentations of a text by a unigram model, the best first.

        Args:
            text: may be empty.
            size: of how many; a short text has fewer.

        Returns:
            The ids of each, without BOS or EOS, and its log-probability.
        """
        found = self._processor.nbest_encode_as_ids(text, size)
        sums = np.append(0.0, np.cumsum(self._scores[list(chain.from_iterable(found))]))
        return found, np.diff(sums[np.cumsum([0, *map(len, found)])])

    @functools.cached_property
    def _scores(self) -> np.ndarray:
        """The log-probability of each of SentencePiece's own ids."""
        return np.array(list(map(self._processor.get_score, range(self._processor.vocab_size()))))

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """Ids -> text: ends before the first EOS, skips PAD and BOS; UNK becomes ` ⁇ `."""
        return str(self._processor.decode(self._shown(ids)))

    def _shown(self, ids: Iterable[int] | np.ndarray) -> list[int]:
        """The ids that `decode` shows."""
        tokens = np.asarray(ids, dtype=np.int64).tolist()
        before_eos = takewhile(lambda token: token != EOS_ID, tokens)
        return [token for token in before_eos if token not in self.hidden]

    def pieces(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        """The piece of each id, `▁` for a space; special ids as `<pad>`, `</s>` …"""
        return [self._processor.id_to_piece(i) for i in np.asarray(ids, dtype=np.int64).tolist()]
