import io
import random
from dataclasses import replace

import numpy as np
import pytest
import sentencepiece

from transformer_jax.data.config import TokenizerConfig
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_pair import load_tokenizers, open_tokenizer
from transformer_jax.data.tokenizer_training import train_tokenizer, train_tokenizers, vocabularies
from transformer_jax.errors import UserError
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID

SMALL = TokenizerConfig(vocab_size=330)


def sentences(seed=0, count=400):
    rng = random.Random(seed)
    syllables = ["ka", "lo", "mi", "tür", "stra", "ße", "ben", "ön", "gu", "wer"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(80)]
    return [" ".join(rng.choices(words, k=rng.randint(2, 9))) + "." for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SMALL, sentences())


@pytest.fixture(scope="module")
def bpe():
    return train_tokenizer(replace(SMALL, kind="bpe"), sentences())


@pytest.mark.parametrize(
    "text",
    [
        "tür straße, ben!",
        "Äpfel „in Anführung“ ‚einfach‘ – “double” ‘single’ … ½ ﬁ",
        "e\u0301 is not é",  # NFC and NFD stay as they are
        "日本語 и по-русски 🙂 ok",
        "",
        "<s> </s> <pad> <unk>",
    ],
)
def test_ordinary_text_round_trips_exactly(tokenizer, bpe, text):
    for t in (tokenizer, bpe):
        assert t.decode(t.encode(text)) == text
        assert not set(t.encode(text)) & {PAD_ID, BOS_ID, EOS_ID, UNK_ID}


SPACES = "\t\x0b\x0c\x85\xa0\u1680\u2000\u2009\u2028\u2029\u202f\u205f\u3000"
INVISIBLE = "\xad\u061c\u200b\u200e\u200f\u202a\u202e\u2060\u2066\u2069\ufeff\x07\x7f\x9f"


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_what_no_reader_sees_changes_no_id(kind, tokenizer, bpe):
    t = {"unigram": tokenizer, "bpe": bpe}[kind]
    plain, text = t.encode("ka lo tür"), "ka lo tür"
    for space in SPACES:
        assert t.encode(text.replace(" ", space)) == plain, hex(ord(space))
        assert t.encode(text.replace(" ", f" {space}") + space) == plain, hex(ord(space))
    for mark in INVISIBLE:
        assert t.encode(mark.join(text) + mark) == t.encode(mark + text) == plain, hex(ord(mark))
    assert t.encode("  ka   lo  tür ") == plain
    for kept in ("a\u200db", "a\u200cb", "m²", "½", "Ａ", "ﬁ"):
        assert t.decode(t.encode(kept)) == kept


def test_without_normalization_text_stays_as_it_is():
    text = "tab\there\xa0and\xadthere"
    t = train_tokenizer(replace(SMALL, normalization="identity"), sentences())
    assert t.decode(t.encode(text)) == text
    clean = train_tokenizer(SMALL, sentences())
    assert clean.encode_batch(sentences(1)) == t.encode_batch(sentences(1))


def test_decode_ignores_padding_and_stops_at_eos(tokenizer):
    ids = tokenizer.encode("ka lo")
    padded = np.array([BOS_ID, *ids, EOS_ID, *ids, PAD_ID], np.int32)
    assert tokenizer.decode(padded) == "ka lo"
    assert tokenizer.decode([EOS_ID]) == tokenizer.decode([]) == ""


def test_without_byte_fallback_unknown_characters_are_unk():
    t = train_tokenizer(replace(SMALL, vocab_size=80, byte_fallback=False), sentences())
    assert UNK_ID in t.encode("日")
    assert "⁇" in t.decode(t.encode("日"))


def test_training_is_deterministic(tokenizer):
    assert train_tokenizer(SMALL, sentences()).model == tokenizer.model
    few = replace(SMALL, max_training_sentences=200, vocab_size=300)
    first, second = (train_tokenizer(few, sentences()) for _ in range(2))
    assert first.model == second.model != tokenizer.model


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_too_large_a_vocabulary_names_a_maximum_that_works(kind):
    config = replace(SMALL, kind=kind, vocab_size=50_000)
    with pytest.raises(UserError, match=r"maximum for this corpus is \d+$") as caught:
        train_tokenizer(config, sentences())
    most = int(str(caught.value).split()[-1])
    assert train_tokenizer(replace(config, vocab_size=most), sentences()).vocab_size == most
    assert "\n" not in str(caught.value)


