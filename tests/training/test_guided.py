"""Training with word alignments: from a file to the head that has learned them."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.data import listed
from tests.toy_run import RECIPE, train_command
from transformer_jax.commands.main import main
from transformer_jax.data.alignments import words
from transformer_jax.data.batches import BatchPlan, Stream
from transformer_jax.data.config import BatchConfig, DataConfig, TokenizerConfig
from transformer_jax.data.filters.identical import Identical
from transformer_jax.data.ids import ids_of_text
from transformer_jax.data.mapped_tokenizer import Tags, with_tags
from transformer_jax.data.noise.marks import NoFinalMark
from transformer_jax.data.pipeline import batches
from transformer_jax.data.sources.files import Files
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.data.tokenizer_training import train_tokenizers
from transformer_jax.errors import UserError

PAIRS = generate(5, 60)


@pytest.fixture(scope="module")
def tokenizers():
    return train_tokenizers(TokenizerConfig(vocab_size=400), PAIRS)


def drawn_links(pairs, seed=0):
    """Links between words, some of them many to many; a pair without any."""
    draw = np.random.default_rng(seed)
    found = []
    for source, target in pairs:
        size = len(source.split()), len(target.split())
        found.append(np.argwhere(draw.random(size) < 0.2).tolist())
    found[3] = []
    return found


def write(folder: Path, pairs, links) -> Files:
    path = folder / "train.align"
    lines = (" ".join(f"{s}-{t}" for s, t in each) for each in links)
    path.write_text("".join(f"{line}\n" for line in lines))
    return replace(listed.write(folder, pairs), train_alignment=(str(path),))


def corpus_of(data, tokenizers, folder):
    return ids_of_text(replace(data, cache_dir=str(folder)), tokenizers)


def of_pieces(tokenizers, pair, links):
    """[T, S], by the definition."""
    sources, targets = (words(tokenizers.source, text) for text in pair)
    linked = np.zeros((targets.shape[1] + 1, sources.shape[1] + 1), bool)
    for source, target in links:
        linked[np.ix_(np.append(targets[target], False), np.append(sources[source], False))] = True
    return linked


@pytest.mark.parametrize("reverse", [False, True])
def test_each_pair_of_a_batch_has_the_links_of_its_line(tmp_path, tokenizers, reverse):
    """Also where pairs are held out or left out, and after the cache was written."""
    pairs, links = list(PAIRS), drawn_links(PAIRS)
    pairs[7] = (pairs[7][0], pairs[7][0])
    corpus = tj.Corpus(write(tmp_path, pairs, links), ("en", "de"), reverse=reverse)
    data = DataConfig(corpora=(corpus,), validation_from_train=9, filters=(Identical(),))
    kept = [number for number in range(51) if number != 7]
    config = BatchConfig(tokens=256, max_length=40, num_buckets=2)
    for _ in range(2):
        ids = corpus_of(data, tokenizers, tmp_path)
        assert len(ids) == len(kept)
        plan = BatchPlan(ids.source.lengths, ids.target.lengths, config)
        seen = 0
        for position, batch in zip(
            range(plan.batches_per_epoch), batches(Stream(ids, plan)), strict=False
        ):
            (size, source, target), rows = plan.rows(position)
            assert batch["alignment"].shape == (size, target, source)
            want = np.zeros((size, target, source), bool)
            for place, row in enumerate(rows):
                pair, own = pairs[kept[row]], links[kept[row]]
                if reverse:
                    pair, own = pair[::-1], [link[::-1] for link in own]
                linked = of_pieces(tokenizers, pair, own)
                want[place, : linked.shape[0], : linked.shape[1]] = linked
            np.testing.assert_array_equal(batch["alignment"], want)
            seen += len(rows)
        assert seen == plan.num_pairs > 40


def test_the_cache_knows_the_alignments(tmp_path, tokenizers):
    data = DataConfig(write(tmp_path, PAIRS, drawn_links(PAIRS)))
    first = corpus_of(data, tokenizers, tmp_path / "cache")
    without = DataConfig(replace(data.source, train_alignment=()))
    plain = corpus_of(without, tokenizers, tmp_path / "cache")
    assert plain.links is None and plain.fingerprint != first.fingerprint
    write(tmp_path, PAIRS, drawn_links(PAIRS, seed=1))
    second = corpus_of(data, tokenizers, tmp_path / "cache")
    assert second.fingerprint != first.fingerprint


def test_a_corpus_without_alignments_beside_one_that_has_some(tmp_path, tokenizers):
    source = write(tmp_path, PAIRS, drawn_links(PAIRS))
    other = Files(source.train_source, source.train_target)
    corpora = (tj.Corpus(other, ("en", "de")), tj.Corpus(source, ("en", "de"), tag=""))
    ids = corpus_of(DataConfig(corpora=corpora), tokenizers, tmp_path)
    found = ids.links.padded(np.array([0, 60]), (2, 64, 64))
    assert not found[0].any() and found[1].any()


def test_links_of_words_that_a_noise_took_are_left_out(tmp_path, tokenizers):
    pairs = [("the dog sleeps .", "der Hund schläft .")]
    source = write(tmp_path, pairs, [[(0, 0), (2, 2), (3, 3)]])
    noised = tj.Corpus(source, ("en", "de"), noise=(NoFinalMark(),))
    corpora = (tj.Corpus(source, ("en", "de")), noised)
    ids = corpus_of(DataConfig(corpora=corpora), tokenizers, tmp_path)
    found = ids.links.padded(np.array([1]), (1, 64, 64))[0]
    want = of_pieces(tokenizers, ("the dog sleeps", "der Hund schläft"), [(0, 0), (2, 2)])
    np.testing.assert_array_equal(found[: want.shape[0], : want.shape[1]], want)
    assert found.sum() == want.sum()


def test_a_tag_before_a_text_moves_no_link(tmp_path, tokenizers):
    tagged = replace(tokenizers, source=with_tags(tokenizers.source, Tags(others=("<x>",))))
    source = write(tmp_path, PAIRS, drawn_links(PAIRS))
    corpora = (tj.Corpus(source, ("en", "de")), tj.Corpus(source, ("en", "de"), tag="<x>"))
    ids = corpus_of(DataConfig(corpora=corpora), tagged, tmp_path)
    plain, moved = ids.links.padded(np.array([0, len(PAIRS)]), (2, 64, 64))
    assert ids.source[len(PAIRS)].tolist()[1:] == ids.source[0].tolist()
    np.testing.assert_array_equal(moved[:, 1:], plain[:, :-1])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("0-0 1", "train.align:3: '1' is no link of words: expected such as 0-0 1-2"),
        ("0-0 1–1", "train.align:3: '1–1' is no link"),
        ("99-0", "train.align:3: the link 99-0 is to a source word that is not there"),
        ("0-99", "train.align:3: the link 0-99 is to a target word that is not there"),
        ("0-0 ١-0", "train.align:3: '١-0' is no link"),
    ],
)
def test_a_line_that_is_no_alignment_is_named(tmp_path, tokenizers, line, words):
    source = write(tmp_path, PAIRS, drawn_links(PAIRS))
    path = tmp_path / "train.align"
    lines = path.read_text().splitlines()
    lines[2] = line
    path.write_text("".join(each + "\n" for each in lines))
    with pytest.raises(UserError) as caught:
        corpus_of(DataConfig(source), tokenizers, tmp_path)
    assert words in str(caught.value)


@pytest.fixture
def command(tmp_path):
    """Makes the words of a training in a folder of its own."""
    write(tmp_path, PAIRS, drawn_links(PAIRS))
    (tmp_path / "recipe.py").write_text(RECIPE)
    keys = {
        "data.validation_from_train": "none",
        "data.source.train_alignment": tmp_path / "train.align",
        "model.cross": "full(alignment_head=1)",
        "train.alignment_weight": 0.5,
        "train.steps": 6,
        "train.checkpoint_every": 3,
        "train.log_every": 1,
    }
    flags = [f"--config.{key}={value}" for key, value in keys.items()]
    return lambda name, *more: train_command(tmp_path, tmp_path / name, *flags, *more)


def losses(folder):
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


@pytest.mark.slow  # as other runs, which tests/runs/test_resume.py continues
def test_a_guided_training_is_continued_exactly(command, tmp_path):
    assert main(command("whole")) == 0
    assert main(command("parts", "--config.train.steps=3")) == 0
    assert main(command("parts")) == 0
    whole, parts = (tj.open_run(tmp_path / name) for name in ("whole", "parts"))
    jax.tree.map(np.testing.assert_array_equal, whole.params("latest"), parts.params("latest"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")


@pytest.mark.slow
def test_in_two_parts_with_half_of_the_rows_each_the_sum_is_the_same(command, tmp_path):
    for name, flag in (("accumulated", "train.accumulate"), ("at_once", "batch.row_multiple")):
        flags = f"--config.{flag}=2", "--config.model.dropout_rate=0"
        assert main(command(name, *flags)) == 0
    found = [list(losses(tmp_path / name).values()) for name in ("accumulated", "at_once")]
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_the_head_learns_the_links(tmp_path, command):
    """Here all words come from the first one, which no head finds by itself."""
    links = [[(0, word) for word in range(len(target.split()))] for _, target in PAIRS]
    write(tmp_path, PAIRS, links)
    learning = "--config.train.schedule=constant(learning_rate=1e-2,warmup_steps=10)"
    assert main(command("run", "--config.train.steps=60", learning)) == 0
    found = tj.open_run(tmp_path / "run").translator().align(*map(list, zip(*PAIRS, strict=True)))
    right = sum(len(set(a) & set(b)) for a, b in zip(found, links, strict=True))
    assert right > 0.9 * sum(map(len, links))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config.data.source.train_alignment="], "train.alignment_weight=0.5 needs word alignm"),
        (["--config.train.alignment_weight=none"], "data.source.train_alignment: no head learns"),
        (["--config.model.cross=full"], "train.alignment_weight needs a head that learns"),
        (["--config.model.cross=linear"], "train.alignment_weight needs a head that learns"),
        (["--config.tokenizer.sampling_alpha=0.5"], "and tokenizer.sampling_alpha: links are of"),
        (["--config.model.scan_layers=true"], "and model.scan_layers: a loop over the layers"),
        (["--config.data.source.train_alignment=none.txt"], "none.txt: no such file (data.source"),
        (
            ["--config.data.source.train_alignment=", "--config.train.alignment_weight=none"],
            "model.cross.alignment_head: no head learns",
        ),
        (
            ["--config.data.source.documents=true", "--config.data.blocks=blocks(tokens=32)"],
            "and data.blocks: alignments are of single sentences",
        ),
    ],
)
def test_what_cannot_be_together_is_one_line(command, tmp_path, capsys, flags, words):
    assert main(command("run", *flags)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ") and words in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("count", [59, 61])
def test_a_file_with_another_number_of_lines_is_refused(command, tmp_path, capsys, count):
    path = tmp_path / "train.align"
    path.write_text("0-0\n" * count)
    assert main(command("run")) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"{path}: {count} lines of word alignments for 60 pairs" in error
