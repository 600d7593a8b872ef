"""`transformer-jax distil`: its stages, that each is continued, and what it refuses."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.untrained import untrained_run
from transformer_jax.commands.distil import choice, stages, table, text
from transformer_jax.commands.main import STOPPED, main
from transformer_jax.commands.signals import StopOnSignals
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.data.tokenizer_training import train_tokenizers
from transformer_jax.models import api

STUDENT = """
import transformer_jax as tj

layer = tj.StackConfig(num_layers=1)
config = tj.Config(
    batch=tj.BatchConfig(tokens=256, max_length=32, num_buckets=1),
    data=tj.DataConfig(cache_dir="FOLDER/cache"),
    model=tj.ModelConfig(d_model=8, d_ff=8, num_heads=2, encoder=layer, decoder=layer,
                         dropout_rate=0.1),
    train=tj.TrainConfig(steps=4, log_every=1, evaluate_every=2, checkpoint_every=1,
                         evaluate_sentences=4),
    decode=tj.DecodeConfig(method=tj.Greedy(), max_length_factor=0.5, max_length_offset=4),
)
"""
SIZES = {"train": 40, "validation": 6, "test": 6}


def teacher(folder, name, tokenizers, seed=0):
    """A run of an untrained model, whose text is that of the folder."""
    files = {
        f"{split}_{side}": (str(folder / f"{split}.{language}"),)
        for split in SIZES
        for side, language in (("source", "en"), ("target", "de"))
    }
    length = {"max_length_factor": 0.2, "max_length_offset": 4}
    decode = tj.DecodeConfig(method=tj.Beam(beam_size=2), batch_size=4, **length)
    data = tj.DataConfig(tj.Files(**files), "en", "de")
    untrained_run(folder / name, tokenizers, data, decode, seed=seed, max_length=64)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts, a recipe, and the runs teacher, second and other.

    One training source is empty, one is longer than the teacher reads. The run `other` has another
    vocabulary.
    """
    folder = tmp_path_factory.mktemp("place")
    pairs = generate(3, sum(SIZES.values()))
    tokenizers = train_tokenizers(tj.TokenizerConfig(vocab_size=350), pairs)
    rest = iter([("", "Nichts."), ("the dog " * 40, "Hunde."), *pairs])
    for split, size in SIZES.items():
        of_split = [next(rest) for _ in range(size)]
        for side, language in ((0, "en"), (1, "de")):
            lines = "".join(pair[side] + "\n" for pair in of_split)
            (folder / f"{split}.{language}").write_text(lines)
    (folder / "more.en").write_text("".join(source + "\n" for source, _ in generate(9, 5)))
    (folder / "student.py").write_text(STUDENT.replace("FOLDER", str(folder)))
    teacher(folder, "teacher", tokenizers)
    translator = tj.open_run(folder / "teacher").translator()
    for split in ("validation", "test"):  # half of the references are right, so no score is 0
        sources, references = (
            (folder / f"{split}.{language}").read_text().splitlines() for language in ("en", "de")
        )
        mixed = [*translator.translate(sources[:3]), *references[3:]]
        (folder / f"{split}.de").write_text("".join(line + "\n" for line in mixed))
    teacher(folder, "second", tokenizers, seed=1)
    teacher(folder, "other", train_tokenizers(tj.TokenizerConfig(vocab_size=340), pairs))
    return folder


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_PART", 16)
    monkeypatch.setattr(stages, "_BATCHES_PER_CHUNK", 2)  # chunks of 8 lines


def command(place, workdir, *more):
    words = [f"--teacher={place / 'teacher'}", f"--config={place / 'student.py'}"]
    return ["distil", *words, f"--workdir={workdir}", "--no_progress", *more]


@pytest.fixture(scope="module")
def undisturbed(place, tmp_path_factory):
    """The workdir of a command that nothing stopped."""
    workdir = tmp_path_factory.mktemp("undisturbed") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "_PART", 16)
        assert main(command(place, workdir)) == 0
    return workdir


