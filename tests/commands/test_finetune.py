"""A trained run is fine-tuned on other text, by the commands of docs/usage.md."""

import shutil

import jax
import numpy as np
import pytest

from tests.pages import commands
from tests.toy_run import FEW, text_flags
from transformer_jax.commands.main import main, parse
from transformer_jax.commands.recipe_flags import recipe_of
from transformer_jax.config import Config, differences
from transformer_jax.data.sources.files import Files
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.models.lora import Lora, NoAdapter
from transformer_jax.models.paths import by_path
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.runs.folder import open_run
from transformer_jax.runs.pretrained import check_named, open_named, starting_from

SESSION, OTHER_CHECKPOINT = (
    [one for one in commands("docs/usage.md") if any(name in word for word in one)]
    for name in ("runs/medical", "latest")
)
SMALL = [*FEW, "--config.data.cache_dir=cache", "--config.train.log_every=1"]
# Without a validation set nothing is translated or drawn.
ONLY_STEPS = ["--config.data.validation_from_train=none", "--config.train.early_stopping=none"]


@pytest.fixture(scope="module")
def place(texts, toy_run):
    """A folder with a trained run in runs/mine and other text: medical.en and medical.de."""
    shutil.copytree(toy_run, texts / "runs" / "mine")
    for language, lines in zip(("en", "de"), zip(*generate(6, 540), strict=True), strict=True):
        (texts / f"medical.{language}").write_text("".join(f"{line}\n" for line in lines))
    return texts


