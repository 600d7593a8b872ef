"""A tracker that fails, waits or is missing does not stop a run."""

import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from transformer_jax.config import Config, to_json
from transformer_jax.paths import as_path
from transformer_jax.runs import tracking
from transformer_jax.runs.metrics import MetricsLog, read_metrics
from transformer_jax.trackers.base import About, Tracked, Tracker
from transformer_jax.trackers.registry import TRACKERS
from transformer_jax.trackers.wandb import Wandb


@dataclass(frozen=True)
class Made(Tracker):
    """A tracker that fails where it is told to."""

    fails: str = ""
    seen: list[Any] = field(default_factory=list)
    waits: threading.Event = field(default_factory=threading.Event)

    def open(self, about: About) -> Tracked:
        self.seen.append(about)
        self.reach("open")
        made = self

        class Run(Tracked):
            def log(self, step: int, values: Mapping[str, float]) -> None:
                made.reach("log")
                made.seen.append((step, values))

            def close(self) -> None:
                made.reach("close")
                made.seen.append("closed")

        return Run()

    def reach(self, place: str) -> None:
        if self.fails == f"{place} waits":
            self.waits.wait(30)
        elif self.fails == place:
            raise RuntimeError(f"{place} failed\nmore")
        elif self.fails == f"{place} exits":
            sys.exit("no key")


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRACKERS, "made", Made)


def run(folder, *trackers: Tracker) -> None:
    """A run of three records."""
    log = MetricsLog(as_path(folder), 0, trackers)
    for step in (1, 2, 3):
        log.write(step, {"loss": 3.0 - step})
    log.sync()
    log.close()


@pytest.mark.parametrize("place", ["open", "log", "close", "open exits"])
def test_a_tracker_that_fails_is_one_warning(place: str, tmp_path, logged) -> None:
    good = Made()
    run(tmp_path, Made(place), good)
    (warning,) = logged()
    assert warning.startswith("nothing for made from here on: ")
    assert "\n" not in warning
    assert [record["step"] for record in read_metrics(as_path(tmp_path))] == [1, 2, 3]
    about, *rest = good.seen
    assert rest == [(step, {"loss": 3.0 - step}) for step in (1, 2, 3)] + ["closed"]
    assert about.name == tmp_path.name and len(about.id) == 32


def test_a_library_that_is_missing_is_named(tmp_path, logged, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    run(tmp_path, Wandb())
    (warning,) = logged()
    assert warning.startswith("nothing for wandb from here on: ")
    assert warning.endswith("; pip install wandb")


@pytest.mark.parametrize("place", ["open waits", "log waits", "close waits"])
def test_a_tracker_that_waits_is_not_waited_for(place: str, tmp_path, logged, monkeypatch) -> None:
    monkeypatch.setattr(tracking, "_PATIENCE", 0.2)
    waiting = Made(place)
    run(tmp_path, waiting)
    assert logged() == ["made has not taken all numbers after 0 s"]
    assert len(read_metrics(as_path(tmp_path))) == 3
    waiting.waits.set()


def test_a_continued_run_keeps_its_name_there(tmp_path) -> None:
    first, again, other = Made(), Made(), Made()
    run(tmp_path / "a", first)
    run(tmp_path / "a", again)
    run(tmp_path / "b", other)
    assert first.seen[0].id == again.seen[0].id != other.seen[0].id


def test_a_tracker_is_told_the_config_with_dotted_keys(tmp_path) -> None:
    (tmp_path / "config.json").write_text(to_json(Config()))
    tracker = Made()
    run(tmp_path, tracker)
    assert tracker.seen[0].config["model.encoder.num_layers"] == Config().model.encoder.num_layers
