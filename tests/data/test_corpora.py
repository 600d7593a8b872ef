"""Several corpora: how often each is seen, their directions and tags, and what is held out."""

from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tests.data.listed import write
from tests.data.test_batches import epoch_rows
from tests.data.test_tokenizer import sentences
from transformer_jax.config import Config, from_json, override, to_json
from transformer_jax.data.batches import BatchPlan
from transformer_jax.data.config import BatchConfig, Corpus, DataConfig, TokenizerConfig
from transformer_jax.data.filters.review import pairs_used
from transformer_jax.data.ids import ids_of_text
from transformer_jax.data.language_tags import tags_of, towards
from transformer_jax.data.mapped_tokenizer import (
    MappedTokenizer,
    Vocabulary,
    find_tag,
    mapped_tokenizer,
)
from transformer_jax.data.noise.case import UpperCase
from transformer_jax.data.noise.typos import Typos
from transformer_jax.data.sources.base import Split
from transformer_jax.data.sources.files import Files
from transformer_jax.data.sources.grammar import Grammar
from transformer_jax.data.sources.tfds import Tfds
from transformer_jax.data.splits import (
    directions_with,
    fingerprint,
    has_split,
    read_pairs,
    resolve,
    visit_rates,
)
from transformer_jax.data.tokenizer_pair import Tokenizers, load_tokenizers
from transformer_jax.data.tokenizer_training import (
    tokenizers_of_text,
    train_tokenizers,
    vocabularies,
)
from transformer_jax.errors import UserError

PLAN = BatchConfig(tokens=200, max_length=40, num_buckets=4, seed=5)
SIZES, RATES = (100, 300, 40), (2.0, 0.3, 1.0)
TOKENIZER = TokenizerConfig(vocab_size=340)


