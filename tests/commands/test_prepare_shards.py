"""Text that is prepared in parts: what n shards write, and what a training then reads."""

import gzip
import json
import random
import shutil
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from tests.malformed.harness import contents
from transformer_jax.commands.prepare.shards import (
    Preparation,
    begin,
    learn_tokenizers,
    make_shard,
    merge,
)
from transformer_jax.config import Config
from transformer_jax.data.blocks import Blocks
from transformer_jax.data.config import Corpus, DataConfig, TokenizerConfig
from transformer_jax.data.filters import review
from transformer_jax.data.filters.duplicates import Duplicates, NearDuplicates
from transformer_jax.data.filters.identical import Identical
from transformer_jax.data.filters.lengths import LengthRatio
from transformer_jax.data.filters.review import pairs_used
from transformer_jax.data.ids import ids_of_text
from transformer_jax.data.noise.case import UpperCase
from transformer_jax.data.noise.marks import NoFinalMark
from transformer_jax.data.sampling import SubwordSampler
from transformer_jax.data.sentences import IdCorpus
from transformer_jax.data.sources.files import Files
from transformer_jax.data.sources.prepared import Prepared
from transformer_jax.data.splits import has_split, read_grouped, read_pairs, resolve, visit_rates
from transformer_jax.data.tokenizer_pair import load_tokenizers
from transformer_jax.data.tokenizer_training import sample_of, tokenizers_of_text
from transformer_jax.errors import UserError
from transformer_jax.paths import as_path
from transformer_jax.runs.prepared import with_prepared

SMALL = TokenizerConfig(vocab_size=300)
TINY = TokenizerConfig("bpe", vocab_size=75, byte_fallback=False)
NAMES = ["red", "blue", "green", "gray", "white", "small", "large", "quick", "tired", "wise", "odd"]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """530 pairs in documents of one to three, some of them twice or bad, and a test set."""
    pairs = [
        (
            f"the {NAMES[i % 9]} dogs see {i} {NAMES[i % 11]} boats",
            f"die {NAMES[i % 7]} Hunde sehen {i}",
        )
        for i in range(500)
    ]
    pairs += [*pairs[:9], ("a dog " * 30, "ein Hund"), *pairs[300:320]]
    for side, language in enumerate(("en", "de")):
        lines = (pair[side] + "\n" + "\n" * (i % 5 in (1, 4)) for i, pair in enumerate(pairs))
        (tmp_path / f"train.{language}").write_text("".join(lines))
        (tmp_path / f"test.{language}").write_text("".join(p[side] + "\n" for p in pairs[:5]))
    names = {
        f"{split}_{side}": (f"{tmp_path}/{split}.{language}",)
        for split in ("train", "test")
        for side, language in (("source", "en"), ("target", "de"))
    }
    return Files(**names, documents=True)


def data_of(files: Files, **options: object) -> DataConfig:
    options = {"filters": (LengthRatio(), NearDuplicates()), "validation_from_train": 7} | options
    return resolve(DataConfig(files, "en", "de", **options))  # type: ignore[arg-type]


def prepared_by(
    folder: Path,
    data: DataConfig,
    shards: int = 1,
    tokenizer: TokenizerConfig = SMALL,
    part_pairs: int = 64,
) -> Preparation:
    """Shards made in reverse order, and merged."""
    preparation = Preparation(folder, data, tokenizer, part_pairs)
    begin(preparation)
    learn_tokenizers(preparation)
    for number in reversed(range(shards)):
        make_shard(preparation, number, shards)
    merge(preparation)
    return preparation


def assert_equal(one: IdCorpus, other: IdCorpus) -> None:
    assert one.sizes == other.sizes
    assert one.fingerprint == other.fingerprint
    assert (one.links is None) == (other.links is None)
    for side in ("source", "target"):
        arrays = (getattr(each, side).arrays for each in (one, other))
        first, second = arrays
        assert first.keys() == second.keys()
        for name, values in first.items():
            np.testing.assert_array_equal(values, second[name])