def files(folder):
    """The content of the stages' files."""
    names = ("text", "translations", "chosen")
    found = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for name in names
        for path in (folder / "distillation" / name).rglob("*")
    }
    assert len(found) == 7 + 4 + 3, sorted(found)
    return found


def rows(folder):
    """The rows of the table, without the speeds."""
    paths = sorted((folder / "distillation" / "rows").iterdir())
    found = {path.stem: json.loads(path.read_text()) for path in paths}
    for row in found.values():
        assert row.pop("sentences_per_second") > 0
        assert 1e6 * row.pop("megabytes") == 4 * row["parameters"]
        row.pop("made_of")  # has the name of the folder
    return found


def lines(path):
    return path.read_text().splitlines()


def test_the_numbers_of_the_table_are_those_of_their_own_commands(place, undisturbed, capsys):
    found = rows(undisturbed)
    assert list(found) == ["student-beam", "student-greedy", "teacher-beam", "teacher-greedy"]
    assert found["teacher-beam"]["scores"]["test"]["bleu"] > 1
    for name, row in found.items():
        model, method = name.split("-")
        workdir = undisturbed if model == "student" else place / "teacher"
        flags = ["--method=beam(beam_size=2)"] if method == "beam" else ["--method=greedy"]
        for split in ("validation", "test"):
            capsys.readouterr()
            assert main(["eval", f"--workdir={workdir}", "--json", f"--split={split}", *flags]) == 0
            scores = json.loads(capsys.readouterr().out)["scores"]
            wanted = {key: scores[key]["score"] for key in ("bleu", "chrf")}
            assert row["scores"][split] == wanted, (name, split)
        run = tj.open_run(workdir)
        assert row["parameters"] == api.num_params(run.model)
    table_md = lines(undisturbed / "distillation" / "table.md")
    assert [line.split(" | ")[:2] for line in table_md[2:6]] == [
        ["| teacher", "beam"],
        ["| teacher", "greedy"],
        ["| student", "greedy"],
        ["| student", "beam"],
    ]


@pytest.mark.parametrize("sets", [["validation"], ["validation", "test"], ["a", "b", "c"]])
def test_the_share_is_that_of_the_last_set(sets):
    made = []
    for name, bleu in (("teacher", 40.0), ("student", 30.0)):
        scores = {each: {"bleu": 50.0, "chrf": 60.0} for each in sets}
        scores[sets[-1]]["bleu"] = bleu
        made.append(table.Row(name, "beam", 9, 1.0, 2.0, scores, "nrefs:1"))
    teachers, students = table.table(made).splitlines()[2:4]
    assert " | 100.0% | " in teachers and " | 75.0% | " in students


def assert_chosen(place, workdir, *teachers):
    """All of what `translate` writes, but of the empty source and of the one that it has cut."""
    folders = [f"--workdir={place / name}" for name in teachers]
    files = [f"--input={place / 'train.en'}", f"--output={workdir.parent / 'out'}"]
    assert main(["translate", *folders, *files]) == 0
    chosen = workdir / "distillation" / "chosen"
    assert lines(chosen / "train.source") == lines(place / "train.en")[2:]
    assert lines(chosen / "train.target") == lines(workdir.parent / "out")[2:]


def test_the_student_is_trained_on_what_translate_writes(place, undisturbed):
    assert_chosen(place, undisturbed, "teacher")
    config = tj.open_run(undisturbed).config
    assert config.data.source.train_target[0].endswith("distillation/chosen/train.target")
    model = "tokenizer/joint.model"
    assert (undisturbed / model).read_bytes() == (place / "teacher" / model).read_bytes()
    # It is a run folder as any other.
    assert tj.open_run(undisturbed).translator().translate(["The dog is new."])


class Killed(Exception):
    """In place of a SIGKILL, after which no code runs either."""


def dies(monkeypatch, place, name, *, at):
    """Makes the `at`-th call of a function die."""
    function, calls = getattr(place, name), []

    def call(*args, **options):
        calls.append(args)
        if len(calls) == at:
            raise Killed
        return function(*args, **options)

    monkeypatch.setattr(place, name, call)


