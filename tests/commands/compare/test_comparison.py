"""`transformer-jax compare`: equal parameters, a grid, intervals, and a comparison that goes on."""

import csv
import json
import math
import os
import re
import time
from multiprocessing import get_context
from types import SimpleNamespace

import pytest

import transformer_jax as tj
from tests.toy_run import RECIPE
from transformer_jax.commands import compare
from transformer_jax.commands.compare import results
from transformer_jax.commands.compare.jobs import chosen, due, run_jobs
from transformer_jax.commands.compare.results import Result, with_seed
from transformer_jax.commands.compare.rows import Row, make_grid, make_rows, split_grid, split_vary
from transformer_jax.commands.compare.tables import Spread, Summary, latex, markdown, records
from transformer_jax.commands.main import main
from transformer_jax.errors import Diverged, UserError

#: Added to `RECIPE`.
MORE = """
from dataclasses import replace
from transformer_jax import Files

config = replace(
    config,
    data=DataConfig(Files(**FILES), "en", "de", cache_dir="FOLDER/cache"),
    model=replace(config.model, d_ff=64),
    train=TrainConfig(steps=4, log_every=1, evaluate_sentences=2),
)
"""


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("model.d_ff=8,16", [{"model.d_ff": "8"}, {"model.d_ff": "16"}]),
        ("a=full,[mamba,full]", [{"a": "full"}, {"a": "mamba,full"}]),
        ("a=linear(chunk=2,features=elu),b", [{"a": "linear(chunk=2,features=elu)"}, {"a": "b"}]),
        (
            "a=corpus(source=files(x=1,y=2),weight=2),b",
            [{"a": "corpus(source=files(x=1,y=2),weight=2)"}, {"a": "b"}],
        ),
        ("a,b=x,y", [{"a": "x", "b": "x"}, {"a": "y", "b": "y"}]),
        ("train.frozen=b_[01],c", [{"train.frozen": "b_[01]"}, {"train.frozen": "c"}]),
    ],
)
def test_vary_names_keys_and_values(text, rows):
    assert split_vary(text) == rows


@pytest.mark.parametrize(
    ("text", "message"),
    [(text, "expected KEY=VALUE") for text in ("model.d_ff", "=3", "model.d_ff=")]
    + [(f"a={values}", "has no closing") for values in ("b,[c", "[b,[c]", "b[c,d", "full(x=1,b")]
    + [(f"a={values}", "has no opening") for values in ("b]", "[b],c],d")]
    + [(f"{key}=0,1", "--seeds=N trains") for key in ("train.seed", "config.batch.seed")],
)
def test_vary_without_key_or_value_or_with_a_seed_is_refused(text, message):
    with pytest.raises(UserError, match=f"--vary={re.escape(text)}.*: .*{message}"):
        split_vary(text)


def test_grids_are_multiplied():
    assert split_grid([]) == [{}]
    points = split_grid(["train.schedule.learning_rate=1e-3,2e-3", "model.dropout_rate=0"])
    assert points == [
        {"train.schedule.learning_rate": rate, "model.dropout_rate": "0"}
        for rate in ("1e-3", "2e-3")
    ]


