"""Stages: folders that are filled once, and that later starts of the command find."""

import json
from collections.abc import Callable
from typing import Any

from etils import epath

from transformer_jax.errors import UserError
from transformer_jax.parallel.processes import from_first, gather
from transformer_jax.paths import write_whole

#: The file of a stage that says what it was made of.
_RECORD = "made_of.json"


def stage(folder: epath.Path, inputs: dict[str, Any], fill: Callable[[epath.Path], None]) -> None:
    """Fills a folder, unless that was done before.

    Until it is finished it has the name `<folder>.partial`, and a start that was killed is
    continued there. Several processes make the same call and fill it together.

    Args:
        folder: on a disk.
        inputs: what its content depends on, as JSON by name.
        fill: called with the folder to write to, which may hold what an earlier call wrote.

    Raises:
        UserError: it was made, or begun, of other inputs; or it cannot be written.
    """
    partial = folder.with_name(f"{folder.name}.partial")

    def begin() -> bool:
        if folder.exists():
            _check(folder, inputs)
            return True
        partial.mkdir(parents=True, exist_ok=True)
        if not (partial / _RECORD).exists():
            write_whole(partial / _RECORD, json.dumps(inputs, indent=1).encode())
        _check(partial, inputs)
        return False

    def finish() -> None:
        partial.rename(folder)

    if not from_first(begin):
        fill(partial)
        gather([])  # all have filled it
        from_first(finish)


def _check(folder: epath.Path, inputs: dict[str, Any]) -> None:
    try:
        found = json.loads((folder / _RECORD).read_text())
        differing = [name for name, value in inputs.items() if found.get(name) != value]
    except (OSError, ValueError, AttributeError, RecursionError):
        differing = ["command, or its record is damaged"]
    if differing:
        raise UserError(
            f"{folder}: made with another {', another '.join(differing)}: give the same to "
            "continue, name another --workdir, or remove this folder to make it again"
        )
