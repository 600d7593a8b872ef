"""Where a run's numbers go: metrics.jsonl, TensorBoard, and the progress bar."""

import json
from pathlib import Path
from typing import Any


class MetricsLog:
    """Appends records to `metrics.jsonl` and scalars to TensorBoard.

    Opening it at `start_step` drops records of later steps, which a run that was
    killed between checkpoints left behind, so that no step stands twice.
    """

    def __init__(self, workdir: str | Path, start_step: int) -> None:
        from tensorboardX import SummaryWriter

        folder = Path(workdir)
        self._path = folder / "metrics.jsonl"
        kept = [r for r in read_metrics(workdir) if r["step"] <= start_step]
        text = "".join(json.dumps(record) + "\n" for record in kept)
        part = self._path.with_suffix(".part")
        part.write_text(text, encoding="utf-8")
        part.replace(self._path)
        self._file = self._path.open("a", encoding="utf-8")
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=start_step + 1)

    def write(self, step: int, values: dict[str, Any]) -> None:
        """One record; numbers also go to TensorBoard under their names."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self._board.add_scalar(name.replace(".", "/"), value, step)

    def close(self) -> None:
        """Flushes and closes both."""
        self._file.close()
        self._board.close()


def read_metrics(workdir: str | Path) -> list[dict[str, Any]]:
    """All records of a run folder, oldest first; [] where there are none."""
    path = Path(workdir) / "metrics.jsonl"
    if not path.is_file():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue  # a line cut short by a kill
    return records
