"""Hands the numbers of a run to its trackers, which can neither stop it nor slow it down."""

import json
import logging
import queue
import threading
import time
import uuid
from collections.abc import Sequence

from etils import epath
from flax.traverse_util import flatten_dict

from transformer_jax.errors import first_line
from transformer_jax.paths import in_bucket, write_whole
from transformer_jax.settings.variants import kind_of
from transformer_jax.trackers.base import About, Tracker
from transformer_jax.trackers.registry import TRACKERS

_LOGGER = logging.getLogger(__name__)

#: The file of a run folder with the name of the run at its trackers.
_ID = "tracking_id"
#: Seconds that the end of a run waits for its trackers.
_PATIENCE = 60.0


class Tracking:
    """The trackers of a run, each in a thread of its own.

    A tracker that fails is left out after one warning.
    """

    def __init__(self, trackers: Sequence[Tracker], workdir: epath.Path) -> None:
        self._workers = [_Worker(tracker, workdir) for tracker in trackers]
        for worker in self._workers:
            worker.start()

    def log(self, step: int, numbers: dict[str, float]) -> None:
        """Shows the numbers of a step."""
        for worker in self._workers:
            worker.records.put((step, numbers))

    def close(self) -> None:
        """Waits a minute at most until all records have arrived."""
        end = time.monotonic() + _PATIENCE
        for worker in self._workers:
            worker.records.put(None)
        for worker in self._workers:
            worker.join(max(0.0, end - time.monotonic()))
            if worker.is_alive():
                _LOGGER.warning("%s has not taken all numbers after %.0f s", worker.name, _PATIENCE)


class _Worker(threading.Thread):
    """A thread that ends with the program, also if its tracker waits for a server without end."""

    def __init__(self, tracker: Tracker, workdir: epath.Path) -> None:
        super().__init__(name=kind_of(tracker, TRACKERS), daemon=True)
        self._tracker, self._workdir = tracker, workdir
        self.records: queue.SimpleQueue[tuple[int, dict[str, float]] | None] = queue.SimpleQueue()

    def run(self) -> None:
        try:
            tracked = self._tracker.open(_about(self._workdir))
            while (record := self.records.get()) is not None:
                tracked.log(*record)
            tracked.close()
        except (Exception, SystemExit) as error:  # libraries and servers have errors of their own
            advice = f"; pip install {self.name}" if isinstance(error, ImportError) else ""
            reason = f"{type(error).__name__}: {first_line(error)}{advice}"
            _LOGGER.warning("nothing for %s from here on: %s", self.name, reason)


_about_lock = threading.Lock()


def _about(workdir: epath.Path) -> About:
    with _about_lock:  # the first one writes the file
        file = workdir / _ID
        if not file.is_file():
            write_whole(file, uuid.uuid4().hex.encode())
    config = workdir / "config.json"
    return About(
        id=file.read_text().strip(),
        name=workdir.name,
        folder=None if in_bucket(workdir) else str(workdir),
        config=flatten_dict(json.loads(config.read_text()), sep=".") if config.is_file() else {},
    )
