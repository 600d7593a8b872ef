"""From two text files to a scored translation, by the commands a user types."""

import dataclasses
import json
import os
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.toy_run import RECIPE, train_command
from transformer_jax.commands.main import main, parse
from transformer_jax.data.splits import read_pairs
from transformer_jax.data.tokenizer_pair import load_tokenizers
from transformer_jax.parallel.processes import from_first
from transformer_jax.paths import as_path
from transformer_jax.runs.lock import only_run
from transformer_jax.training.loop import Session
from transformer_jax.training.reporter import Reporter


def test_the_run_folder_holds_what_the_readme_says(toy_run):
    held = {p.relative_to(toy_run).as_posix() for p in toy_run.rglob("*")}
    assert {
        "config.json",
        "tokenizer/joint.model",
        "metrics.jsonl",
        "checkpoints/8",
        "checkpoints/4",
        "checkpoints/8/tokenizer/joint.model",
        "checkpoints/8/manifest.json",
        "log.txt",
        "unseen_pieces.json",
        "tensorboard",
    } <= held
    config = json.loads((toy_run / "config.json").read_text())
    assert config["model"]["source_vocab_size"] == 400
    log = (toy_run / "log.txt").read_text()
    for words in (
        "tokenizer: learning",
        "training pairs",
        "train.steps=8 ends within the warm-up",
        "first step done",
        "validation BLEU",
    ):
        assert words in log


def test_words_that_the_text_lacks_are_named_once(toy_run, command):
    run = tj.open_run(toy_run)
    tokenizer = run.tokenizers().source
    sources = [source for source, _ in read_pairs(run.config.data, "train")]
    seen = {piece for ids in tokenizer.encode_batch(sources) for piece in ids}
    assert run.unseen() == set(range(400)) - seen
    word = next(w for w in ("zebra", "Qq", "xyz") if not seen.issuperset(tokenizer.encode(w)))
    text = f"The\nA {word}, a {word}!\n".encode()
    status, _, error = command("translate", f"--workdir={toy_run}", stdin=text)
    assert (status, error) == (0, f"note: line 2: never seen in training: {word}\n")


def test_the_same_command_again_has_nothing_to_do(toy_place, toy_run):
    before = (toy_run / "metrics.jsonl").read_text()
    assert main(train_command(toy_place, toy_run)) == 0
    assert (toy_run / "metrics.jsonl").read_text() == before


def test_a_call_from_python_draws_no_progress_bar(toy_run, capfd):
    tj.train(tj.open_run(toy_run).config, toy_run)
    assert "%|" not in capfd.readouterr().err
    tj.train(tj.open_run(toy_run).config, toy_run, progress=True)
    assert "%|" in capfd.readouterr().err


def test_a_program_trains_what_the_command_trains(toy_place, toy_run, tmp_path):
    sources = tj.Files(
        train_source=(f"{toy_place}/train.en",), train_target=(f"{toy_place}/train.de",)
    )
    recipe = tj.load_recipe(toy_place / "recipe.py")
    data = dataclasses.replace(recipe.data, source=sources)
    run = tj.train(dataclasses.replace(recipe, data=data), tmp_path / "run")
    assert run.checkpoints() == [4, 8] and run.config.model.source_vocab_size == 400
    same = (each.params("8") for each in (run, tj.open_run(toy_run)))
    jax.tree.map(np.testing.assert_array_equal, *same)


def test_inspect_shows_translations_and_draws_the_pictures(toy_run, tmp_path, command):
    run = shutil.copytree(toy_run, tmp_path / "run")
    status, printed, _ = command("inspect", f"--workdir={run}")
    assert status == 0
    assert printed.count("  reference: ") == 4
    for name in ("training", "cross_attention"):
        picture = run / "plots" / f"{name}.png"
        assert f"drew {picture}\n" in printed
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_run_without_a_warm_up_does_not_end_within_it(toy_place, tmp_path, command):
    more = ("--config.train.steps=1", "--config.train.schedule.warmup_steps=0")
    status, _, error = command(*train_command(toy_place, tmp_path / "run", *more))
    assert status == 0 and "warm-up" not in error