@pytest.fixture(scope="module")
def recipe(toy_place, tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "tiny.py"
    files = {
        f"{split}_{side}": f"{toy_place}/{'train' if split == 'train' else 'test'}.{language}"
        for split in ("train", "validation", "test")
        for side, language in (("source", "en"), ("target", "de"))
    }
    more = MORE.replace("FILES", repr(files)).replace("FOLDER", str(path.parent))
    path.write_text(RECIPE + more)
    return path


def test_rows_have_as_many_parameters_as_the_first(recipe):
    config = tj.load_recipe(str(recipe))
    mixers = split_vary("model.decoder.mixers=full,ssd,mamba,linear")
    first, *others = make_rows(config, mixers, equal_parameters=True)
    assert first.config.model.d_ff == 64
    for row in others:
        assert abs(row.parameters / first.parameters - 1) < 0.05, row
    assert len({row.config.model.d_ff for row in others}) > 1
    kept = make_rows(config, mixers, equal_parameters=False)
    assert {row.config.model.d_ff for row in kept} == {64}
    assert max(row.parameters for row in kept) > 1.05 * first.parameters


def test_a_row_that_cannot_be_made_equal_or_is_another_one_is_refused(recipe):
    config = tj.load_recipe(str(recipe))
    with pytest.raises(UserError, match="parameters even with model.d_ff=8, .*--unequal"):
        make_rows(config, split_vary("model.d_model=16,128"), equal_parameters=True)
    with pytest.raises(UserError, match="the same model as another row"):
        make_rows(config, [{"model.d_ff": "64"}, {"model.d_model": "16"}], equal_parameters=True)
    with pytest.raises(UserError, match="--vary=model.d_f"):
        make_rows(config, [{"model.d_f": "64"}], equal_parameters=True)


def test_a_point_of_a_grid_is_a_row_of_its_own(recipe):
    config = tj.load_recipe(str(recipe))
    grid = split_grid(["train.schedule.learning_rate=1e-3,2e-3"])
    mixers = split_vary("model.decoder.mixers=full,ssd")
    full, ssd = make_grid(config, mixers, grid, equal_parameters=True)
    assert [row.folder for row in full + ssd] == ["full/1e-3", "full/2e-3", "ssd/1e-3", "ssd/2e-3"]
    assert [row.config.train.schedule.learning_rate for row in ssd] == [1e-3, 2e-3]
    assert len({row.config.model for row in ssd}) == 1
    again = split_grid(["train.schedule.learning_rate=1e-3,0.001"])
    with pytest.raises(UserError, match="--grid: 1e-3 and 0.001 are the same"):
        make_grid(config, mixers, again, equal_parameters=True)


def test_the_folder_of_a_row_with_a_long_value_can_be_made(recipe, tmp_path):
    texts = [f"{'much' * 50}/{name}.en" for name in "abc"]
    vary = [{"data.source": f"files(train_source={name},train_target=b.de)"} for name in texts]
    grid = [{"data.filters": f"length_ratio(most=3.{'0' * 250})"}]
    rows = make_grid(tj.load_recipe(str(recipe)), vary, grid, equal_parameters=True)
    for (row,) in rows:
        (tmp_path / row.folder).mkdir(parents=True)


def test_the_validation_set_chooses_when_all_points_are_scored():
    scores = {("a1", 0): 3.0, ("a2", 0): 5.0, ("b1", 0): 1.0}

    def scored(point, seed):
        return scores.get((point, seed))

    rows = [["a1", "a2"], ["b1", "b2"], ["c"]]
    assert chosen(rows[0], scored) == "a2" and chosen(rows[1], scored) is None
    first = [(point, 0) for points in rows for point in points]
    assert list(due(rows, 2, scored)) == [*first, ("a2", 1), ("c", 1)]


def test_seeds_change_the_order_of_the_text_too():
    config = with_seed(tj.Config(), 2)
    assert (config.train.seed, config.batch.seed) == (2, tj.BatchConfig().seed + 2)


def test_intervals_have_a_pooled_deviation():
    # 2 + 2 degrees of freedom; variances 1 and 9, so 5 pooled; t is 2.776.
    spread = Spread.of([[1.0, 2.0, 3.0], [10.0, 13.0, 16.0], [7.0]])
    assert spread == (pytest.approx(math.sqrt(5)), 4)
    assert spread.half(3) == pytest.approx(2.776445 * math.sqrt(5 / 3), rel=1e-5)
    # Of a difference, and at 97.5 % where two are to hold together: t is 3.495.
    assert spread.half(3, 3, together=2) == pytest.approx(3.495406 * math.sqrt(10 / 3), rel=1e-5)
    assert spread.half(2) is None and spread.half(3, 2) is None


def summary(name, bleus, steps=10, point="", **measured):
    row = Row(name, name, tj.Config(), 1_000, {}, point)
    made = [
        Result(seed, {"bleu": bleu, "chrf": bleu}, steps, "sig", **measured)
        for seed, bleu in enumerate(bleus)
    ]
    return Summary(row, made, [(row, made[0])])


def test_the_table_has_intervals_from_three_seeds_on():
    text = markdown([summary("full", [10, 20]), summary("ssd", [30, 40])])
    assert "| full | 15.00 |  |" in text and "| ssd | 35.00 | +20.00 |" in text
    assert "no interval below 3 seeds" in text and "\n10 steps each" in text
    rows = [summary("full", [1, 2, 3]), summary("ssd", [4, 5, 6]), summary("mamba", [7, 8])]
    text = markdown([*rows[:2], summary("mamba", [7, 8], steps=1007)])
    assert "| full | 2.00 ± 1.41 |  |" in text and "| mamba | 7.50 | +5.50 |" in text
    assert "| ssd | 5.00 ± 1.41 | +3.00 ± 2.45 |" in text  # t is 3.163 for the two differences
    assert "\n10 to 1,007 steps each" in text and "; the 2 differences hold together" in text


def test_the_table_has_costs_and_the_choice():
    row = summary("a_b<c>", [1.0], point="4e-3", validation=8.0, steps_per_second=2.0)
    (record,) = records([row])
    assert record["point"] == "4e-3" and record["validation"] == 8.0
    assert record["steps_per_second"] == 2.0 and record["cpu_seconds_per_step"] is None
    text = markdown([row])
    for rest in ("1.00 | 1.00 |", "1.00 | yes |"):
        assert f"| a_b<c> | 4e-3 | 8.00 | {rest}" in text
    assert latex([row]).splitlines()[3].startswith(r"a\_b$<$c$>$ & 4e-3 & 8.00 & 1.00 & 1.00 &")


class InThisProcess(SimpleNamespace):
    """Stands for a process: the command runs when it starts."""

    exitcode = None

    def start(self):
        self.sentinel, end = os.pipe()
        os.close(end)
        self.exitcode = main(self.words)


@pytest.fixture
def trained(monkeypatch):
    """The folders that were trained, in this process."""
    folders, train = [], results.train

    def counted(config, folder, **options):
        folders.append(folder)
        return train(config, folder, **options)

    monkeypatch.setattr(results, "train", counted)
    monkeypatch.setattr(compare, "_process", lambda words: InThisProcess(words=words))
    return folders


def test_a_comparison_continues_and_draws(recipe, tmp_path, trained, capsys, refused):
    output = tmp_path / "out"
    command = ["compare", f"--config={recipe}", f"--output={output}", "--no_progress"]
    command += ["--vary=model.decoder.mixers=full,[window,full]"]
    assert main([*command, "--part=2/2"]) == 0  # the second row
    assert [folder.parent.name for folder in trained] == ["window_full"]
    assert not (output / "table.md").exists()
    assert main(command) == 0
    assert len(trained) == 2
    out = capsys.readouterr().out
    assert "| window,full | " in out and out == (output / "table.md").read_text()
    rows = json.loads((output / "rows.json").read_text())
    for measure in ("gflops_per_step", "cpu_seconds_per_step", "peak_gb", "steps_per_second"):
        assert rows[0][measure] > 0, measure
    table = list(csv.DictReader((output / "table.csv").open()))
    assert [line["model"] for line in table] == ["full", "window,full"]
    curves = list(csv.DictReader((output / "curves.csv").open()))
    assert len(curves) == 2 * 4 and {"step", "minutes", "loss"} < set(curves[0])
    assert (output / "table.tex").exists()
    for picture in ("scores.png", "cost.png", "curves.png"):
        assert (output / picture).read_bytes()[:4] == b"\x89PNG"
    assert main(command) == 0 and len(trained) == 2
    line = refused([*command, "--config.train.steps=5"])
    assert "made with another config: give the same to continue, name" in line
    damaged = trained[0] / "comparison.json"
    damaged.write_text(damaged.read_text()[:-9])
    assert f"{damaged}: damaged: remove it, or name another --output" in refused(command)
    assert "--part=3/2: give I/N with I from 1 to N" in refused([*command, "--part=3/2"])


def test_other_seeds_are_trained_at_the_point_that_the_validation_set_chose(
    recipe, tmp_path, trained, monkeypatch, capsys, refused
):
    """The test set says the opposite, and a rate at which the training diverges comes last."""

    def train(config, folder, **options):
        trained.append(str(folder.relative_to(tmp_path)))
        folder.mkdir(parents=True)
        if (rate := config.train.schedule.learning_rate) == 9.0:
            (folder / "metrics.jsonl").write_text('{"step": 3}\n')
            raise Diverged("the loss was not finite")
        scores = {"bleu": rate, "chrf": rate}
        return Result(config.train.seed, scores, 4, "sig", validation=1 - rate)

    def scored(result, meter, validate):
        assert validate
        return result

    monkeypatch.setattr(results, "train", train)
    monkeypatch.setattr(results, "_scored", scored)
    command = ["compare", f"--config={recipe}", f"--output={tmp_path}", "--seeds=2"]
    command += ["--vary=train.steps=4", "--grid=train.schedule.learning_rate=0.3,0.1,9.0"]
    without = [f"--config.data.source.validation_{side}=" for side in ("source", "target")]
    assert "there is no validation set to choose by" in refused([*command, *without])
    assert trained == []
    assert main(command) == 0
    assert trained == ["4/0.3/seed_0", "4/0.1/seed_0", "4/9.0/seed_0", "4/0.1/seed_1"]
    out = capsys.readouterr().out
    assert "| 4 | 0.1 | 0.90 | 0.10 |" in out and "| 4 | 0.1 | 0.90 | 0.10 | yes |" in out
    assert "| 4 | 0.3 | 0.70 | 0.30 |  |" in out and "| 4 | 9.0 | 0.00 | diverged |  |" in out


def spawned(target, *arguments):
    return get_context("spawn").Process(target=target, args=arguments)


def test_jobs_run_side_by_side_and_one_that_fails_takes_no_other_along():
    running, most, ended = [], [], []

    def process_of(status):
        running.append(status)
        most.append(len(running) - len(ended))
        return spawned(os._exit, status)

    failed = run_jobs(lambda: [0, 7, 8], process_of, lambda: ended.append(1), 2, lambda: False)
    assert sorted(failed) == [7, 8] and len(ended) == 3 and max(most) == 2


def test_jobs_that_are_stopped_have_ended():
    begun = []

    def process_of(seconds):
        begun.append(spawned(time.sleep, seconds))
        return begun[-1]

    assert run_jobs(lambda: [600, 601], process_of, print, 2, lambda: len(begun) == 2) is None
    assert [process.is_alive() for process in begun] == [False, False]


def test_a_training_is_a_command_in_a_process():
    process = compare._process(["compare"])
    process.start()
    process.join()
    assert process.exitcode == 2