def stops_after_a_step(monkeypatch):
    def stop(self):
        self.stopped = True
        return True

    monkeypatch.setattr(StopOnSignals, "__call__", stop)


def test_a_command_that_is_killed_in_any_stage_is_continued(
    place, undisturbed, tmp_path, monkeypatch
):
    workdir = tmp_path / "run"

    def partial():
        return [path.name for path in (workdir / "distillation").glob("*.partial")]

    for module, name, at, left in (
        (text, "write_pairs", 2, ["text.partial"]),
        (choice, "to_line", 13, ["translations.partial"]),
        (None, "a signal, after a chunk", 1, ["translations.partial"]),
        (choice, "to_line", 12, ["translations.partial"]),
        (text, "write_pairs", 1, ["chosen.partial"]),
        (choice, "from_line", 20, ["chosen.partial"]),
        (None, "a signal, after a step", 1, []),
        (table, "corpus_scores", 4, []),  # with half of the table
    ):
        with monkeypatch.context() as patch:
            if module is None:
                stops_after_a_step(patch)
                assert main(command(place, workdir)) == STOPPED
            else:
                dies(patch, module, name, at=at)
                with pytest.raises(Killed):
                    main(command(place, workdir))
        assert partial() == left, (name, at)
    assert len(list((workdir / "distillation" / "rows").iterdir())) == 1
    assert main(command(place, workdir)) == 0
    assert files(workdir) == files(undisturbed)
    assert rows(workdir) == rows(undisturbed)
    ours, theirs = (tj.open_run(each).params("latest") for each in (workdir, undisturbed))
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