def test_a_second_run_in_the_folder_is_refused(toy_place, toy_run, refused):
    held = only_run(as_path(toy_run))
    with ThreadPoolExecutor(1) as another:  # a thread that holds it may enter again
        another.submit(held.__enter__).result()
        line = refused(train_command(toy_place, toy_run))
        another.submit(held.__exit__, None, None, None).result()
    assert f"process {os.getpid()} on " in line


def test_what_differs_is_refused_and_nothing_touched(toy_place, toy_run, tmp_path, refused):
    def content():  # the lock says who held it last, not what was trained
        return {p: p.read_bytes() for p in toy_run.rglob("*") if p.is_file() and p.name != ".lock"}

    lines = (toy_place / "train.en").read_text(encoding="utf-8").splitlines()
    words = lines[7].split()
    words[1], words[2] = words[2], words[1]  # as long as before, in letters and in pieces
    assert lines[7] != " ".join(words)
    lines[7] = " ".join(words)
    changed = tmp_path / "changed.en"
    changed.write_text("\n".join(lines) + "\n", encoding="utf-8")
    before = content()
    for flag, message in (
        ("train.label_smoothing=0.2", "train.label_smoothing: 0.1 -> 0.2"),
        (f"data.source.train_source={changed}", "the training text changed since this run was"),
    ):
        assert message in refused(train_command(toy_place, toy_run, f"--config.{flag}"))
        assert content() == before


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--config.train.stepz=9"], "did you mean --config.train.steps"),
        (["--config.model.num_heads=3"], "d_model=16 is not divisible by model.num_heads=3"),
        (["--config.tokenizer.vocab_size=90000"], "the maximum for this corpus is "),
        (["--config.tokenizer.vocab_size=3000000000"], "must be less than 2147483648"),
        (["--config.data.source.train_source=/nonexistent.en"], "/nonexistent.en"),
        (["--config.mesh.data=3"], "does not fit 1 devices"),
        (["--config.train.schedule=cosine"], "cosine needs learning_rate"),
        (["--config.train.optimizer.weight_decay=0.1"], "adam has no option 'weight_decay'"),
        (["--config.data.source.validation_source=v.en"], "data.source.validation_target 0; give"),
        (["--config.data.source.test_source=t.tsv"], "t.tsv: no such file (data.source.test_so"),
        (
            ["--config.data.validation_from_train=none", "--config.train.early_stopping=3"],
            "train.early_stopping=3 needs a validation set",
        ),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_run(toy_place, tmp_path, refused, more, words):
    assert words in refused(train_command(toy_place, tmp_path / "run", *more))
    assert not (tmp_path / "run" / "config.json").exists()


def test_what_takes_a_reading_of_the_text_is_refused_before_it_is_learned_from(
    toy_place, tmp_path, command, monkeypatch
):
    """Validation files of unequal lengths, and a language whose tokenizer is not there."""
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", False)
    sets = []
    for side, lines in (("source", 12), ("target", 11)):  # more than are used
        (tmp_path / side).write_text("one\n" * lines)
        sets.append(f"--config.data.source.validation_{side}={tmp_path / side}")
    japanese = ["--config.data.target_language=ja"]
    for flags, words in ((sets, "source has 12 lines"), (japanese, "sacrebleu[ja]")):
        status, _, error = command(*train_command(toy_place, tmp_path / "run", *flags))
        assert status == 2 and words in error and "learning" not in error
        assert not (tmp_path / "run").exists()


def test_a_start_that_failed_does_not_block_the_corrected_command(toy_place, tmp_path, monkeypatch):
    started = []

    def fail(session):
        started.append(session.trainer.model)
        raise tj.UserError("no memory")

    monkeypatch.setattr("transformer_jax.training.loop.Session.train", fail)
    run = tmp_path / "run"
    other = ["--config.tokenizer.vocab_size=420", "--config.tokenizer.joint=false"]
    for more in ([], other, []):
        assert main(train_command(toy_place, run, *more)) == 2
        size = json.loads((run / "config.json").read_text())["model"]["source_vocab_size"]
        assert size == started[-1].source_vocab_size == (420 if more else 400)
        names = {"source.model", "target.model"} if more else {"joint.model"}
        assert {p.name for p in (run / "tokenizer").iterdir()} == names
        tokenizers = load_tokenizers(run / "tokenizer")
        assert tokenizers.source.vocab_size == size and tokenizers.joint == (not more)
    assert len(started) == 3


