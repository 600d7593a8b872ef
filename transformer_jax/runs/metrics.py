"""Where a run's numbers go: metrics.jsonl and TensorBoard."""

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError
from transformer_jax.paths import as_path, in_bucket, make_folder, write_whole
from transformer_jax.runs.growing_file import GrowingFile


class MetricsLog:
    """Appends records to `metrics.jsonl` and scalars to TensorBoard.

    Opening it at `start_step` drops records of later steps, which a run that was
    killed between checkpoints left behind, so that no step stands twice.

    Raises:
        UserError: the folder cannot be written. (Pictures are no reason to stop:
            where only TensorBoard's file cannot be written, `say` is told once.)
    """

    def __init__(
        self,
        workdir: str | Path,
        start_step: int,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        folder = as_path(workdir)
        self._path = folder / "metrics.jsonl"
        self._say = say
        records = read_metrics(workdir)
        kept = [r for r in records if r["step"] <= start_step]
        if records and not start_step:
            say(
                f"starting over at step 0: a run here got to step {records[-1]['step']}, but ended "
                "before its first checkpoint"
            )
        text = "".join(json.dumps(record) + "\n" for record in kept)
        with self._stopping_if_it_fails():
            write_whole(self._path, text.encode())
            self._file = GrowingFile(self._path)
        self._board: Any = None
        with self._without_board_if_it_fails():
            self._board = _Board(folder / "tensorboard", start_step)

    def write(self, step: int, values: dict[str, Any]) -> None:
        """One record; numbers also go to TensorBoard under their names."""
        line = (json.dumps({"step": step, **values}) + "\n").encode()
        with self._stopping_if_it_fails():
            self._file.write(line)
        if self._board:
            with self._without_board_if_it_fails():
                self._board.add(step, values)

    def sync(self) -> None:
        """Returns when all records are in the run folder; called before a checkpoint is begun.

        So no record is missing of a step that a run can go on after.
        """
        with self._stopping_if_it_fails():
            self._file.sync()
        if self._board:
            with self._without_board_if_it_fails():
                self._board.sync()

    @contextlib.contextmanager
    def _stopping_if_it_fails(self) -> Any:
        try:
            yield
        except OSError as error:
            raise UserError(
                f"cannot write {self._path}: {error.strerror}; stopped, the checkpoints are whole: "
                "make room there and start the same command again"
            ) from error

    @contextlib.contextmanager
    def _without_board_if_it_fails(self) -> Any:
        try:
            yield
        except OSError as error:
            self._board = None
            self._say(f"note: nothing for TensorBoard from here on: {error.strerror}")

    def close(self) -> None:
        """Closes both."""
        with self._stopping_if_it_fails():
            self._file.close()
        if self._board:
            with self._without_board_if_it_fails():
                self._board.close()


class _Board:
    """A TensorBoard event file, written in this thread: its errors can be caught.

    For a bucket it grows on the local disk, and `sync` copies it.
    """

    def __init__(self, folder: Path, start_step: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto import event_pb2

        make_folder(folder)
        self._folder = folder
        self._local = tempfile.TemporaryDirectory() if in_bucket(folder) else None
        self._event = event_pb2.Event
        place = Path(self._local.name) if self._local else folder
        self._writer = EventsWriter(str(place / "events"), f".{os.getpid()}")
        # Tells TensorBoard to forget what an earlier start wrote of later steps.
        restart = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._write(self._event(session_log=restart), start_step + 1)

    def add(self, step: int, values: dict[str, Any]) -> None:
        from tensorboardX.summary import scalar

        for name, value in values.items():
            if isinstance(value, (int, float)):
                self._write(self._event(summary=scalar(name.replace(".", "/"), value)), step)
        self._writer.flush()

    def _write(self, event: Any, step: int) -> None:
        event.wall_time, event.step = time.time(), step
        self._writer.write_event(event)

    def sync(self) -> None:
        if self._local:
            for path in Path(self._local.name).iterdir():
                write_whole(self._folder / path.name, path.read_bytes())

    def close(self) -> None:
        self._writer.close()
        self.sync()
        if self._local:
            self._local.cleanup()


def read_metrics(workdir: str | Path) -> list[dict[str, Any]]:
    """All records of a run folder, oldest first; [] where there are none."""
    path = as_path(workdir) / "metrics.jsonl"
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
