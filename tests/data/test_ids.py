import errno
import json
import random

import numpy as np
import pytest

from tests.data.listed import Listed, folder_of, text_of
from transformer_jax.data import ids as ids_module, sentences as sentences_module
from transformer_jax.data.config import TokenizerConfig
from transformer_jax.data.id_files import Part, entry_name, read_entry
from transformer_jax.data.ids import ids_of_pairs, ids_of_text
from transformer_jax.data.sampling import SubwordSampler
from transformer_jax.data.sentences import IdCorpus, Sentences
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.data.tokenizer_training import train_tokenizer
from transformer_jax.errors import UserError
from transformer_jax.paths import RECORD


def texts(seed, count):
    rng = random.Random(seed)
    words = ["ab", "bac", "cöd", "dab", "eß", "faced", "gab"]
    return [" ".join(rng.choices(words, k=rng.randint(1, 8))) for _ in range(count)]


PAIRS = [*zip(texts(1, 60), texts(2, 60), strict=True), ("", "x"), ("nur 日本", "")]


@pytest.fixture(scope="module")
def tokenizers():
    joint = train_tokenizer(TokenizerConfig(vocab_size=276), texts(0, 300))
    return Tokenizers(joint, joint)


def same(a, b):
    return len(a) == len(b) and all(
        np.array_equal(a.source[i], b.source[i]) and np.array_equal(a.target[i], b.target[i])
        for i in range(len(a))
    )


@pytest.fixture
def data(tmp_path):
    return text_of([PAIRS], tmp_path)


def test_second_call_reads_the_cache_memory_mapped(data, tmp_path, tokenizers, monkeypatch):
    first = ids_of_text(data, tokenizers)
    assert same(first, ids_of_pairs(PAIRS, tokenizers))
    monkeypatch.setattr(Listed, "pairs", None)
    again = ids_of_text(data, tokenizers)
    assert same(first, again)
    assert isinstance(again.source.ids, np.memmap)
    assert list(tmp_path.iterdir()) == [folder_of(data, tokenizers)]


def test_the_fingerprint_does_not_depend_on_where_the_arrays_are(tmp_path, tokenizers, monkeypatch):
    data = text_of([PAIRS, PAIRS[:7]], tmp_path)
    mapped = ids_of_text(data, tokenizers)
    assert mapped.sizes == (len(PAIRS), 7)
    sides = [
        Sentences({name: np.array(values) for name, values in side.arrays.items()})
        for side in (mapped.source, mapped.target)
    ]
    expected = IdCorpus(*sides).fingerprint
    monkeypatch.setattr(sentences_module, "_PART", 64)  # bytes hashed at a time, then let go
    again = ids_of_text(data, tokenizers)
    assert again.fingerprint == mapped.fingerprint == expected
    assert same(again, mapped)


def test_key_covers_corpus_and_tokenizer(tokenizers):
    other = train_tokenizer(TokenizerConfig(vocab_size=275), texts(0, 300))
    names = {
        entry_name(tokenizers, "a"),
        entry_name(tokenizers, "b"),
        entry_name(Tokenizers(tokenizers.source, other), "a"),
        entry_name(Tokenizers(other, tokenizers.source), "a"),
        entry_name(tokenizers, "a", 0.1),
        entry_name(tokenizers, "a", 0.2),
    }
    assert len(names) == 6


def test_parts_and_chunks_do_not_change_the_ids(tmp_path, tokenizers, monkeypatch, capfd):
    whole = ids_of_text(text_of([PAIRS, PAIRS[:9]], tmp_path / "1"), tokenizers)
    assert not capfd.readouterr().err
    monkeypatch.setattr(ids_module, "_CHUNK", 7)
    monkeypatch.setattr(ids_module, "PART_PAIRS", 20)
    data = text_of([PAIRS, PAIRS[:9]], tmp_path / "2")
    in_parts = ids_of_text(data, tokenizers, progress=True)
    assert same(whole, in_parts) and whole.fingerprint == in_parts.fingerprint
    assert "encoding" in capfd.readouterr().err


def test_text_is_kept_for_sampling_and_leaves_room(data, tokenizers):
    plain, sampler = ids_of_text(data, tokenizers), SubwordSampler(tokenizers, 0.1)
    for corpus in (
        ids_of_text(data, tokenizers, sampler),
        ids_of_pairs(PAIRS, tokenizers, sampler),
    ):
        texts = [(corpus.source.text(i), corpus.target.text(i)) for i in range(len(PAIRS))]
        assert texts == PAIRS
        assert same(corpus, plain)
        assert (corpus.source.lengths >= plain.source.lengths).all()
        assert corpus.source.lengths.sum() > plain.source.lengths.sum()


@pytest.mark.parametrize("damage", ["changed", "wrong meta"])
def test_a_damaged_entry_is_replaced(data, tokenizers, damage):
    """What every staged folder notices is in tests/test_paths.py."""
    first = ids_of_text(data, tokenizers)
    expected = [first.source[i].copy() for i in range(len(first))]
    folder = folder_of(data, tokenizers)
    ids, meta = folder / "source_ids.bin", folder / RECORD
    if damage == "changed":
        ids.write_bytes(ids.read_bytes()[:-2] + b"\7\0")
    else:
        meta.write_text(json.dumps(json.loads(meta.read_text()) | {"known": {"arrays": {}}}))
    assert read_entry(folder) is None
    again = ids_of_text(data, tokenizers)
    assert all(np.array_equal(again.source[i], e) for i, e in enumerate(expected))


def test_a_start_that_was_stopped_is_continued(data, tmp_path, tokenizers, monkeypatch):
    stops, encoded = [3], []
    monkeypatch.setattr(ids_module, "PART_PAIRS", 20)

    def encode(*args):
        encoded.append(args)
        if stops == [len(encoded)]:
            raise KeyboardInterrupt
        return encode_pairs(*args)

    encode_pairs = ids_module.Encoder.encoded
    monkeypatch.setattr(ids_module.Encoder, "encoded", encode)
    with pytest.raises(KeyboardInterrupt):
        ids_of_text(data, tokenizers)
    stops.clear()
    made = ids_of_text(data, tokenizers)
    assert len(encoded) == 3 + 2 + 1  # of four parts two were there; and the arrays of no pairs
    assert same(made, ids_of_pairs(PAIRS, tokenizers))
    assert list(tmp_path.iterdir()) == [folder_of(data, tokenizers)]


def test_a_full_disk_is_one_line(data, tokenizers, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Part, "write", full)
    with pytest.raises(UserError, match="No space left on device.: free some .* data.cache_dir"):
        ids_of_text(data, tokenizers)


def test_pairs_with_an_id_are_counted_once_whatever_the_side():
    corpus = IdCorpus.from_lists([[5, 6], [], [3], [3]], [[7], [3, 9, 3], [3], []])
    assert [corpus.num_with(i) for i in (3, 5, 9, 4)] == [3, 1, 1, 0]