def test_sigterm_saves_and_the_same_command_continues(
    toy_place, toy_run, tmp_path, monkeypatch, command
):
    """A real signal, after the third step; then to the end of the run that had none."""
    log = Reporter.log

    def log_and_signal(self, step, metrics):
        log(self, step, metrics)
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    before = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        with monkeypatch.context() as patch:
            patch.setattr(Reporter, "log", log_and_signal)
            status, _, error = command(*train_command(toy_place, tmp_path / "run"))
        assert status == 143
        assert "stopped and saved; the same command continues the run" in error
        assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["3"]
        assert main(train_command(toy_place, tmp_path / "run")) == 0
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    continued, undisturbed = (tj.open_run(at).params("8") for at in (tmp_path / "run", toy_run))
    jax.tree.map(np.testing.assert_array_equal, continued, undisturbed)


def test_minutes_settle_the_steps_once(toy_place, tmp_path, monkeypatch, command):
    """By the first process's measurement; the run continues with them and measures nothing."""
    asked = []

    def slow(trainer, rows):
        asked.append(rows)
        return 0.0, 1e6 * 60 * 0.85 / 32.5

    def train(*more):
        schedule = "--config.train.schedule=cosine(learning_rate=1e-3,warmup_steps=9)"
        steps = () if any("train.steps" in each for each in more) else ("--config.train.steps=50",)
        words = train_command(toy_place, tmp_path / "run", schedule, *steps, *more)
        status, _, error = command(*words)
        return status, error

    monkeypatch.setattr("transformer_jax.training.trainer.Trainer.measure_step", slow)
    monkeypatch.setattr("transformer_jax.training.speed.measure_evaluation", lambda *_: 0.0)
    stop = "--config.train.checkpoint_every=32"
    status, messages = train("--config.train.minutes=1e6", stop)
    assert status == 0 and "32 steps of " in messages
    assert len(asked) == 1
    config = tj.open_run(tmp_path / "run").config
    assert (config.train.steps, config.train.schedule.warmup_steps) == (32, 3)
    assert config.train.minutes == 1e6
    records = tj.open_run(tmp_path / "run").metrics()
    assert records[-1]["step"] == 32
    rates = [record["learning_rate"] for record in records if "learning_rate" in record]
    assert rates[-1] < rates[0]  # the cosine ends at the settled step

    assert train("--config.train.minutes=1e6", stop)[0] == 0
    assert tj.open_run(tmp_path / "run").config == config and len(asked) == 1
    for flags, words in (
        (["--config.train.minutes=1e5"], "train.minutes: 1000000.0 -> 100000.0"),
        (["--config.train.minutes=1e6", "--config.train.steps=31"], "train.steps: 32 -> 31"),
        ([], "train.minutes: 1000000.0 -> None"),
    ):
        status, messages = train(stop, *flags)
        assert status == 2 and words in messages


@pytest.mark.usefixtures("own_programs")
def test_the_shapes_that_are_compiled_ahead_are_those_of_the_run(toy_place, tmp_path, monkeypatch):
    train, trainers = Session.train, []

    def train_when_compiled(session):
        trainers.append(session.trainer)
        trainers[0].ahead.wait()
        return train(session)

    monkeypatch.setattr(Session, "train", train_when_compiled)
    # Rows are filled up to a multiple of 3.
    flags = ["--config.batch.num_buckets=2", "--config.train.accumulate=3"]
    assert main(train_command(toy_place, tmp_path / "run", *flags, "--config.train.steps=24")) == 0
    assert len(trainers[0].ahead._programs) == 3  # and the update
    assert trainers[0]._step.gradient._cache_size() == trainers[0]._step.update._cache_size() == 0


