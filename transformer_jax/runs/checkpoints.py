"""Orbax checkpoints of a run: the last N in `checkpoints/`, the best in `best/`.

Each holds `params`, `ema` (where kept), `trainer` (step, optimizer state, counts of
skipped steps), `meta`, a JSON object (data position, config, identity of data and
tokenizer, evaluation record), the files it was given (the tokenizer) and a manifest.
Saving is asynchronous; a checkpoint appears under its final name only when whole, in a
bucket with the object that says so.
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp

from transformer_jax.errors import CannotSave, UserError
from transformer_jax.parallel.processes import from_first, is_first
from transformer_jax.paths import (
    absolute,
    as_path,
    in_bucket,
    make_folder,
    move_folder,
    remove_folder,
    write_whole,
)
from transformer_jax.runs.damage import find_damage, write_manifest
from transformer_jax.training.state import TrainState

#: Newest step known to have been sealed: how a folder whose checkpoints are gone is told
#: from one that never had any.
_LAST = "last_checkpoint.json"


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps of the finished checkpoints in a folder, ascending; [] where there is none."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in _numbered(folder) if _is_sealed(path))


def has_trained(workdir: str | Path) -> bool:
    """Whether anything was ever saved in the run folder."""
    folder = as_path(workdir)
    held = (checkpoint_steps(folder / name) for name in ("checkpoints", "best"))
    return any(held) or (folder / _LAST).exists()


def _numbered(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.isdigit()]


def _is_sealed(checkpoint: Path) -> bool:
    """Whether a folder with a final name is a checkpoint.

    On a disk it has that name when it is whole; in a bucket from the start, and the last
    object that Orbax writes is this one.
    """
    return not in_bucket(checkpoint) or (checkpoint / "commit_success.txt").exists()


def _half_saved(folder: Path) -> list[Path]:
    """What is being saved there, or was when a kill came."""
    if not folder.is_dir():
        return []
    if in_bucket(folder):
        return [path for path in _numbered(folder) if not _is_sealed(path)]
    return list(folder.glob("*.orbax-checkpoint-tmp*"))


class Checkpoints:
    """The checkpoints of one run folder, for the processes that train it.

    Args:
        workdir: the run folder, seen by all processes.
        keep: how many of the last checkpoints are kept.
        files: contents to put into every checkpoint, by relative path.
        say: told in one line of each checkpoint that cannot be used.

    Attributes:
        newest: (folder, step) of the newest whole checkpoint, or None in a new run.

    Raises:
        UserError: the folder held checkpoints and none of them is whole.
    """

    def __init__(
        self,
        workdir: str | Path,
        keep: int,
        files: Mapping[str, bytes] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._workdir = absolute(as_path(workdir))
        self._files = dict(files or {})
        self._folders = {name: self._workdir / name for name in ("checkpoints", "best")}
        found = json.loads(from_first(lambda: json.dumps(self._look(say)).encode()))
        self.newest: tuple[str, int] | None = tuple(found["newest"]) if found["newest"] else None
        self._damaged: list[tuple[str, int]] = [tuple(each) for each in found["damaged"]]
        self._saving: int | None = None
        self._failed = False  # a save
        self._to_note: int | None = None  # the same, until `last_checkpoint.json` names it
        self._managers = {
            name: ocp.CheckpointManager(
                self._folders[name],
                options=ocp.CheckpointManagerOptions(
                    max_to_keep=1 if name == "best" else keep,
                    create=True,
                    # Both may save the same step at once: their barriers must differ.
                    multiprocessing_options=ocp.options.MultiprocessingOptions(
                        barrier_sync_key_prefix=name
                    ),
                    async_options=ocp.AsyncOptions(
                        post_finalization_callback=lambda name=name: self._complete(name)
                    ),
                ),
            )
            for name in self._folders
        }

    def _look(self, say: Callable[[str], None]) -> dict[str, Any]:
        """The newest whole checkpoint, and the damaged ones that are newer."""
        last, unreadable = _read_last(self._workdir)
        candidates = sorted(
            (
                (step, name)
                for name in self._folders
                for step in checkpoint_steps(self._folders[name])
            ),
            key=lambda found: (-found[0], found[1] == "best"),
        )
        damaged: list[tuple[str, int]] = []
        problems = []
        newest = None
        for step, name in candidates:
            problem = find_damage(self._folders[name] / str(step))
            if problem is None:
                newest = (name, step)
                break
            damaged.append((name, step))
            problems.append(f"{name}/{step}: {problem}")
        if newest is None and (problems or unreadable or last is not None):
            reason = "; ".join(problems) or unreadable or f"the one of step {last} is gone"
            raise UserError(
                f"--workdir={self._workdir}: this folder held a run, and none of its checkpoints "
                f"is whole ({reason}); nothing was touched: put one back, or use another folder"
            )
        if newest and (problems or (last or 0) > newest[1]):
            reason = "; ".join(problems) or f"checkpoint {last} is gone"
            say(f"damaged checkpoint ({reason}): falling back to step {newest[1]}")
        self._remove_half_saved()  # what kills left
        for folder in self._folders.values():
            try:
                make_folder(folder)
            except OSError as error:
                raise UserError(f"cannot write {folder}: {error.strerror}") from error
        return {"newest": newest, "damaged": damaged}

    def _complete(self, name: str) -> None:
        """Adds the files and the manifest; runs when all is written and not yet sealed."""
        being_saved = _half_saved(self._folders[name])
        (folder,) = (p for p in being_saved if p.name.split(".")[0] == str(self._saving))
        for path, content in self._files.items():
            make_folder((folder / path).parent)
            (folder / path).write_bytes(content)
        write_manifest(folder)

    def save(self, step: int, state: TrainState, meta: dict[str, Any], *, best: bool) -> None:
        """Starts saving; `best` also keeps a copy as the best so far.

        Raises:
            CannotSave: this or the save before it failed; older checkpoints are whole.
        """
        items = {
            "params": ocp.args.StandardSave(state.params),
            "trainer": ocp.args.StandardSave(_trainer(state)),
            "meta": ocp.args.JsonSave(meta),
        }
        if state.ema:
            items["ema"] = ocp.args.StandardSave(state.ema)
        self.wait()
        self._saving = self._to_note = step
        try:
            for name in ["best"] * best + ["checkpoints"]:
                if step not in self._managers[name].all_steps():
                    self._managers[name].save(step, args=ocp.args.Composite(**items), force=True)
        except Exception as error:
            raise self._cannot_save(error) from error

    def restore(self, abstract: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """The newest whole state and its meta, laid out as `abstract` says.

        Damaged checkpoints that are newer move to `damaged/`, out of the way of those
        that will have their names.

        Raises:
            UserError: what is stored there is not this model's state.
        """
        assert self.newest is not None
        name, step = self.newest
        items = {
            "params": ocp.args.StandardRestore(abstract.params),
            "trainer": ocp.args.StandardRestore(_trainer(abstract)),
            "meta": ocp.args.JsonRestore(),
        }
        if abstract.ema:
            items["ema"] = ocp.args.StandardRestore(abstract.ema)
        try:
            restored = self._managers[name].restore(step, args=ocp.args.Composite(**items))
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise UserError(
                f"--workdir={self._workdir}: the checkpoint of step {step} is whole but holds "
                f"another model or optimizer, or was written by another version: {_first(error)}"
            ) from error
        self._set_damaged_aside()
        trainer = restored["trainer"]
        state = TrainState(
            step=trainer["step"],
            params=restored["params"],
            opt_state=trainer["opt"],
            ema=restored["ema"] if abstract.ema else {},
            skipped=trainer["skipped"],
            skipped_in_a_row=trainer["skipped_in_a_row"],
        )
        return state, restored["meta"]

    def _set_damaged_aside(self) -> None:
        for name, step in self._damaged:
            if is_first():
                target = self._workdir / "damaged" / f"{name}-{step}"
                move_folder(self._folders[name] / str(step), target)
        if self._damaged:
            from_first(lambda: b"moved")
            for manager in self._managers.values():
                manager.reload()
        self._damaged = []

    def has_best(self, step: int) -> bool:
        """Whether `best/` holds this step."""
        return step in self._managers["best"].all_steps()

    def wait(self) -> None:
        """Returns when everything started is on disk.

        Raises:
            CannotSave: it could not be written; older checkpoints are whole.
        """
        try:
            for manager in self._managers.values():
                manager.wait_until_finished()
        except Exception as error:
            raise self._cannot_save(error) from error
        self._note()
        self._saving = None

    def look(self) -> None:
        """Notes a checkpoint that is sealed by now; waits for none. Called after each step.

        Raises:
            CannotSave: the note could not be written; the checkpoints are whole.
        """
        if self._to_note is None or not is_first():
            return
        if any(manager.is_saving_in_progress() for manager in self._managers.values()):
            return
        if self._to_note in checkpoint_steps(self._folders["checkpoints"]):  # it may have failed
            self._note()

    def _note(self) -> None:
        if self._to_note is not None and is_first():
            _write_last(self._workdir, self._to_note)
        self._to_note = None

    def _cannot_save(self, error: Exception) -> CannotSave:
        step, self._saving, self._to_note = self._saving, None, None
        self._failed = True
        self._remove_half_saved()
        folders = self._folders.values()
        try:
            older = sorted({step for folder in folders for step in checkpoint_steps(folder)})
            kept = f"steps {', '.join(map(str, older))} are whole" if older else "there is none yet"
        except Exception:  # a bucket that does not answer has errors of its own
            kept = "nothing can be seen now"
        return CannotSave(
            f"cannot save the checkpoint of step {step} in {self._workdir}: {_first(error)}; "
            f"of earlier ones {kept}: make room there and start the same command again"
        )

    def _remove_half_saved(self) -> bool:
        """Half a checkpoint only takes space that is needed. Returns whether none was there."""
        none = True
        if is_first():
            with contextlib.suppress(Exception):  # a bucket does not answer: at the next start
                for folder in self._folders.values():
                    for path in _half_saved(folder):
                        none = False
                        remove_folder(path)
        return none

    def close(self) -> None:
        """Waits, then lets go of the folders."""
        try:
            self.wait()
        finally:
            for manager in self._managers.values():
                with contextlib.suppress(Exception):  # after a failed save it is raised again
                    manager.close()
            if self._failed:
                # Its threads still write, and make folders that were removed anew.
                for _ in range(50):
                    time.sleep(0.1)
                    if self._remove_half_saved():
                        break


def _trainer(state: TrainState) -> dict[str, Any]:
    return {
        "step": state.step,
        "opt": state.opt_state,
        "skipped": state.skipped,
        "skipped_in_a_row": state.skipped_in_a_row,
    }


def _read_last(workdir: Path) -> tuple[int | None, str]:
    """(the step noted, what is wrong with the note); (None, "") where there is none."""
    path = workdir / _LAST
    if not path.exists():
        return None, ""
    try:
        step = json.loads(path.read_bytes())["step"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        step = None
    return (step, "") if isinstance(step, int) else (None, f"none is there, and {_LAST} is damaged")


def _write_last(workdir: Path, step: int) -> None:
    path = workdir / _LAST
    try:
        write_whole(path, (json.dumps({"step": step}) + "\n").encode())
    except OSError as error:
        raise CannotSave(
            f"cannot write {path}: {error.strerror}; stopped, the checkpoints are whole: make room "
            "there and start the same command again"
        ) from error


def _first(error: BaseException) -> str:
    """The system's own words where the error holds them, else its first line."""
    text = str(error)
    system = re.search(r"os_error_code='(\d+)'", text)  # TensorStore's
    if system:
        return os.strerror(int(system[1]))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = text.strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]
