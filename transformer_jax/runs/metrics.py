"""The numbers of a run: metrics.jsonl, TensorBoard and trackers."""

import json
import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from etils import epath

from transformer_jax.errors import STILL_WHOLE, as_user_error
from transformer_jax.paths import GrowingFiles, write_whole

if TYPE_CHECKING:
    from transformer_jax.trackers.base import Tracker

_LOGGER = logging.getLogger(__name__)


class MetricsLog:
    """Appends records to `metrics.jsonl` and scalars to TensorBoard and trackers.

    Records of steps after `start_step`, left by a run that was killed after its last checkpoint,
    are dropped, so that no step appears twice.

    Raises:
        UserError: `metrics.jsonl` cannot be written. Failures of TensorBoard and trackers are
            logged once and otherwise ignored.
    """

    def __init__(
        self, workdir: epath.Path, start_step: int, trackers: "Sequence[Tracker]" = ()
    ) -> None:
        from transformer_jax.runs.tracking import Tracking  # of no use to who only reads

        file = workdir / "metrics.jsonl"
        failed = f"cannot write {file}:"
        self._writing = partial(as_user_error, failed, OSError, then=STILL_WHOLE)
        records = read_metrics(workdir)
        if records and not start_step:
            _LOGGER.info(
                f"starting over at step 0: a run here reached step {records[-1]['step']}, but "
                "ended before its first checkpoint"
            )
        first = start_step + 1 if start_step else 0  # a new run may evaluate at step 0
        kept = [record for record in records if record["step"] < first]
        times = [record["minutes"] for record in kept if isinstance(record.get("minutes"), float)]
        #: Minutes of training before this start, by the records that are kept.
        self.minutes_before: float = max(times, default=0.0)
        content = "".join(json.dumps(record) + "\n" for record in kept).encode()
        with self._writing():
            self._files = GrowingFiles(workdir)
            path = self._files.local / file.name
            write_whole(epath.Path(path), content)
            # Unbuffered: what a full disk refuses must not be written again at close.
            self._file = path.open("ab", buffering=0)
        self._board: _Board | None = _Board(workdir / "tensorboard", first)
        self._tell_board(_Board.open)
        self._tracking = Tracking(trackers, workdir)

    def write(self, step: int, values: dict[str, Any]) -> None:
        """One record.

        Its numbers also go to TensorBoard and the trackers, with `/` in names where dots are.
        """
        line = (json.dumps({"step": step, **values}) + "\n").encode()
        with self._writing():
            if self._file.write(line) != len(line):
                raise OSError(None, "the disk took only part of a line")
        numbers = {
            name.replace(".", "/"): float(value)
            for name, value in values.items()
            if isinstance(value, (int, float))
        }
        self._tell_board(lambda board: board.add(step, numbers))
        self._tracking.log(step, numbers)

    def sync(self) -> None:
        """Returns when all records are in the run folder.

        Called before a checkpoint begins, so that no record is missing of a step from which a run
        can continue.
        """
        with self._writing():
            self._files.sync()
        self._tell_board(lambda board: board.files.sync())

    def close(self) -> None:
        """Uploads the rest and closes the files."""
        with self._writing():
            self._file.close()
            self._files.close()
        self._tell_board(_Board.close)
        self._tracking.close()

    def _tell_board(self, tell: "Callable[[_Board], None]") -> None:
        try:
            if self._board:
                tell(self._board)
        except OSError as error:
            self._board = None
            _LOGGER.warning("nothing for TensorBoard from here on: %s", error.strerror)


class _Board:
    """A TensorBoard event file.

    It is written by tensorboardX's `EventsWriter` in this thread. `SummaryWriter` writes in a
    thread of its own: when the disk is full that thread ends, and after ten more events
    `add_scalar` waits for it without end.
    """

    def __init__(self, folder: epath.Path, first: int) -> None:
        self._folder, self._first = folder, first

    def open(self) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        self._event = event_pb2.Event
        self.files = GrowingFiles(self._folder)
        self._writer = EventsWriter(str(self.files.local / "events"), f".{os.getpid()}")
        # TensorBoard drops what an earlier start wrote from this step on.
        restart = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(self._event(session_log=restart), self._first)

    def add(self, step: int, numbers: dict[str, float]) -> None:
        from tensorboardX.summary import scalar

        for name, number in numbers.items():
            self._write(self._event(summary=scalar(name, number)), step)
        self._writer.flush()

    def _write(self, event: Any, step: int) -> None:
        event.wall_time, event.step = time.time(), step
        self._writer.write_event(event)

    def close(self) -> None:
        self._writer.close()
        self.files.close()


def read_metrics(workdir: epath.Path) -> list[dict[str, Any]]:
    """All records of a run folder, oldest first; [] if there are none."""
    path = workdir / "metrics.jsonl"
    if not path.is_file():
        return []
    records = []
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a line cut short by a kill
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            records.append(record)
    return records