def test_all_processes_train_the_steps_of_the_first(toy_place, tmp_path, monkeypatch):
    module = "transformer_jax.training.speed"
    agreed = from_first

    def of_the_first(make, *codec):  # this process measured another speed
        found = agreed(make, *codec)
        return [1619.0, 0.0, 0.0, 0.0] if isinstance(found, list) else found

    measured = "transformer_jax.training.trainer.Trainer.measure_step"
    monkeypatch.setattr(measured, lambda *_: (0.0, 1.0))
    monkeypatch.setattr(f"{module}.from_first", of_the_first)
    flags = ("--config.train.minutes=1000", "--config.train.steps=50")
    assert main(train_command(toy_place, tmp_path / "run", *flags)) == 0
    config = tj.open_run(tmp_path / "run").config
    assert (config.train.steps, config.train.schedule.warmup_steps) == (31, 3)
    assert tj.open_run(tmp_path / "run").metrics()[-1]["step"] == 31


def test_too_few_minutes_leave_no_run_behind(toy_place, tmp_path, monkeypatch, refused):
    """Which is told before the evaluation is compiled."""
    monkeypatch.setattr(
        "transformer_jax.training.trainer.Trainer.measure_step", lambda *_: (9.0, 1e9)
    )
    monkeypatch.setattr("transformer_jax.training.speed.measure_evaluation", None)
    line = refused(train_command(toy_place, tmp_path / "run", "--config.train.minutes=1000"))
    assert line.startswith("error: train.minutes=1000: not one step fits")
    assert not (tmp_path / "run" / "config.json").exists()


def test_minutes_that_leave_no_time_for_an_evaluation_train(
    toy_place, tmp_path, monkeypatch, command
):
    """Early stopping has nothing to go by then, and the report waits for another command."""
    monkeypatch.setattr(
        "transformer_jax.training.trainer.Trainer.measure_step", lambda *_: (1e9, 2e3)
    )
    monkeypatch.setattr("transformer_jax.training.speed.measure_evaluation", None)
    flags = ("--config.train.minutes=1000", "--config.train.early_stopping=3")
    status, _, messages = command(*train_command(toy_place, tmp_path / "run", *flags))
    assert status == 0 and "too little time to compile an evaluation too" in messages
    assert tj.open_run(tmp_path / "run").checkpoints()[-1] == 8
    assert not any("validation.bleu" in each for each in tj.open_run(tmp_path / "run").metrics())


def test_a_recipe_that_depends_on_the_size_of_the_text(toy_place, tmp_path, command):
    """Flags come last, the run goes on with what it chose, and `init_from` keeps its model."""
    recipe = tmp_path / "recipe.py"

    def write(d_model, steps):
        keys, row = "('model.d_model', 'train.steps')", f"({d_model}, {steps})"
        table = f"by_pairs = ByPairs({keys}, {{301: {row}, 400: (64, 6)}})\n"
        other = RECIPE.replace("d_model=16", "d_model=24")
        recipe.write_text(f"{other}from transformer_jax import ByPairs\n{table}")

    def train(name, *more):
        words = train_command(toy_place, tmp_path / name, f"--config={recipe}", *more)
        status, _, error = command(*words)
        assert status == 0
        return tj.open_run(tmp_path / name).config, error

    write(16, 7)  # as `toy_run`, whose programs are compiled
    config, messages = train("run", "--config.train.steps=2")
    assert (config.model.d_model, config.train.steps) == (16, 2)
    assert "settings for 300 training pairs" in messages and "d_model=16" in messages
    write(32, 1)
    again, messages = train("run", "--config.train.steps=2")
    assert again == config and "settings for" not in messages
    tuned, _ = train("tuned", f"--config.train.init_from={tmp_path / 'run'}")
    assert (tuned.model.d_model, tuned.train.steps) == (16, 1)


def test_a_profile_needs_a_folder_of_this_machine():
    args = parse(["train", "--config=quickstart", "--workdir=run", "--profile=3"])
    args.workdir = "gs://bucket/run"
    with pytest.raises(tj.UserError, match="--profile=3: a trace is written to a folder"):
        args.run(args)
