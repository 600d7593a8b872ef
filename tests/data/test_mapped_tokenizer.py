"""Tokenizers whose ids are those of a vocabulary beside the SentencePiece model."""

import io
import json
import pickle
import zipfile

import pytest

from tests.data.test_tokenizer import sentences
from transformer_jax.data.config import TokenizerConfig
from transformer_jax.data.mapped_tokenizer import Vocabulary, mapped_tokenizer
from transformer_jax.data.tokenizer_pair import Tokenizers, load_tokenizers, read_tokenizer
from transformer_jax.data.tokenizer_training import train_tokenizer, vocabularies
from transformer_jax.errors import UserError

TEXTS = ["tür straße ben", "kalo mi gu", "日本 wer", ""]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def plain(request):
    return train_tokenizer(TokenizerConfig(vocab_size=330, kind=request.param), sentences())


def mapped(plain, **options):
    """The pieces of `plain` in reverse order after the special four and two tags."""
    pieces = plain.pieces(range(plain.vocab_size))
    names = (*pieces[:4], ">>de<<", "deu_Latn", *pieces[:3:-1])
    return read_tokenizer(mapped_tokenizer(plain.model, Vocabulary(names, **options)))


def test_ids_are_those_of_the_vocabulary(plain):
    ours = mapped(plain)
    assert ours.vocab_size == plain.vocab_size + 2
    for text in TEXTS:
        assert ours.pieces(ours.encode(text)) == plain.pieces(plain.encode(text))
        assert ours.decode([*ours.encode(text), 2, 9]) == text
    assert ours.encode_batch(TEXTS) == [ours.encode(text) for text in TEXTS]


def test_a_piece_outside_the_vocabulary_is_unknown(plain):
    pieces = plain.pieces(range(plain.vocab_size))
    first = plain.encode("tür straße")[0]
    fewer = tuple(piece for i, piece in enumerate(pieces) if i != first)
    ours = read_tokenizer(mapped_tokenizer(plain.model, Vocabulary(fewer)))
    assert ours.encode("tür straße")[0] == 3
    assert ours.pieces(ours.encode("tür straße")[1:]) == plain.pieces(
        plain.encode("tür straße")[1:]
    )


def test_a_piece_that_sentencepiece_does_not_have_is_text(plain):
    """As where the vocabulary is of two models, one for each language."""
    names = (*plain.pieces(range(plain.vocab_size)), "▁crx", "lyx")
    ours = read_tokenizer(mapped_tokenizer(plain.model, Vocabulary(names)))
    crx, lyx, ben = plain.vocab_size, plain.vocab_size + 1, ours.encode("ben")
    assert ours.decode([crx, crx, lyx, *ben, crx]) == "crx crxlyx ben crx"


def test_tags_are_looked_up_whole_and_replace_the_prefix(plain):
    ours = mapped(plain, prefix=(5,), tags=(5,), marked_tags=True, hidden=(5,))
    rest = mapped(plain).encode("ben")
    assert ours.prefix == (5,)
    assert ours.encode("ben") == [5, *rest]
    assert ours.encode("") == [5]
    assert ours.encode(">>de<< ben") == [4, *rest]
    assert ours.encode(">>xx<< ben") == [3, *rest]
    assert ours.encode("deu_Latn ben") == [5, *rest]
    assert ours.encode("ben deu_Latn")[: 1 + len(rest)] == [5, *rest]
    assert ours.decode([5, *rest]) == "ben"


def test_it_is_stored_and_given_like_any_tokenizer(plain, tmp_path):
    ours = mapped(plain, prefix=(5,))
    Tokenizers(ours, plain).save(tmp_path)
    loaded = load_tokenizers(tmp_path)
    assert loaded.source.encode("ben") == ours.encode("ben") and loaded.source.prefix == (5,)
    assert not loaded.joint and loaded.target.prefix == ()
    assert pickle.loads(pickle.dumps(ours)).encode("ben") == ours.encode("ben")
    assert mapped(plain, prefix=(5,)).fingerprint == ours.fingerprint
    given = TokenizerConfig(joint=True, source_model=str(tmp_path / "source.model"))
    assert vocabularies(given)[:2] == (ours.vocab_size,) * 2


def packed(plain, vocabulary, compression=zipfile.ZIP_STORED):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as archive:
        archive.writestr("sentencepiece.model", plain.model)
        archive.writestr("vocabulary.json", vocabulary)
    return content.getvalue()


def test_a_damaged_file_is_refused(plain):
    whole = mapped_tokenizer(plain.model, Vocabulary(tuple("abcdef")))
    nine = {"pieces": ["a"] * 9}
    for content, message in (
        (packed(plain, "{"), "not a tokenizer file"),
        (packed(plain, "[]"), "vocabulary.json"),
        (packed(plain, json.dumps({"pieces": ["a", 3]})), "vocabulary.json: pieces.1"),
        (packed(plain, json.dumps(nine | {"prefix": [9]})), "has 9 pieces and names others"),
        (packed(plain, json.dumps({"pieces": ["a"]})), "has 1 pieces"),
        (packed(plain, json.dumps(nine), zipfile.ZIP_DEFLATED), "parts are compressed"),
        *((cut, "not a tokenizer file") for cut in (whole[:-30], whole[:100], b"PK")),
    ):
        with pytest.raises(UserError, match=f"x.model: .*{message}"):
            read_tokenizer(content, "x.model")
