"""Training with a teacher: the commands of a user, what they write, and what they refuse."""

import shutil

import numpy as np
import pytest

from tests.toy_run import RECIPE, train_command
from transformer_jax.commands.main import main
from transformer_jax.models.paths import by_path
from transformer_jax.runs.folder import open_run

QUICK = ["--config.train.evaluate_sentences=1", "--config.train.log_every=1"]


@pytest.fixture(scope="module")
def place(texts, toy_run):
    (texts / "recipe.py").write_text(RECIPE)
    shutil.copytree(toy_run, texts / "teacher")
    return texts


def learn(place, run, *flags, teacher="teacher", options="weight=0.8"):
    named = f"--config.train.teacher=word_level(run={place / teacher}, {options})"
    return main(train_command(place, place / run, named, *QUICK, *flags))


def losses(run):
    return [record["loss"] for record in open_run(run).metrics() if "loss" in record]


def test_a_teacher_changes_the_loss_and_a_stop_changes_nothing(place):
    assert main(train_command(place, place / "alone", *QUICK, "--config.train.steps=4")) == 0
    assert learn(place, "whole", "--config.train.steps=4") == 0
    assert learn(place, "parts", "--config.train.steps=2") == 0
    assert learn(place, "parts", "--config.train.steps=4") == 0
    alone, whole, parts = (losses(place / name) for name in ("alone", "whole", "parts"))
    assert whole == parts and len(whole) == 4
    assert min(abs(one - other) for one, other in zip(alone, whole, strict=True)) > 1e-3
    one, other = (by_path(open_run(place / name).params("latest")) for name in ("whole", "parts"))
    for path in one:
        np.testing.assert_array_equal(one[path], other[path])


@pytest.mark.parametrize(
    ("flags", "options", "message"),
    [
        ((), "pieces=5000", "train.teacher.pieces=5000: there are only 4"),
        (("--config.tokenizer.vocab_size=380",), "weight=0.5", "the source tokenizer of this run"),
        (
            ("--config.model.max_length=128", "--config.batch.max_length=128"),
            "weight=0.5",
            "it reads at most 64 pieces, and batch.max_length=128",
        ),
        ((), "weight=1.5", "train.teacher"),
    ],
)
def test_what_does_not_fit_is_one_line(place, flags, options, message, capsys):
    assert learn(place, "refused", *flags, options=options) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not (place / "refused" / "checkpoints").exists()


def test_a_teacher_that_is_missing_or_another_one_is_named(place, capsys):
    assert learn(place, "refused", teacher="nobody") == 2
    assert f"train.teacher.run={place / 'nobody'}" in capsys.readouterr().err.splitlines()[-1]
    shutil.copytree(place / "teacher", place / "other")
    assert learn(place, "student", "--config.train.steps=2", teacher="other") == 0
    shutil.rmtree(place / "other")
    assert main(train_command(place, place / "other", "--config.train.seed=1")) == 0
    assert learn(place, "student", "--config.train.steps=4", teacher="other") == 2
    assert "the teacher changed since this run was saved" in capsys.readouterr().err