def lengths(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(2, 20, (2, count))


def plan_of(rates: tuple[float, ...]) -> BatchPlan:
    return BatchPlan(*lengths(sum(SIZES)), PLAN, corpora=list(zip(SIZES, rates, strict=True)))


@pytest.fixture(scope="module")
def plan() -> BatchPlan:
    return plan_of(RATES)


def corpus_of(rows: list[int]) -> Counter[int]:
    return Counter(np.searchsorted(np.cumsum(SIZES), rows, side="right").tolist())


def test_each_corpus_has_its_share_of_every_epoch(plan: BatchPlan) -> None:
    for epoch in (0, 1, 7):
        counts = corpus_of(sum(epoch_rows(plan, epoch), []))
        for number, (size, rate) in enumerate(zip(SIZES, RATES, strict=True)):
            assert abs(counts[number] - size * rate) <= len(plan.shapes)  # rounded in each shape
        assert sum(counts.values()) == plan.num_rows


def test_all_pairs_of_a_corpus_are_seen_equally_often(plan: BatchPlan) -> None:
    counts: Counter[int] = Counter()
    for epoch in range(20):
        counts.update(sum(epoch_rows(plan, epoch), []))
    source, target = lengths(sum(SIZES))
    begin = 0
    for size, rate in zip(SIZES, RATES, strict=True):
        seen = np.array([counts[row] for row in range(begin, begin + size)])
        assert seen.min() > 0 and abs(seen.mean() - 20 * rate) < 1
        for shape in plan.shapes:  # exactly so within a shape
            fits = (source[begin : begin + size] <= shape[1]) & (
                target[begin : begin + size] <= shape[2]
            )
            assert seen[fits].max() - seen[fits].min() <= 20 * rate
        begin += size
    once = BatchPlan(*lengths(100), PLAN, corpora=[(100, 2.0)])
    assert set(Counter(sum(epoch_rows(once, 0), [])).values()) == {2}
    half = BatchPlan(*lengths(2000), PLAN, corpora=[(2000, 0.5)])
    twice = Counter(sum(epoch_rows(half, 0) + epoch_rows(half, 1), []))
    assert max(twice.values()) <= 2 and len(twice) >= 2000 - len(half.shapes)


def test_the_weights_are_part_of_the_fingerprint(plan: BatchPlan) -> None:
    others = [(2.0, 0.3, 2.0), (2.0, 0.5, 1.0), (1.0, 0.3, 1.0)]
    prints = {plan.fingerprint, *(plan_of(rates).fingerprint for rates in others)}
    assert len(prints) == 4


def test_shares_are_those_of_the_rows(plan: BatchPlan) -> None:
    rows = [int(row) for position in (3, 4, 5) for row in plan.rows(position)[1]]
    expected = [corpus_of(rows)[number] / len(rows) for number in range(3)]
    np.testing.assert_allclose(plan.shares(range(3, 6)), expected)


def test_rates_follow_weights_and_temperature() -> None:
    corpora = tuple(Corpus(Grammar(), ("en", "de"), weight=weight) for weight in (1.0, 3.0))
    data = DataConfig(corpora=corpora)
    assert visit_rates(data, (800, 200)) == [1.0, 3.0]
    rates = visit_rates(replace(data, temperature=2.0), (800, 200))
    np.testing.assert_allclose(rates, [1.0, 6.0])  # so rows are as weight * sqrt(pairs)


@pytest.fixture
def three(tmp_path: Path) -> DataConfig:
    """English-German both ways, English-French, and back-translated English-German text."""
    texts = list(islice(sentences(), 400))
    english, german, french, back = (texts[i : i + 90] for i in (0, 90, 180, 270))
    en_de = write(tmp_path, zip(english, german, strict=True), name="a")
    en_fr = write(tmp_path, zip(english, french, strict=True), ("en", "fr"), "b")
    made = write(tmp_path, zip(back, german, strict=True), name="c")
    return DataConfig(
        corpora=(
            Corpus(en_de),
            Corpus(en_de, reverse=True, weight=0.5),
            Corpus(en_fr),
            Corpus(made, tag="<bt>", weight=2.0),
        ),
        validation_from_train=10,
        cache_dir=str(tmp_path / "cache"),
    )


def test_directions_and_what_is_held_out(three: DataConfig) -> None:
    assert three.languages == ("en", "de")
    assert three.directions == (("en", "de"), ("de", "en"), ("en", "fr"))
    assert directions_with(three, "validation") == list(three.directions)
    assert not directions_with(three, "test")
    whole = list(three.corpora[0].source.pairs("train", ("en", "de")))
    back = list(three.corpora[3].source.pairs("train", ("en", "de")))
    assert list(read_pairs(three, "validation")) == whole[-10:]
    assert list(read_pairs(three, "train", ("en", "de"))) == whole[:-10] + back
    swapped = [(target, source) for source, target in whole]
    assert list(read_pairs(three, "validation", ("de", "en"))) == swapped[-10:]
    assert list(read_pairs(three, "train", ("de", "en"))) == swapped[:-10]
    with pytest.raises(UserError, match="no validation set of de-fr: the directions of the text"):
        list(read_pairs(three, "validation", ("de", "fr")))
    assert not has_split(three, "validation", ("de", "fr"))


def test_examples_are_those_of_all_sources() -> None:
    grammar, files = Grammar(), Files(train_source=("a.en",), train_target=("a.de",))
    corpora = Corpus(files), Corpus(grammar, languages=("en", "de"))
    assert DataConfig(corpora=corpora).examples("de") == grammar.examples("de")


@pytest.fixture
def same(tmp_path: Path) -> dict[str, Files]:
    """The same 20 pairs, named and read in several ways; and others."""
    numbered = [(f"word {i}", f"Wort {i}") for i in range(20)]
    plain = write(tmp_path, numbered, name="a")
    other = write(tmp_path, [("another -1", "anderes -1")] * 9, name="b")
    french = write(tmp_path, [(source, "mot") for source, _ in numbered], ("en", "fr"), "f")
    for language in ("en", "de"):
        (tmp_path / f"link.{language}").symlink_to(tmp_path / f"a.{language}")
        (tmp_path / f"copy.{language}").write_bytes((tmp_path / f"a.{language}").read_bytes())
    (tmp_path / "a.al").write_text("0-0 1-1\n" * 20)
    link, copy = (
        Files((f"{tmp_path}/{name}.en",), (f"{tmp_path}/{name}.de",)) for name in ("link", "copy")
    )
    both = (other.train_source + plain.train_source, other.train_target + plain.train_target)
    return {
        "plain": plain,
        "aligned": replace(plain, train_alignment=(f"{tmp_path}/a.al",)),
        "documents": replace(plain, documents=True),
        "swapped": Files(plain.train_target, plain.train_source),
        "link": link,
        "copy": copy,
        "both": Files(*both),
        "french": replace(french, train_source=plain.train_source),
        "twice": Files(plain.train_source + copy.train_source, plain.train_target * 2),
        "validated": replace(
            link, validation_source=other.train_source, validation_target=other.train_target
        ),
    }


def of_files(same: dict[str, Files], *corpora: Corpus | str) -> DataConfig:
    """Corpora that hold out five pairs; their sources are names of `same`."""
    made = (Corpus(each) if isinstance(each, str) else each for each in corpora)
    named = (
        replace(each, source=same[each.source], languages=each.languages or ("en", "de"))
        for each in made
    )
    return resolve(DataConfig(corpora=tuple(named), validation_from_train=5))


def numbers(data: DataConfig, split: Split) -> set[int]:
    """What the pairs of all directions end with."""
    pairs = (pair for each in data.directions for pair in read_pairs(data, split, each))
    return {int(text.split()[1]) for pair in pairs for text in pair}


@pytest.mark.parametrize(
    "corpora",
    [
        ("plain", Corpus("plain", reverse=True)),
        ("aligned", Corpus("plain", noise=(UpperCase(),))),
        ("plain", Corpus("aligned", tag="<x>")),
        ("documents", Corpus("documents", tag="<x>")),
        ("plain", Corpus("swapped", ("de", "en"), reverse=True, tag="<bt>")),
        ("plain", Corpus("swapped", ("de", "en"))),
        (Corpus("link", tag="<x>"), "plain"),
        ("plain", Corpus("copy", tag="<x>")),
        ("both", Corpus("both", tag="<x>")),
    ],
)
def test_no_corpus_trains_on_what_is_held_out_of_the_same_files(same, corpora) -> None:
    """Whatever they are named, and however another corpus uses them."""
    data = of_files(same, *corpora)
    assert numbers(data, "validation") == set(range(15, 20))
    assert numbers(data, "train") - {-1} == set(range(15))
    for each in data.directions:
        whole = fingerprint(replace(data, validation_from_train=None), "train", each)
        assert fingerprint(data, "train", each) != whole


@pytest.mark.parametrize(
    "corpora",
    [
        ("documents", Corpus("plain", tag="<x>")),
        ("plain", Corpus("both", tag="<x>")),
        ("both", Corpus("plain", tag="<x>")),
    ],
)
def test_corpora_that_share_some_files_with_held_out_pairs_are_refused(same, corpora) -> None:
    data = of_files(same, *corpora)
    for read in (fingerprint, read_pairs):
        with pytest.raises(UserError, match=r"held out, and corpus \d:en-de(<x>)? would train on"):
            list(read(data, "train"))
        assert list(read(replace(data, validation_from_train=None), "train"))


def test_a_corpus_that_has_a_file_twice_holds_nothing_out(same) -> None:
    data = of_files(same, "twice")
    for split in ("train", "validation"):
        with pytest.raises(UserError, match="corpus .*en-de has a file twice"):
            list(read_pairs(data, split))
    assert len(list(read_pairs(replace(data, validation_from_train=None), "train"))) == 40


def test_a_given_validation_set_stays_where_others_hold_out_its_training_text(same) -> None:
    data = of_files(same, "validated", Corpus("plain", reverse=True))
    assert set(read_pairs(data, "validation")) == {("another -1", "anderes -1")}
    assert numbers(data, "train") == set(range(15))


def test_another_translation_of_the_same_file_is_another_text(same) -> None:
    data = of_files(same, Corpus("plain", tag="<x>"), Corpus("french", ("en", "fr")))
    assert len(list(read_pairs(data, "train", ("en", "de")))) == 20
    assert len(list(read_pairs(data, "train", ("en", "fr")))) == 15


def test_sources_begin_with_the_tags_of_their_corpus(three: DataConfig, tmp_path: Path) -> None:
    data = resolve(three)
    tokenizers = tokenizers_of_text(TOKENIZER, data)
    ids = ids_of_text(data, tokenizers)
    pairs = list(pairs_used(data))
    assert ids.sizes == (80, 80, 80, 90)
    assert tokenizers.source.vocab_size == tokenizers.target.vocab_size == 340
    assert vocabularies(TOKENIZER, tags_of(data))[:2] == (340, 340)
    place = tokenizers.source.pieces(range(340)).index
    expected = [[place("<2de>")], [place("<2en>")], [place("<2fr>")]]
    expected.append([place("<bt>"), place("<2de>")])
    begin, found = 0, []
    for size, tags in zip(ids.sizes, expected, strict=True):
        for row in range(begin, begin + size):
            source, target = pairs[row]
            plain = towards(tokenizers, None, "en").source.encode(source)[1:]
            assert ids.source[row].tolist() == [*tags, *plain]
            assert ids.target[row].tolist() == tokenizers.target.encode(target)
            found.append(tags)
        begin += size
    # The default is the direction of the first corpus, and a text can name another.
    assert tokenizers.source.encode("tür")[0] == place("<2de>")
    assert tokenizers.source.encode("<2fr> tür")[0] == place("<2fr>")
    assert tokenizers.source.decode(tokenizers.source.encode("<bt><2fr> tür")) == "tür"
    tokenizers.save(tmp_path / "tokenizer")
    loaded = load_tokenizers(tmp_path / "tokenizer")
    assert loaded.source.encode("tür") == tokenizers.source.encode("tür")
    assert find_tag(loaded.source, "fr") == place("<2fr>") and find_tag(loaded.source, "es") is None


def test_the_cache_of_ids_knows_tags_and_directions(three: DataConfig) -> None:
    one = DataConfig(three.corpora[0].source)
    same = DataConfig(corpora=(Corpus(one.source),))
    assert fingerprint(same, "train") == fingerprint(one, "train")
    changed = [
        same,
        DataConfig(corpora=(Corpus(one.source, reverse=True),)),
        DataConfig(corpora=(Corpus(one.source), Corpus(one.source))),
        three,
    ]
    assert len({fingerprint(data, "train") for data in changed}) == len(changed)
    tokenizers = train_tokenizers(TOKENIZER, read_pairs(one, "train"), tags_of(three))
    names = set()
    for tag in ("<bt>", ""):
        tagged = replace(same, corpora=(Corpus(one.source, tag=tag),), cache_dir=three.cache_dir)
        ids_of_text(tagged, tokenizers)
        names |= {path.name for path in Path(three.cache_dir or "").iterdir()}
    assert len(names) == 2


def test_given_tokenizers_are_extended_by_what_they_lack(three: DataConfig, tmp_path: Path) -> None:
    pairs = list(read_pairs(three, "train"))
    train_tokenizers(TOKENIZER, pairs).save(tmp_path)
    given = TokenizerConfig(source_model=str(tmp_path / "joint.model"))
    tags = tags_of(three)
    made = train_tokenizers(given, [], tags)
    assert vocabularies(given, tags)[:2] == (344, 344)
    assert made.source.pieces(range(340, 344)) == ["<2de>", "<2en>", "<2fr>", "<bt>"]
    made.save(tmp_path / "tagged")
    again = TokenizerConfig(source_model=str(tmp_path / "tagged" / "joint.model"))
    assert train_tokenizers(again, [], tags).source.model == made.source.model
    with pytest.raises(UserError, match="and 4 tags take 264"):
        vocabularies(TokenizerConfig(vocab_size=263), tags)


def test_the_tags_of_published_models_are_found(three: DataConfig) -> None:
    plain = train_tokenizers(TOKENIZER, list(read_pairs(three, "train"))).source
    pieces = tuple(plain.pieces(range(plain.vocab_size)))
    listed, marked = "deu_Latn", ">>fra<<"
    vocabulary = Vocabulary((*pieces, listed, marked), tags=(340,), marked_tags=True)
    source = MappedTokenizer(mapped_tokenizer(plain.model, vocabulary))
    found = [find_tag(source, code) for code in ("deu_Latn", "fra", "de", "tür")]
    assert found == [340, 341, None, None]
    french = towards(Tokenizers(source, plain), "eng", "fra")
    ids = [341, *plain.encode("tür")]
    assert french.source.encode("tür") == source.encode(">>fra<< tür") == ids
    assert french.target is plain


def test_a_language_without_a_tag_is_refused(three: DataConfig) -> None:
    pairs = list(read_pairs(three, "train"))
    tagged = train_tokenizers(TOKENIZER, pairs, tags_of(three))
    with pytest.raises(UserError, match="target_language=es: the model has no tag .* has <2"):
        towards(tagged, "en", "es")
    with pytest.raises(UserError, match="target_language=es: .* it has none"):
        towards(train_tokenizers(TOKENIZER, pairs), None, "es")


def test_corpora_have_a_flag_and_are_stored() -> None:
    text = (
        "corpus(source=files(train_source='a.en,b.en',train_target='a.de,b.de'),weight=2),"
        "corpus(source=grammar,languages='en,de',reverse=true,tag=<bt>,"
        "noise='upper_case,typos(share=0.5)')"
    )
    config = override(Config(), {"data.corpora": text, "data.temperature": "5"})
    files = Files(train_source=("a.en", "b.en"), train_target=("a.de", "b.de"))
    noise = (UpperCase(), Typos(share=0.5))
    back = Corpus(Grammar(), ("en", "de"), reverse=True, tag="<bt>", noise=noise)
    assert config.data.corpora == (Corpus(files, weight=2), back)
    assert from_json(to_json(config), "x") == config


def test_mistakes_are_named() -> None:
    grammar = Corpus(Tfds("opus"))
    with pytest.raises(UserError, match=r"data\.corpora: corpus 1: name its two languages"):
        resolve(DataConfig(corpora=(grammar,)))
    named = DataConfig(corpora=(grammar,), source_language="en", target_language="de")
    assert resolve(named).parts[0].direction == ("en", "de")
    with pytest.raises(UserError, match=r"data\.source and data\.corpora are both given"):
        resolve(replace(named, source=Grammar()))