def test_a_student_that_is_trained_again_is_scored_again(place, undisturbed, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(undisturbed, workdir)
    for name in workdir.iterdir():
        if name.name == "checkpoints":
            shutil.rmtree(name)
        elif name.is_file():
            name.unlink()
    assert main(command(place, workdir, "--config.train.seed=7")) == 0

    def made_of(folder, name):
        row = folder / "distillation" / "rows" / f"{name}.json"
        return json.loads(row.read_text())["made_of"]

    assert made_of(workdir, "teacher-greedy") == made_of(undisturbed, "teacher-greedy")
    assert made_of(workdir, "student-greedy") != made_of(undisturbed, "student-greedy")


def test_what_is_there_is_not_made_again(place, undisturbed, capsys, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*.*") if path.is_file()}
    dies(monkeypatch, table, "corpus_scores", at=1)
    dies(monkeypatch, choice, "to_line", at=1)
    assert main(command(place, undisturbed)) == 0
    assert capsys.readouterr().out == (undisturbed / "distillation" / "table.md").read_text()
    changed = {path for path, mtime in before.items() if path.stat().st_mtime_ns != mtime}
    made = {path for path in changed if path.is_relative_to(undisturbed / "distillation")}
    assert {path.name for path in made} <= {"table.md", ".lock"}


def test_references_and_monolingual_text(place, tmp_path):
    more = ["--references", f"--monolingual={place / 'more.en'}", "--config.train.steps=1"]
    more += ["--config.train.evaluate_every=1", "--method=greedy"]
    assert main(command(place, tmp_path, *more)) == 0
    chosen = tmp_path / "distillation" / "chosen"
    assert lines(chosen / "train.source") == lines(place / "train.en")[2:] + lines(
        place / "more.en"
    )
    source = tj.open_run(tmp_path).config.data.source
    assert [Path(name).parent.name for name in source.train_target] == ["chosen", "text"]
    # The teacher's own way is greedy here, so nothing else is in the table.
    assert sorted(rows(tmp_path)) == ["student-greedy", "teacher-greedy"]


@pytest.mark.slow  # as one run teaches, and as ensembles translate elsewhere
def test_an_ensemble_teaches_by_its_mean(place, tmp_path):
    workdir = tmp_path / "run"
    more = [f"--teacher={place / 'second'}", "--config.train.steps=1"]
    assert main(command(place, workdir, *more, "--config.train.evaluate_every=1")) == 0
    assert_chosen(place, workdir, "teacher", "second")
    single = [tj.open_run(place / name) for name in ("teacher", "second")]
    assert rows(workdir)["teacher-beam"]["parameters"] == sum(
        api.num_params(run.model) for run in single
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--teacher={place}/other"], "its source vocabulary is not that of"),
        (["--config.data.target_language=fr"], "it translates from en into de, and the text is"),
        (["--config.data.blocks=blocks(tokens=32)"], "data.blocks: the teacher translates sent"),
        (["--config.data.prepared=x"], "data.prepared: a student is trained on"),
        (["--nearest_of=0"], "--nearest_of: 0: must be at least 1"),
        (["--nearest_of=2", "--method=greedy"], "greedy decoding finds one translation, not 2"),
        (["--monolingual={place}/none.en"], "none.en: cannot be read"),
        (["--config.model.d_model=7"], "model.d_model=7 is not divisible by model.num_heads=2"),
        (["--checkpoint=7"], "checkpoint=7: not kept here"),
        (["--min_score=0"], "--min_score=0.0: nothing to train on: 0 of 40 sources chosen; 38"),
        (["--config.data.source=files({train}, {test})"], "train_target"),
        (["--config.data.source=files({train}, {both})"], "no text to compare teacher and student"),
        (
            ["--config.data.source=files({train}, {both}, {test})"]
            + ["--config.train.early_stopping=3"],
            "train.early_stopping=3 needs a validation set",
        ),
        (["--candidates=all"], "--candidates=all is for --translations"),
        (["--config.train.teacher=word_level(run={place}/none)"], "train.teacher.run="),
        (
            ["--config.train.teacher=word_level(run={place}/teacher)"]
            + ["--config.tokenizer.vocab_size=330"],
            "train.teacher needs the teacher's tokenizers",
        ),
    ],
)
def test_what_cannot_work_ends_in_one_line(place, tmp_path, refused, flags, message):
    workdir = tmp_path / "run"
    keys = {
        "train": f"train_source={place}/train.en",
        "both": f"train_target={place}/train.de",
        "test": f"test_source={place}/test.en, test_target={place}/test.de",
    }
    words = [flag.format(place=place, **keys) for flag in flags]
    assert message in refused(command(place, workdir, *words))
    assert not (workdir / "config.json").exists()
    # But for the choice, which takes the translations, nothing is refused after hours.
    assert not (workdir / "distillation" / "translations").exists() or "--min_score=0" in flags


def test_the_teacher_may_spread_labels_too(place, undisturbed, tmp_path):
    flag = f"--config.train.teacher=word_level(run={place}/teacher, weight=0.9)"
    assert main(command(place, tmp_path, flag)) == 0
    spread, alone = (
        [each["loss"] for each in tj.open_run(folder).metrics() if "loss" in each]
        for folder in (tmp_path, undisturbed)
    )
    assert len(spread) == 4 and spread[0] != alone[0]


def test_another_command_does_not_continue_it(place, undisturbed, refused):
    before = files(undisturbed)
    for flags, what in (
        ([f"--teacher={place / 'second'}"], "translations: made with another teacher:"),
        (["--method=greedy"], "translations: made with another decoding:"),
        (["--nearest_of=2"], "translations: made with another nearest_of:"),
        (["--min_score=-9"], "chosen: made with another min_score:"),
        ([f"--monolingual={place / 'more.en'}"], "made with another monolingual text:"),
        (["--config.data.validation_from_train=3"], "text: made with another train text"),
    ):
        if "validation" in flags[0]:
            text = f"train_source={place}/train.en,train_target={place}/train.de"
            flags += [f"--config.data.source=files({text})"]
        line = refused(command(place, undisturbed, *flags))
        assert what in line and "give the same to continue, name another --workdir" in line
    line = refused(command(place, undisturbed, "--config.model.d_ff=16"))
    assert "holds a run with another config (model.d_ff: 8 -> 16)" in line
    assert files(undisturbed) == before