def assert_read_alike(folder: Path, data: DataConfig, tokenizer: TokenizerConfig) -> DataConfig:
    """The config of a training that reads from the folder what it would make of the text."""
    given = DataConfig(prepared=str(folder), blocks=data.blocks)
    config, _ = with_prepared(Config(data=given, tokenizer=tokenizer), None)
    prepared, made = resolve(config.data), []
    for each, learned in ((data, tokenizer), (prepared, config.tokenizer)):
        tokenizers = tokenizers_of_text(learned, each)
        alpha = learned.sampling_alpha
        sampler = SubwordSampler(tokenizers, alpha) if alpha else None
        made.append((tokenizers.files(), ids_of_text(each, tokenizers, sampler)))
    assert made[0][0] == made[1][0]
    assert_equal(made[0][1], made[1][1])
    assert list(pairs_used(data)) == list(pairs_used(prepared))
    (entry,) = (folder / "ids").iterdir()  # nothing was encoded again
    assert prepared.directions == data.directions
    assert [each.tag for each in prepared.parts] == [each.tag for each in data.parts]
    sizes = made[0][1].sizes
    assert visit_rates(prepared, sizes) == visit_rates(data, sizes)
    for direction in data.directions:
        for split in ("validation", "test"):
            assert has_split(prepared, split, direction) == has_split(data, split, direction)
            if has_split(data, split, direction):
                found = list(read_grouped(prepared, split, direction))
                assert found == list(read_grouped(data, split, direction))
    return prepared


def random_text(seed: int, folder: Path) -> tuple[DataConfig, int]:
    """Corpora of short documents, some of whose sentences filters leave out; pairs of a part."""
    draw = random.Random(seed)
    sources = []
    for name in "ab":
        lines: list[list[str]] = [[], []]
        for i in range(40):
            bad, twice = draw.random() < 0.15, draw.random() < 0.1
            pair = [f"{NAMES[i % 11]} {name} {i} .", f"{NAMES[i % 7]} {name.upper()} {i} ."]
            pair = ["a same line"] * 2 if twice else pair[:1] * 2 if bad else pair
            end = [""] * (draw.random() < 0.4)
            for side, text in zip(lines, pair, strict=True):
                side += [text, *end]
        paths = [folder / f"{name}.{language}" for language in ("en", "de")]
        for path, side in zip(paths, lines, strict=True):
            path.write_text("\n".join(side) + "\n")
        train = {"train_source": (str(paths[0]),), "train_target": (str(paths[1]),)}
        test = {key.replace("train", "test"): names for key, names in train.items()}
        sources.append(Files(**train, **(test if draw.random() < 0.5 else {}), documents=True))
    has_blocks = draw.random() < 0.5
    if not has_blocks and draw.random() < 0.5:
        links = "".join(draw.choice(["", "0-0", "0-2 1-1 2-0"]) + "\n" for _ in range(40))
        (folder / "a.align").write_text(links)
        sources[0] = replace(sources[0], train_alignment=(f"{folder}/a.align",))
    corpora = [Corpus(each, ("en", "de"), weight=draw.choice([1, 0.5])) for each in sources]
    if draw.random() < 0.5:
        corpora.append(replace(corpora[0], reverse=True))
    if draw.random() < 0.5:
        corpora.append(replace(draw.choice(corpora), tag="<x>"))
    if draw.random() < 0.5:
        noise = draw.choice([(UpperCase(),), (NoFinalMark(), UpperCase())])
        corpora.append(replace(draw.choice(corpora), noise=noise))
    draw.shuffle(corpora)
    data = DataConfig(
        corpora=tuple(corpora),
        temperature=draw.choice([1.0, 2.0]),
        filters=(Identical(), Duplicates())[: draw.randint(0, 2)],
        blocks=(Blocks(sentences=(2,)), Blocks(tokens=40))[: 2 * has_blocks],
        validation_from_train=draw.choice([None, 3, 5]),
        cache_dir=str(folder / "cache"),
    )
    return resolve(data), draw.choice([5, 16, 1000])


