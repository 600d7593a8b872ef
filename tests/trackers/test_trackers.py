"""Each tracker with its real library, offline.

The library stores each number that a run logs. A continued run logs to the same place.
"""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.oracles import need
from tests.pages import blocks
from transformer_jax.config import Config, override
from transformer_jax.errors import UserError
from transformer_jax.paths import as_path
from transformer_jax.runs.metrics import MetricsLog
from transformer_jax.trackers.base import Tracker
from transformer_jax.trackers.mlflow import MLflow
from transformer_jax.trackers.registry import TRACKERS
from transformer_jax.trackers.wandb import Wandb

#: name of a metric -> (step, value) of each record
Arrived = dict[str, list[tuple[int, float]]]
CONFIG = {"model": {"d_model": 64, "encoder": {"num_layers": 2}}}


def wandb(folder: Path, patch: pytest.MonkeyPatch) -> tuple[Tracker, Callable[[], Arrived]]:
    """Files that `wandb sync` would send, one for each start."""
    need("wandb")
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    patch.setenv("WANDB_MODE", "offline")
    patch.setenv("WANDB_SILENT", "true")

    def records(path: Path) -> list[Any]:
        """LevelDB's log: after 7 bytes, blocks of 32 KB with parts of records."""
        content, place, parts, found = path.read_bytes(), 7, b"", []
        while place + 7 <= len(content):
            _, length, kind = struct.unpack("<IHB", content[place : place + 7])
            parts += content[place + 7 : place + 7 + length]
            place += 7 + length
            place += (-place) % 32768 if -place % 32768 < 7 else 0
            if kind in (1, 4):  # a whole record, or the last part of one
                found.append(Record.FromString(parts))
                parts = b""
        return found

    def arrived() -> Arrived:
        values: Arrived = {}
        ids, names = set(), set()
        for path in sorted(folder.rglob("run-*.wandb")):
            for record in records(path):
                if record.HasField("run"):
                    ids.add(record.run.run_id)
                    names.add((record.run.project, record.run.display_name))
                    config = {
                        item.key: json.loads(item.value_json) for item in record.run.config.update
                    }
                    assert not config or config["model.encoder.num_layers"] == 2
                if record.HasField("history"):
                    items = {
                        item.key or "/".join(item.nested_key): json.loads(item.value_json)
                        for item in record.history.item
                    }
                    for key, value in items.items():
                        if not key.startswith("_") and key != "step":
                            values.setdefault(key, []).append((items["step"], value))
        assert len(ids) == 1 and names == {("mine", "run")}
        return values

    return Wandb(project="mine"), arrived


def mlflow(folder: Path, patch: pytest.MonkeyPatch) -> tuple[Tracker, Callable[[], Arrived]]:
    """A folder in place of a server."""
    need("mlflow")
    from mlflow import MlflowClient

    patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file:{folder / 'store'}"

    def arrived() -> Arrived:
        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("mine")
        (run,) = client.search_runs([experiment.experiment_id])
        assert run.data.params["model.encoder.num_layers"] == "2"
        assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
        return {
            name: [
                (each.step, each.value) for each in client.get_metric_history(run.info.run_id, name)
            ]
            for name in run.data.metrics
        }

    return MLflow(experiment="mine", uri=uri), arrived


def webhook(folder: Path, patch: pytest.MonkeyPatch) -> tuple[Tracker, Callable[[], Arrived]]:
    """The tracker that docs/usage.md writes."""
    (text,) = (each for each in blocks("docs/usage.md", "python") if "Webhook" in each)
    names: dict[str, Any] = {"__name__": "webhook"}
    patch.setitem(TRACKERS, "webhook", Tracker)  # so that the page's ends with the test
    del TRACKERS["webhook"]
    exec(compile(text, "docs/usage.md", "exec"), names)
    sent: list[dict[str, Any]] = []
    patch.setattr("urllib.request.urlopen", lambda request: sent.append(json.loads(request.data)))

    def arrived() -> Arrived:
        assert len({record.pop("run") for record in sent}) == 1
        values: Arrived = {}
        for record in sent:
            step = record.pop("step")
            for name, value in record.items():
                values.setdefault(name, []).append((step, value))
        return values

    return names["Webhook"](url="https://localhost"), arrived


CASES = {"wandb": wandb, "mlflow": mlflow, "webhook": webhook}


def test_every_tracker_has_a_case() -> None:
    assert CASES.keys() == TRACKERS.keys() | {"webhook"}


def test_a_tracker_that_was_removed_is_named() -> None:
    with pytest.raises(UserError, match="'trackio' was removed; version 0.2 was the last to read"):
        override(Config(), {"train.trackers": "trackio(project=mine)"})


@pytest.mark.parametrize("name", CASES)
def test_numbers_arrive_once_and_in_one_run(name, tmp_path, monkeypatch, caplog) -> None:
    tracker, arrived = CASES[name](tmp_path / "place", monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "place").mkdir()
    run = tmp_path / "place" / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps(CONFIG))
    log = MetricsLog(as_path(run), 0, [tracker])
    log.write(50, {"loss": 2.5, "note": "no number", "share.1:en-de<bt>": 0.25})
    log.write(100, {"loss": 2.0, "validation.bleu.en-de": 11.5})
    log.close()
    log = MetricsLog(as_path(run), 50, [tracker])  # it was killed, and goes on
    log.write(100, {"loss": 2.0})
    log.close()
    assert not caplog.records
    tag = "share/1:en-de_bt_" if name == "mlflow" else "share/1:en-de<bt>"
    assert arrived() == {
        "loss": [(50, 2.5), (100, 2.0), (100, 2.0)],
        tag: [(50, 0.25)],
        "validation/bleu/en-de": [(100, 11.5)],
    }