def test_too_small_a_vocabulary_and_an_empty_corpus():
    with pytest.raises(UserError, match="vocab_size=20 is too small .* at least 2"):
        train_tokenizer(replace(SMALL, vocab_size=20), sentences())
    for nothing in ([], ["", "  "]):
        with pytest.raises(UserError, match="corpus is empty"):
            train_tokenizer(SMALL, nothing)


def test_long_lines_are_learned_from_too():
    """Such as documents, or Thai without spaces: by default SentencePiece drops 4,193 bytes."""
    document = " ".join(sentences(0)[:400])
    assert len(document) > 4192
    assert train_tokenizer(TokenizerConfig(vocab_size=300), [document]).vocab_size == 300


def test_missing_and_foreign_models(tmp_path, tokenizer):
    with pytest.raises(UserError, match="cannot read the tokenizer"):
        open_tokenizer(tmp_path / "none.model")
    with pytest.raises(UserError, match="no tokenizer in"):
        load_tokenizers(tmp_path)
    foreign = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences()), model_writer=foreign, vocab_size=60, minloglevel=2
    )
    with pytest.raises(UserError, match=r"special ids .* expected \(0, 1, 2, 3\)"):
        Tokenizer(foreign.getvalue(), "foreign.model")


def test_train_save_and_load(tmp_path):
    pairs = list(zip(sentences(0), sentences(1), strict=True))
    made = train_tokenizers(SMALL, iter(pairs))
    made.save(tmp_path / "joint")
    assert made.joint and [p.name for p in (tmp_path / "joint").iterdir()] == ["joint.model"]
    assert load_tokenizers(tmp_path / "joint").target.model == made.target.model

    split = train_tokenizers(replace(SMALL, joint=False), pairs)
    split.save(tmp_path / "two")
    assert not split.joint and not load_tokenizers(tmp_path / "two").joint
    assert sorted(p.name for p in (tmp_path / "two").iterdir()) == ["source.model", "target.model"]
    for side, tokenizer in enumerate((split.source, split.target)):  # each from its own text
        alone = train_tokenizer(SMALL, [pair[side] for pair in pairs])
        assert tokenizer.model == alone.model

    def must_not_read():
        raise AssertionError("a given model needs no text")
        yield

    given = replace(SMALL, vocab_size=None, source_model=str(tmp_path / "joint" / "joint.model"))
    copied = train_tokenizers(given, must_not_read())
    assert copied.joint and copied.source.model == made.source.model
    half = train_tokenizers(replace(given, joint=False, vocab_size=330), iter(pairs))
    assert half.source.model == made.source.model and half.target.model == split.target.model


def test_training_settings_that_contradict_a_given_model_are_refused(tmp_path, tokenizer, bpe):
    for name, model in (("unigram", tokenizer), ("bpe", bpe)):
        (tmp_path / f"{name}.model").write_bytes(model.model)
    given = TokenizerConfig(source_model=str(tmp_path / "bpe.model"))
    for key, value, words in (
        ("vocab_size", 500, "bpe.model has 330: set it to none"),
        ("byte_fallback", False, "bpe.model has True: set it to True"),
        ("character_coverage", 0.9, "is trained already: set it to 1.0"),
        ("normalization", "identity", "is trained already: set it to clean"),
    ):
        config = replace(given, **{key: value})
        for use in (vocabularies, lambda c: train_tokenizers(c, [])):
            with pytest.raises(UserError, match=rf"tokenizer\.{key}={value} has .*{words}$"):
                use(config)
    unigram = replace(given, source_model=str(tmp_path / "unigram.model"), kind="bpe")
    with pytest.raises(UserError, match="has unigram: set it to unigram"):
        vocabularies(unigram)
    # Settings that agree with the model are allowed, and any settings where one side is trained.
    assert vocabularies(replace(given, kind="bpe", vocab_size=330))[:2] == (330, 330)
    half = replace(given, joint=False, vocab_size=500, character_coverage=0.9)
    assert vocabularies(half)[:2] == (330, 500)
    assert [vocabularies(c).trained for c in (given, half, TokenizerConfig())] == [330, 500, 8000]


def test_joint_with_two_different_models_is_refused():
    config = replace(SMALL, source_model="a.model", target_model="b.model")
    with pytest.raises(UserError, match="joint"):
        train_tokenizers(config, [])


def test_training_prints_nothing(capfd):
    train_tokenizer(TokenizerConfig(vocab_size=271), ["ab cd ef gh"] * 50 + ["abc de fgh"])
    assert capfd.readouterr() == ("", "")