@pytest.mark.parametrize("seed", range(12))
def test_random_texts_are_prepared_as_a_training_reads_them(seed: int, tmp_path: Path) -> None:
    data, part_pairs = random_text(seed, tmp_path)
    tokenizer = replace(TINY, joint=seed % 2 == 0)
    prepared_by(tmp_path / "prepared", data, (1, 3, 20)[seed % 3], tokenizer, part_pairs)
    assert_read_alike(tmp_path / "prepared", data, tokenizer)


@pytest.mark.parametrize("blocks", [(), (Blocks(tokens=40),)])
def test_sampled_segmentations_are_those_of_the_text(
    blocks: tuple[Blocks, ...], files: Files, tmp_path: Path
) -> None:
    tokenizer = replace(SMALL, sampling_alpha=0.2)
    data = data_of(files, cache_dir=str(tmp_path / "cache"), blocks=blocks)
    prepared_by(tmp_path / "prepared", data, 3, tokenizer)
    prepared = assert_read_alike(tmp_path / "prepared", data, tokenizer)
    assert list(read_pairs(prepared, "train")) == list(pairs_used(data))


def test_a_killed_shard_is_made_again(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    data = data_of(files)
    prepared_by(whole, data)
    preparation = Preparation(folder, data, SMALL, part_pairs=64)
    begin(preparation)
    learn_tokenizers(preparation)
    make_shard(preparation, 1, 2)
    from transformer_jax.data import ids as module

    calls: list[int] = []

    def killed(*args: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return encode(*args)  # type: ignore[arg-type]

    encode = module.Encoder.encoded
    monkeypatch.setattr(module.Encoder, "encoded", killed)
    with pytest.raises(KeyboardInterrupt):
        make_shard(preparation, 0, 2)
    with pytest.raises(UserError, match="missing: run that shard again"):
        merge(preparation)
    make_shard(preparation, 0, 2)
    assert len(calls) == 3 + 3  # of five parts two were there
    merge(preparation)
    assert contents(folder) == contents(whole)


def test_marks_are_compared_in_parts(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are where there are too many for one comparison."""
    data = data_of(files, filters=(Duplicates(), LengthRatio()))
    prepared_by(tmp_path / "one", data)
    monkeypatch.setattr(review, "_AT_ONCE", 50)
    prepared_by(tmp_path / "two", data)
    kept = [(tmp_path / each / "corpus_0/kept.bin").read_bytes() for each in ("one", "two")]
    assert kept[0] == kept[1]
    assert kept[0].count(0) == 30 - 7 + 0  # the last seven are held out


def test_what_does_not_belong_together_is_refused(files: Files, tmp_path: Path) -> None:
    data = data_of(files)
    folder = tmp_path / "prepared"
    preparation = Preparation(folder, data, SMALL, 64)
    begin(preparation)
    with pytest.raises(UserError, match="no tokenizer yet: run prepare with --tokenizer"):
        make_shard(preparation, 0, 1)
    learn_tokenizers(preparation)
    with pytest.raises(UserError, match="no shard is finished"):
        merge(preparation)
    with pytest.raises(UserError, match="made with another part_pairs: give the same"):
        begin(preparation._replace(part_pairs=65))
    with pytest.raises(UserError, match="made with another filters, another tokenizer"):
        begin(Preparation(folder, data_of(files, filters=()), TokenizerConfig(vocab_size=310), 64))
    other = Preparation(tmp_path / "other", data, TokenizerConfig(vocab_size=310), 64)
    begin(other)
    learn_tokenizers(other)
    make_shard(other, 0, 1)
    make_shard(preparation, 0, 1)
    part = "corpus_0/part_000002"
    shutil.rmtree(folder / part)
    shutil.copytree(tmp_path / "other" / part, folder / part)
    with pytest.raises(UserError, match=r"part_000002: made with another text, another tokenizer"):
        merge(preparation)
    (tmp_path / "train.en").write_text((tmp_path / "train.en").read_text().replace("boats", "cats"))
    with pytest.raises(UserError, match="made with another text"):
        begin(preparation)


def test_what_is_held_out_and_scored_is_settled(files: Files, tmp_path: Path) -> None:
    """Parts made with a validation set of their own have pairs that another command holds out."""
    (tmp_path / "test.en").rename(tmp_path / "dev.en")
    (tmp_path / "test.de").rename(tmp_path / "dev.de")
    english, german = (f"{tmp_path}/dev.en",), (f"{tmp_path}/dev.de",)
    alone = replace(files, test_source=(), test_target=())
    own = replace(alone, validation_source=english, validation_target=german)
    scored = replace(own, test_source=english, test_target=german)
    preparation = prepared_by(tmp_path / "prepared", data_of(own))
    place = tmp_path / "prepared/corpus_0"
    shutil.copy(place / "validation.jsonl.gz", place / "test.jsonl.gz")  # of nobody knows whom
    merge(preparation)
    assert not Prepared(str(tmp_path / "prepared")).has("test")
    for other, message in (
        (alone, "another text, another validation set: give"),
        (scored, "another test set: give"),
    ):
        with pytest.raises(UserError, match=f"made with {message} the same to"):
            begin(Preparation(tmp_path / "prepared", data_of(other), SMALL, 64))
    (tmp_path / "dev.en").write_text((tmp_path / "dev.en").read_text().replace("boats", "cats"))
    with pytest.raises(UserError, match="made with another validation set: give"):
        begin(Preparation(tmp_path / "prepared", data_of(own), SMALL, 64))


def test_a_given_tokenizer_is_settled_by_its_content(files: Files, tmp_path: Path) -> None:
    data, given = data_of(files), []
    for size in (300, 310):
        folder = tmp_path / str(size)
        prepared_by(folder, data, tokenizer=TokenizerConfig(vocab_size=size))
        model = str(folder / "tokenizer/joint.model")
        given.append(TokenizerConfig(source_model=model))
    folder = tmp_path / "prepared"
    prepared_by(folder, data, tokenizer=given[0])
    for other in (given[1], TokenizerConfig()):
        with pytest.raises(UserError, match="made with another source_model: give"):
            begin(Preparation(folder, data, other, 64))
    shutil.move(tmp_path / "300", tmp_path / "moved")
    moved = replace(given[0], source_model=f"{tmp_path}/moved/tokenizer/joint.model")
    begin(Preparation(folder, data, moved, 64))


def test_a_damaged_folder_is_named(files: Files, tmp_path: Path) -> None:
    folder = tmp_path / "prepared"
    with pytest.raises(UserError, match="not a prepared text, or not whole yet"):
        Prepared(str(folder)).has("train")
    prepared_by(folder, data_of(files))
    source = Prepared(str(folder))
    with pytest.raises(UserError, match="it has 1 corpora, no 1"):
        Prepared(str(folder), 1).has("train")
    text = folder / "corpus_0/part_000001/text.jsonl.gz"
    text.write_bytes(text.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"text\.jsonl\.gz: damaged"):
        list(source.pairs("train", ("en", "de")))
    text.write_bytes(gzip.compress(b""))
    with pytest.raises(UserError, match=r"text\.jsonl\.gz: damaged \(not 64 pairs\)"):
        list(source.pairs("train", ("en", "de")))
    kept = folder / "corpus_0/kept.bin"
    kept.write_bytes(kept.read_bytes()[:-1])
    for _ in ("too short", "missing"):
        with pytest.raises(UserError, match=r"kept\.bin: damaged: run `.* --merge` again"):
            list(source.pairs("train", ("en", "de")))
        kept.unlink(missing_ok=True)
    for damaged in ("[]", "{", json.dumps({"format": 0, "corpora": []})):
        (folder / "merged.json").write_text(damaged)
        with pytest.raises(UserError, match=r"merged\.json: damaged, or of another version"):
            source.has("train")


def test_a_damaged_part_is_not_merged(files: Files, tmp_path: Path) -> None:
    folder = tmp_path / "prepared"
    preparation = prepared_by(folder, data_of(files))
    part = folder / "corpus_0/part_000001"
    ids = part / "source_ids.bin"
    ids.write_bytes(ids.read_bytes()[:9])
    for _ in ("too short", "missing"):
        with pytest.raises(UserError, match="part_000001: damaged: remove it to make it ag"):
            merge(preparation)
        ids.unlink(missing_ok=True)
    shutil.rmtree(part)
    make_shard(preparation, 0, 1)
    text = part / "text.jsonl.gz"
    for damaged in (gzip.compress(b""), text.read_bytes()[:-20], None):
        text.unlink()
        if damaged is not None:
            text.write_bytes(damaged)
        with pytest.raises(UserError, match="part_000001: damaged: remove it to make it ag"):
            merge(preparation)
        text.touch()
    (part / "made_of.json").unlink()
    with pytest.raises(UserError, match="part_000001: damaged: remove it to make it ag"):
        merge(preparation)
    shutil.rmtree(part)
    for damaged in ("", "[]", "{}"):
        (folder / "totals.json").write_text(damaged)
        with pytest.raises(UserError, match=r"totals\.json: damaged .*: run any shard again"):
            merge(preparation)
    (folder / "corpus_0/test.jsonl.gz").unlink()
    make_shard(preparation, 0, 1)
    (folder / "corpus_0/validation.jsonl.gz").unlink()
    with pytest.raises(UserError, match=r"validation\.jsonl\.gz: missing: run any shard again"):
        merge(preparation)
    make_shard(preparation, 1, 2)
    merge(preparation)


def test_a_config_that_does_not_go_with_it_is_refused(files: Files, tmp_path: Path) -> None:
    folder = str(tmp_path / "prepared")
    prepared_by(Path(folder), data_of(files))
    config = Config(data=DataConfig(prepared=folder))
    with_prepared(replace(config, tokenizer=SMALL), None)
    with_prepared(replace(config, data=replace(data_of(files), prepared=folder)), None)
    data = config.data
    for changes, message in (
        ({"data": replace(data, filters=(Duplicates(),))}, r"filters \[.*length_ratio"),
        ({"data": replace(data, source_language="fr")}, r"languages \['en', 'de'\], .* \['fr'"),
        ({"data": replace(data, blocks=(Blocks(tokens=9),))}, "blocks False, and the config has T"),
        ({"data": replace(data_of(files), prepared=data.prepared, temperature=2.0)}, "temperature"),
        ({"data": replace(data, temperature=2.0)}, "temperature 1.0, and the config has 2.0"),
        ({"data": replace(data, validation_from_train=9)}, "validation_from_train 7, and the c"),
        ({"data": replace(data, corpora=(Corpus(files, ("fr", "de")),))}, r"corpora \[\['en', 'd"),
        ({"tokenizer": TokenizerConfig(vocab_size=9)}, "vocab_size=9: .* was prepared with 300"),
        ({"tokenizer": TokenizerConfig(sampling_alpha=0.1)}, "sampling_alpha=0.1: .* with None"),
    ):
        with pytest.raises(UserError, match=message):
            with_prepared(replace(config, **changes), None)


def test_a_large_text_is_sampled_before_it_is_filtered(files: Files, tmp_path: Path) -> None:
    """The same pairs teach the tokenizer, whether all of the text is at hand or read once."""
    few = replace(SMALL, max_training_sentences=300)
    data = data_of(files, cache_dir=str(tmp_path / "cache"))
    preparation = prepared_by(tmp_path / "prepared", data, tokenizer=few)
    sample, learned = sample_of(data, few), tokenizers_of_text(few, data)
    assert len(set(sample)) == len(sample) <= 150 and set(sample) <= set(pairs_used(data))
    made = load_tokenizers(as_path(preparation.folder / "tokenizer"))
    assert learned.files() == made.files()
    assert len(list(chain.from_iterable(sample))) == 2 * len(sample)