@pytest.fixture
def here(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def tuning(workdir, *flags, steps):
    """The command that tunes the run."""
    words = ["train", "--config=finetune", f"--workdir={workdir}", *text_flags(".", "medical")]
    start = ["--config.train.init_from=runs/mine", f"--config.train.steps={steps}"]
    return [*words, *SMALL, *ONLY_STEPS, *start, *flags]


def tune(workdir, *flags, steps):
    return main(tuning(workdir, *flags, steps=steps))


def test_the_session_of_the_page(here, command):
    assert [one[0] for one in SESSION] == ["train", "eval", "train", "translate"]
    for words in SESSION:
        small = [*SMALL, "--config.train.steps=3"] if words[0] == "train" else []
        status, out, _ = command(*words, *small, stdin=b"The dog sleeps.\n")
        assert status == 0
    assert out.count("\n") == 1

    mine, tuned, adapted = (
        open_run(f"runs/{name}") for name in ("mine", "medical", "medical-lora")
    )
    # It begins with that run's model, tokenizers and languages, and with its BLEU.
    assert tuned.config.model == mine.config.model
    assert tuned.config.decode == mine.config.decode
    assert tuned.tokenizers().files() == mine.tokenizers().files()
    assert tuned.config.data.languages == ("en", "de")
    assert tuned.config.batch.max_length == mine.config.model.max_length == 64
    assert tuned.config.train.init_from == str(here / "runs" / "mine")
    first = tuned.metrics()[0]
    assert first["step"] == 0 and "validation.bleu" in first

    assert adapted.config.model.adapter == Lora(rank=8)
    changed = by_path(jax.tree.map(lambda a, b: abs(a - b).max(), mine.params(), adapted.params()))
    assert {path for path, most in changed.items() if most} == {
        path for path in changed if path.endswith("/kernel")
    }
    assert max(changed.values()) < 0.1  # a start elsewhere would be further away
    # What other commands and exporters read is an ordinary model.
    assert adapted.model == mine.model and adapted.model.adapter == NoAdapter()


def test_what_is_frozen_is_the_other_runs_to_the_bit_and_a_stop_changes_nothing(here):
    frozen = ("--config.train.frozen=encoder/*", "--config.train.ema_decay=0.9")
    assert tune("whole", *frozen, steps=4) == 0
    assert tune("parts", *frozen, steps=2) == 0
    shutil.move("runs/mine", "runs/away")  # a run that is continued needs its own folder alone
    try:
        assert tune("parts", *frozen, steps=4) == 0
    finally:
        shutil.move("runs/away", "runs/mine")
    whole, parts = (by_path(open_run(name).params("latest")) for name in ("whole", "parts"))
    best = by_path(open_run("runs/mine").params("best"))
    for path in whole:
        np.testing.assert_array_equal(whole[path], parts[path])
        assert (whole[path] == best[path]).all() == path.startswith("encoder/"), path


def test_flags_change_the_model_that_was_taken(here, capsys):
    adapter = "--config.model.adapter=lora(rank=2, targets='*/query/kernel')"
    assert tune("changed", "--config.model.dropout_rate=0.3", adapter, steps=1) == 0
    taken, config = open_run("runs/mine").config.model, open_run("changed").config.model
    assert differences(taken, config) == [
        "adapter: NoAdapter() -> Lora(rank=2, alpha=16.0, targets=('*/query/kernel',))",
        "dropout_rate: 0.1 -> 0.3",
    ]
    messages = capsys.readouterr().err
    assert f"starting with the parameters of {here / 'runs' / 'mine'}, best-step-" in messages
    assert "the model differs from that one's in model.dropout_rate: 0.1 -> 0.3" in messages
    assert f" parameters ({3 * 2 * (16 + 16)} trained) on 1 " in messages  # three queries, rank 2


@pytest.mark.slow
def test_a_run_with_adapters_can_be_tuned_again(here):
    adapter = "--config.model.adapter=lora(rank=8)"
    assert tune("first", adapter, steps=1) == 0
    second = ("--config.train.init_from=first", "--config.train.frozen=*/kernel,*/table")
    assert tune("second", *second, steps=1) == 0
    assert open_run("second").config.model.adapter == NoAdapter()
    first, second = (by_path(open_run(name).params()) for name in ("first", "second"))
    for path in first:
        if path.endswith(("/kernel", "/table")):
            np.testing.assert_array_equal(first[path], second[path])


def test_int8_is_measured_once_and_trained(here, capsys):
    """A stopped run goes on with the factors it has; a run that begins with it has its own."""
    int8 = "--config.model.quantize=int8"
    assert tune("int8", int8, "--config.train.ema_decay=0.9", steps=1) == 0
    assert "the model differs from that one's in model.quantize: NoQu" in capsys.readouterr().err
    once = by_path(open_run("int8").params("latest"))
    assert tune("int8", int8, "--config.train.ema_decay=0.9", steps=3) == 0
    twice = by_path(open_run("int8").params("latest"))
    measured = {path for path in once if path.startswith("alphas/")}
    assert len(measured) == 2 * 6 + 4 + 1
    assert len({float(once[path]) for path in measured}) > len(measured) / 2
    for path in once:
        assert (once[path] == twice[path]).all() == (path in measured), path

    start = "--config.train.init_from=int8"
    assert tune("floats_again", start, "--config.model.quantize=none", steps=1) == 0
    again = by_path(open_run("floats_again").params("latest"))
    assert again.keys() == once.keys() - measured
    assert tune("int8_again", start, steps=1) == 0
    again = by_path(open_run("int8_again").params("latest"))
    assert any(again[path] != once[path] for path in measured)


def test_without_a_text_it_goes_on_with_that_of_the_run(here):
    command = ["train", "--config=finetune", "--workdir=x", "--config.train.init_from=runs/mine"]
    mine = open_run("runs/mine").config.data
    assert recipe_of(parse(command)).config.data == mine
    text = ["--config.data.source.train_source=a", "--config.data.source.train_target=b"]
    data = recipe_of(parse([*command, *text])).config.data
    assert data.source == Files(train_source=("a",), train_target=("b",))
    assert data.validation_from_train == 500 and data.languages == mine.languages


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["train.init_from=runs/none"], "train.init_from={here}/runs/none: no run here"),
        (
            ["tokenizer.vocab_size=320"]
            + [f"tokenizer.{side}_model=none" for side in ("source", "target")]
            + [f"model.{side}_vocab_size=none" for side in ("source", "target")],
            "{here}/runs/mine: the source tokenizer of this run is not the one of that run: leave",
        ),
        (
            ["model.d_ff=48"],
            "{here}/runs/mine: the shape of decoder/blocks_0/feed_forward/down/kernel is (32, 16) "
            "there and (48, 16) here: leave these keys as they are there (model.d_ff: 32 -> 48)",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(here, refused, flags, message):
    line = refused(tuning("refused", *(f"--config.{flag}" for flag in flags), steps=1))
    assert message.format(here=here) in line
    assert not (here / "refused").exists()


def test_another_checkpoint_is_begun_with_by_way_of_a_folder(here, capsys):
    assert [one[0] for one in OTHER_CHECKPOINT] == ["export", "import"]
    for arguments in OTHER_CHECKPOINT:
        assert main(arguments) == 0
    mine = open_run("runs/mine")
    assert mine.select("latest").name != mine.select("best").name
    start = open_named("train.init_from", "runs/latest").params("best", make_mesh(MeshConfig()))
    jax.tree.map(np.testing.assert_array_equal, start, mine.params("latest"))
    check_named(starting_from(Config(), "runs/latest"), mine.tokenizers(), is_new=True)


def test_the_recipe_alone_asks_for_a_run(here, refused):
    assert "train.init_from=" in refused(["train", "--config=finetune", "--workdir=refused"])
