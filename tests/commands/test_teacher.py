"""Training with a teacher: the commands of a user, what they write, and what they refuse."""

import shutil

import numpy as np
import pytest

from tests.toy_run import RECIPE, train_command
from transformer_jax.commands.main import main
from transformer_jax.models.paths import by_path
from transformer_jax.runs.folder import open_run


@pytest.fixture(scope="module")
def place(texts, toy_run):
    """With a teacher, and a training that it stopped half-way, in `parts`."""
    (texts / "recipe.py").write_text(RECIPE)
    shutil.copytree(toy_run, texts / "teacher")
    assert main(learning(texts, "parts", "--config.train.steps=2")) == 0
    return texts


def learning(place, run, *flags, teacher="teacher", options="weight=0.8"):
    named = f"--config.train.teacher=word_level(run={place / teacher}, {options})"
    few = ("--config.train.steps=4", "--config.train.evaluate_sentences=1")
    return train_command(place, place / run, named, *few, *flags)


def losses(run):
    return [record["loss"] for record in open_run(run).metrics() if "loss" in record]


def test_a_teacher_changes_the_loss_and_a_stop_changes_nothing(place, toy_run):
    shutil.copytree(place / "parts", place / "continued")
    assert main(learning(place, "whole")) == main(learning(place, "continued")) == 0
    alone, whole, parts = map(losses, (toy_run, place / "whole", place / "continued"))
    assert whole == parts and len(whole) == 2
    assert min(abs(one - other) for one, other in zip(alone, whole, strict=False)) > 1e-3
    one, other = (
        by_path(open_run(place / name).params("latest")) for name in ("whole", "continued")
    )
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
def test_what_does_not_fit_is_one_line(place, flags, options, message, refused):
    assert message in refused(learning(place, "refused", *flags, options=options))
    assert not (place / "refused" / "checkpoints").exists()


def test_a_teacher_that_is_missing_or_another_one_is_named(place, refused):
    line = refused(learning(place, "refused", teacher="nobody"))
    assert f"train.teacher.run={place / 'nobody'}" in line
    for manifest in (place / "teacher" / "checkpoints").glob("*/manifest.json"):
        manifest.write_text(manifest.read_text() + "\n")  # another one in the same place
    line = refused(learning(place, "parts", "--config.train.steps=4"))
    assert "the teacher changed since this run was saved" in line
