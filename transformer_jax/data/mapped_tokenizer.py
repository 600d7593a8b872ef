"""SentencePiece models whose pieces have the ids of a published model's vocabulary.

Such a tokenizer is one file, a zip without compression of `sentencepiece.model`, which cuts text
into pieces, and `vocabulary.json`, which numbers them: a piece that is not in it is UNK. The
vocabulary also names the pieces that a text may begin with and that SentencePiece must not cut,
such as the language tokens `>>de<<` or `deu_Latn`.
"""

import functools
import io
import json
import re
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from pydantic import NonNegativeInt, TypeAdapter, ValidationError

from transformer_jax.data.tokenizer import NOWHERE, SEPARATOR, Tokenizer
from transformer_jax.errors import UserError, first_line, sentence
from transformer_jax.vocabulary import UNK_ID
from transformer_jax.weights.sentencepiece_model import load_processor

Ids = tuple[NonNegativeInt, ...]


@dataclass(frozen=True)
class Vocabulary:
    """What `vocabulary.json` holds."""

    pieces: tuple[str, ...]  #: by id
    prefix: Ids = ()  #: every sentence begins with these, unless it begins with tags
    tags: Ids = ()  #: looked up whole at the start of a text, one or several without a space
    marked_tags: bool = False  #: a text may begin with a tag of the form `>>...<<`, or UNK for it
    hidden: Ids = ()  #: left out of decoded text, besides PAD, BOS and EOS


def mapped_tokenizer(sentencepiece_model: bytes, vocabulary: Vocabulary) -> bytes:
    """The content of a tokenizer file; equal arguments give equal bytes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        text = json.dumps(asdict(vocabulary), ensure_ascii=False)
        for name, part in ((_MODEL, sentencepiece_model), (_VOCABULARY, text.encode())):
            archive.writestr(zipfile.ZipInfo(name), part)
    return content.getvalue()


_MODEL, _VOCABULARY = "sentencepiece.model", "vocabulary.json"


class MappedTokenizer(Tokenizer):
    """A SentencePiece model and a vocabulary.

    Args:
        model: the bytes that `mapped_tokenizer` gives.
        name: where the bytes came from, for error messages.

    Raises:
        UserError: not such a file, or damaged.
    """

    def __init__(self, model: bytes, name: str = "the tokenizer"):
        self.model, self.name = model, name
        try:
            with zipfile.ZipFile(io.BytesIO(model)) as archive:
                if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
                    raise ValueError("its parts are compressed")
                values = json.loads(archive.read(_VOCABULARY))
                self.vocabulary = TypeAdapter(Vocabulary).validate_python(values)
                spm = archive.read(_MODEL)
        except ValidationError as error:
            raise UserError(f"{name}: {_VOCABULARY}: {sentence(error)}") from error
        except (zipfile.BadZipFile, KeyError, ValueError, RecursionError, OSError) as error:
            raise UserError(f"{name}: not a tokenizer file ({first_line(error)})") from error
        self._processor = load_processor(spm, name)
        self.vocab_size = size = len(self.vocabulary.pieces)
        listed = (*self.vocabulary.prefix, *self.vocabulary.tags, *self.vocabulary.hidden)
        if size <= UNK_ID or max(listed, default=0) >= size:
            raise UserError(f"{name}: {_VOCABULARY}: has {size} pieces and names others")
        self._ids = {piece: i for i, piece in enumerate(self.vocabulary.pieces)}
        tags = sorted((self.vocabulary.pieces[i] for i in self.vocabulary.tags), reverse=True)
        patterns = [">>.*?<<"] * self.vocabulary.marked_tags + [re.escape(tag) for tag in tags]
        self._tag = re.compile("|".join(patterns)) if patterns else None
        self.prefix, self.separator = self.vocabulary.prefix, self.id_of(SEPARATOR)
        self.hidden = self.hidden.union(self.vocabulary.hidden)

    def id_of(self, piece: str) -> int | None:
        """The id of a piece; None: it is not one."""
        return self._ids.get(piece)

    def with_prefix(self, prefix: Ids) -> "MappedTokenizer":
        """The same tokenizer with another prefix."""
        vocabulary = replace(self.vocabulary, prefix=prefix)
        return MappedTokenizer(mapped_tokenizer(self.sentencepiece_model, vocabulary), self.name)

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        cut = [self._cut(text) for text in texts]
        threads = -1 if len(cut) > 1 else 1
        rests = [rest for _, rest in cut]
        pieces = self._processor.encode(rests, out_type=str, num_threads=threads)
        return [
            [*first, *(self._ids.get(piece, UNK_ID) for piece in parts)]
            for (first, _), parts in zip(cut, pieces, strict=True)
        ]

    def places(self, text: str) -> list[tuple[int, int]]:
        tags, rest = self._cut(text)
        before = len(text.encode()) - len(rest.encode())
        found = super().places(rest)
        return [NOWHERE] * len(tags) + [(before + begin, before + end) for begin, end in found]

    def nbest(self, text: str, size: int) -> tuple[list[list[int]], np.ndarray]:
        first, rest = self._cut(text)
        found, log_probs = super().nbest(rest, size)
        return [[*first, *(self._of_processor[i] for i in ids)] for ids in found], log_probs

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        shown = self.pieces(self._shown(ids))
        # SentencePiece leaves the sign for a space in pieces that its model does not have.
        return str(self._processor.decode_pieces(shown)).replace("▁", " ").strip()

    def pieces(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        return [self.vocabulary.pieces[i] for i in np.asarray(ids, dtype=np.int64).tolist()]

    def _cut(self, text: str) -> tuple[tuple[int, ...], str]:
        """(ids of the tags at the start of a text, or the prefix; the text without them)."""
        ids: list[int] = []
        place = 0
        while self._tag and (match := self._tag.match(text, place)):
            ids.append(self._ids.get(match.group(), UNK_ID))
            place = match.end()
        return tuple(ids) or self.vocabulary.prefix, text[place:]

    @functools.cached_property
    def _of_processor(self) -> list[int]:
        """The id of each of SentencePiece's own."""
        size = self._processor.vocab_size()
        return [self._ids.get(self._processor.id_to_piece(i), UNK_ID) for i in range(size)]


