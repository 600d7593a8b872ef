"""Run folders with one damaged file: one line, exit status 2, and nothing is changed."""

import json

import pytest
from hypothesis import given, strategies as st

from tests.malformed.harness import (
    ANY_JSON,
    JSON,
    command,
    contents,
    few,
    fewer,
    is_refused,
    training,
)
from transformer_jax.config import Config, to_json
from transformer_jax.paths import as_path
from transformer_jax.runs.damage import find_damage, write_manifest
from transformer_jax.runs.metrics import read_metrics


def test_training_takes_what_is_damaged_below(place, copy_of):
    run = copy_of()
    assert command(*training(place, run))[0] == 0
    assert len(contents(run)) > 20


@st.composite
def broken_configs(draw):
    """A config.json: random bytes, random JSON, or a real one with one value replaced."""
    kind = draw(st.sampled_from(["bytes", "json", "value", "cut", "deep"]))
    if kind == "bytes":
        return draw(st.binary(max_size=60))
    if kind == "json":
        return json.dumps([draw(JSON)]).encode()
    if kind == "deep":
        return b"[" * 100_000
    text = to_json(Config())
    if kind == "cut":
        return text[: draw(st.integers(0, len(text) - 3))].encode()
    raw = json.loads(text)
    group = draw(st.sampled_from(sorted(raw)))
    key = draw(st.sampled_from([k for k, v in sorted(raw[group].items()) if type(v) is not dict]))
    # No config holds a dict where a value should be, or a list of lists.
    raw[group][key] = draw(st.sampled_from([{"x": 1}, [[1]], {}, [None]]))
    return json.dumps(raw).encode()


@fewer
@given(content=broken_configs(), name=st.sampled_from(["train", "eval", "translate", "score"]))
def test_a_broken_config_json_names_the_file(place, copy_of, content, name):
    run = copy_of()
    (run / "config.json").write_bytes(content)
    arguments = training(place, run) if name == "train" else [name, f"--workdir={run}"]
    assert str(run / "config.json") in is_refused(run, *arguments, stdin=b"text\ttext\n")


@few
@given(content=ANY_JSON)
def test_manifests_and_metrics_of_any_content(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("run")
    folder = as_path(folder)
    (folder / "manifest.json").write_bytes(content)
    (folder / "metrics.jsonl").write_bytes(content)
    damage = find_damage(folder)
    assert damage is not None and "\n" not in damage
    assert all(isinstance(record["step"], int) for record in read_metrics(folder))


def checkpoint(run):
    (folder,) = (as_path(run) / "checkpoints").iterdir()
    return folder


@pytest.mark.parametrize("content", [b"", b"none"])
def test_tokenizers_that_are_none_are_named(place, copy_of, content):
    run = copy_of()
    (run / "tokenizer" / "joint.model").write_bytes(content)
    (checkpoint(run) / "tokenizer").rmtree()
    line = is_refused(run, "score", f"--workdir={run}", stdin=b"a\ta\n")
    assert str(run / "tokenizer" / "joint.model") in line
    # Only a checkpoint with its tokenizer is whole.
    assert "joint.model" in is_refused(run, *training(place, run))


META = {"identity": {}, "position": 1, "best_step": None}
RECORD = {"best_bleu": 1.0, "best_step": 1, "evaluations_since_best": 0}


@pytest.mark.parametrize(
    "meta",
    [
        None,
        META,
        META | {"record": RECORD | {"best_bleu": "1"}},
        META | {"record": {}},
        META | {"record": RECORD, "identity": ["a"]},
    ],
)
def test_a_checkpoint_whose_meta_does_not_fit_is_named(place, copy_of, meta):
    """With a manifest that agrees: another version may have written both."""
    run = copy_of()
    (checkpoint(run) / "meta" / "metadata").write_text(json.dumps(meta))
    write_manifest(checkpoint(run))
    line = is_refused(run, *training(place, run))
    assert "checkpoints/1/meta" in line or "checkpoint of step 1" in line


@fewer
@given(content=JSON.filter(lambda value: type(value) is not dict).map(json.dumps) | st.just("{"))
def test_scores_that_are_none_are_named_before_anything_is_translated(copy_of, content):
    run = copy_of()
    (run / "scores.json").write_text(content)
    assert str(run / "scores.json") in is_refused(run, "eval", f"--workdir={run}")
    assert not (run / "translations").exists()


@pytest.mark.parametrize(
    "record",
    [{"loss": 10**400}, {"nll": "1", "validation.bleu": [None]}, {"step": None}, {"step": "1"}],
)
def test_metrics_of_any_content_do_not_end_a_run_in_a_traceback(copy_of, caplog, record):
    """What cannot be read of them is left out of the picture, with a line that names the file."""
    from transformer_jax.runs.folder import open_run
    from transformer_jax.viewing.plots import plot_training

    run = copy_of()
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 2, **record}) + "\n")
        file.write(json.dumps({"step": 3, "loss": 1.0}) + "\n")
    before = contents(run)
    caplog.clear()
    opened = open_run(run)
    assert plot_training(opened, opened.metrics()) is not None
    before.pop("plots/training.png", None)
    assert before.items() <= contents(run).items()
    lines = caplog.messages
    assert all(line.startswith(f"{run / 'metrics.jsonl'}: ") for line in lines)
    assert any("step 3 has no number under loss and nll" in line for line in lines)


@pytest.mark.parametrize(
    "which", ["../../x", "average:../x", "average:\u0663", "-1", "1e3", "", "best/.."]
)
def test_a_checkpoint_name_is_no_path(tmp_path, which):
    (tmp_path / "config.json").write_text(to_json(Config()))
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    line = is_refused(tmp_path, "translate", f"--workdir={tmp_path}", f"--checkpoint={which}")
    assert "checkpoint=" in line
