"""A run on blocks of sentences, by the commands a user types."""

import io
import itertools
import sys

import jax
import numpy as np
import pytest

from transformer_jax.commands.main import main
from transformer_jax.config import override
from transformer_jax.errors import UserError
from transformer_jax.recipes import load_recipe
from transformer_jax.runs.folder import open_run
from transformer_jax.training.train import train

RECIPE = """
import transformer_jax as tj

config = tj.Config(
    data=tj.DataConfig(
        source=tj.Files(train_source=("{place}/pages.en",), train_target=("{place}/pages.de",),
                        documents=True),
        blocks=(tj.Blocks(tokens=100), tj.Blocks(sentences=(1, 3))),
        validation_from_train=10,
        cache_dir="{place}/cache",
    ),
    tokenizer=tj.TokenizerConfig(vocab_size=400, sampling_alpha=0.5),
    batch=tj.BatchConfig(tokens=512, max_length=128, num_buckets=2),
    model=tj.ModelConfig(d_model=16, d_ff=32, num_heads=2, max_length=128,
                         encoder=tj.StackConfig(num_layers=1),
                         decoder=tj.StackConfig(num_layers=1)),
    train=tj.TrainConfig(steps=6, evaluate_every=3, evaluate_sentences=4, checkpoint_every=3,
                         log_every=2),
    decode=tj.DecodeConfig(method=tj.Greedy(), max_length_factor=0.5, max_length_offset=4),
)
"""


@pytest.fixture(scope="module")
def place(texts):
    """Pages of four sentences."""
    for language in ("en", "de"):
        lines = (texts / f"train.{language}").read_text().splitlines(keepends=True)
        pages = ("".join(lines[i : i + 4]) for i in range(0, len(lines), 4))
        (texts / f"pages.{language}").write_text("\n".join(pages))
    (texts / "recipe.py").write_text(RECIPE.format(place=texts))
    return texts


@pytest.fixture(scope="module")
def trained(place):
    workdir = place / "run"
    command = ["train", f"--config={place / 'recipe.py'}", f"--workdir={workdir}", "--no_progress"]
    assert main(command) == 0
    return workdir


def test_a_run_that_was_stopped_ends_with_the_same_parameters(place, trained, tmp_path):
    config = load_recipe(place / "recipe.py")
    stops = itertools.count(1)
    train(config, tmp_path / "run", should_stop=lambda: next(stops) == 2)
    assert open_run(tmp_path / "run").checkpoints() == [2]
    train(config, tmp_path / "run")
    one, other = (open_run(folder).params("latest") for folder in (trained, tmp_path / "run"))
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_the_log_counts_blocks(place, trained):
    sentences = len((place / "train.en").read_text().splitlines()) - 10
    log = (trained / "log.txt").read_text()
    assert f"1:en-de: {sentences} pairs; filters" in log
    (count,) = [line.split(" training blocks")[0].split()[-1] for line in log.splitlines()
                if " training blocks" in line]  # fmt: skip
    ones, threes = sentences, -(-sentences // 4) * 2
    assert ones + threes < int(count) <= 2 * ones + threes


def test_other_blocks_are_another_run(place, trained):
    config = load_recipe(place / "recipe.py")
    for key, value, message in (
        ("data.blocks", "blocks(tokens=90)", "holds a run with another config"),
        ("data.source.documents", "false", "data.blocks: the source of en-de does not tell"),
    ):
        with pytest.raises(UserError, match=message):
            train(override(config, {key: value}), trained)


def test_no_separator_is_in_the_translation_of_a_line(trained, monkeypatch, capfdbinary):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the dog <sep> sees\n\n")))
    assert main(["translate", f"--workdir={trained}"]) == 0
    out = capfdbinary.readouterr().out.decode().splitlines()
    assert len(out) == 2 and not any("<sep>" in line for line in out)
    tokenizer = open_run(trained).tokenizers().target
    assert tokenizer.separator == 399