def language_tag(code: str) -> str:
    """The tag of a language in models that are trained here."""
    return f"<2{code}>"


def find_tag(tokenizer: Tokenizer | None, code: str) -> int | None:
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
    separator: bool = False  #: a piece between sentences, which is no tag: no text has it

    def __len__(self) -> int:
        return len(self.languages) + len(self.others) + self.separator

    @property
    def of_target(self) -> "Tags":
        """What the target vocabulary must have."""
        return Tags(separator=self.separator)

    def missing_in(self, tokenizer: Tokenizer | None) -> tuple[str, ...]:
        """The pieces to add to a tokenizer; None: one that is still to be trained."""
        known = _tags_of(tokenizer)
        lacking = [code for code in self.languages if find_tag(tokenizer, code) is None]
        others = (tag for tag in self.others if tag not in known)
        has_separator = tokenizer is not None and tokenizer.separator is not None
        separators = [SEPARATOR] if self.separator and not has_separator else []
        return (*map(language_tag, lacking), *others, *separators)


NO_TAGS = Tags()


def _tags_of(tokenizer: Tokenizer | None) -> list[str]:
    if not isinstance(tokenizer, MappedTokenizer):
        return []
    return tokenizer.pieces(tokenizer.vocabulary.tags)


def with_tags(tokenizer: Tokenizer, tags: Tags) -> Tokenizer:
    """The tokenizer with what it lacks as further pieces; the ids of the others stay."""
    if not (missing := tags.missing_in(tokenizer)):
        return tokenizer
    old = Vocabulary(tuple(tokenizer.pieces(range(tokenizer.vocab_size))))
    if isinstance(tokenizer, MappedTokenizer):
        old = tokenizer.vocabulary
    new = tuple(range(len(old.pieces), len(old.pieces) + len(missing)))
    vocabulary = replace(
        old,
        pieces=(*old.pieces, *missing),
        tags=(*old.tags, *(i for i, piece in zip(new, missing, strict=True) if piece != SEPARATOR)),
        hidden=(*old.hidden, *new),
    )
    model = mapped_tokenizer(tokenizer.sentencepiece_model, vocabulary)
    return MappedTokenizer(model, tokenizer.name)


def with_language(tokenizer: Tokenizer, code: str, side: str) -> Tokenizer:
    """The tokenizer whose prefix is the tag of a language.

    Raises:
        UserError: it has no such tag; the message names the key of `side`.
    """
    tag = find_tag(tokenizer, code)
    if tag is None or not isinstance(tokenizer, MappedTokenizer):
        tags = _tags_of(tokenizer)
        known = f"it has {', '.join(tags[:8])}{' ...' * (len(tags) > 8)}" if tags else "it has none"
        raise UserError(f"{side}_language={code}: the model has no tag for it; {known}")
    return tokenizer.with_prefix((tag,))
