"""Orbax checkpoints of a run in `checkpoints/`: the last N, and the best one.

A checkpoint holds named items (pytrees of arrays), `meta` (a JSON object), the files it was given
(the tokenizer) and a manifest. Saving is asynchronous. On a disk a checkpoint gets its final name
once it is whole; in a bucket it counts once Orbax has written `commit_success.txt`.
"""

import contextlib
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import jax
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import checkpoint_managers as policies

from transformer_jax.errors import STILL_WHOLE, CannotSave, UserError, as_user_error, first_line
from transformer_jax.parallel.processes import from_first, is_first
from transformer_jax.paths import (
    absolute,
    in_bucket,
    move_folder,
    remove_folder,
    write_whole,
)
from transformer_jax.runs.damage import find_damage, write_manifest

_LOGGER = logging.getLogger(__name__)

#: Names the newest step known to be sealed. It tells a folder whose checkpoints are gone from one
#: that never had any.
_LAST = "last_checkpoint.json"


def checkpoint_folder(workdir: epath.Path, step: int) -> epath.Path:
    """The folder of a step's checkpoint."""
    return workdir / "checkpoints" / str(step)


def checkpoint_steps(workdir: epath.Path) -> list[int]:
    """Steps of the finished checkpoints of a run, ascending."""
    return sorted(int(path.name) for path in _numbered(workdir) if _is_sealed(path))


def newest_whole(workdir: epath.Path, *items: str) -> tuple[int | None, dict[int, str]]:
    """The step of the newest whole checkpoint, and what is wrong with each newer one.

    Args:
        workdir: the run folder.
        items: what is looked at; see `find_damage`.
    """
    problems: dict[int, str] = {}
    for step in reversed(checkpoint_steps(workdir)):
        problem = find_damage(checkpoint_folder(workdir, step), *items)
        if problem is None:
            return step, problems
        problems[step] = problem
    return None, problems


def has_trained(workdir: epath.Path) -> bool:
    """Whether a checkpoint was ever saved in the run folder."""
    return bool(checkpoint_steps(workdir)) or (workdir / _LAST).exists()


def read_meta(workdir: epath.Path, step: int) -> Any:
    """The JSON of a checkpoint's `meta`, read without Orbax, which creates folders.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    return json.loads((checkpoint_folder(workdir, step) / "meta" / "metadata").read_text())


class Checkpoints:
    """The checkpoints of one run folder, for the processes that train it.

    A context that ends when everything is on disk. After an exception, only a process that is
    alone waits for that: several would wait for each other, and one of them may be dead.

    Args:
        workdir: the run folder, seen by all processes.
        keep: how many of the last checkpoints to keep, besides the best one.
        files: contents to put into every checkpoint, by relative path.

    Attributes:
        workdir: the run folder, absolute.
        newest: step of the newest whole checkpoint, or None in a new run.

    Raises:
        UserError: the folder held checkpoints and none of them is whole.
    """

    def __init__(
        self, workdir: epath.Path, keep: int, files: Mapping[str, bytes] | None = None
    ) -> None:
        self.workdir = absolute(workdir)
        self._files = dict(files or {})
        self.newest, self._damaged = from_first(self._inspect)
        self._saving: int | None = None  # the step that `_complete` may seal
        self._failed = False  # whether a save failed
        self._to_note: int | None = None  # a step that `last_checkpoint.json` does not name yet
        self._best = _Best()
        kept = policies.AnyPreservationPolicy([policies.LatestN(keep), self._best])
        options = ocp.CheckpointManagerOptions(
            preservation_policy=kept,
            create=True,
            async_options=ocp.AsyncOptions(post_finalization_callback=self._complete),
        )
        self._manager = ocp.CheckpointManager(self.workdir / "checkpoints", options=options)

    def _inspect(self) -> tuple[int | None, list[int]]:
        """(the newest whole checkpoint, the damaged ones that are newer)."""
        last, unreadable = _read_last(self.workdir)
        newest, damage = newest_whole(self.workdir)
        problems = "; ".join(f"checkpoints/{step}: {damage[step]}" for step in damage)
        if newest is None and (problems or unreadable or last is not None):
            reason = problems or unreadable or f"the one of step {last} is gone"
            raise UserError(
                f"{self.workdir}: this folder held a run, and none of its checkpoints "
                f"is whole ({reason}); nothing was touched: put one back, or use another folder"
            )
        if newest is not None and (problems or (last or 0) > newest):
            reason = problems or f"checkpoint {last} is gone"
            _LOGGER.warning("damaged checkpoint (%s): falling back to step %d", reason, newest)
        self._remove_half_saved()  # left by a kill
        folder = self.workdir / "checkpoints"
        with as_user_error(f"cannot write {folder}:", OSError):
            folder.mkdir(parents=True, exist_ok=True)
        return newest, list(damage)

    def _complete(self) -> None:
        """Adds the files and the manifest; runs when all items are written, before the seal."""
        saving = str(self._saving)
        (folder,) = (x for x in _half_saved(self.workdir) if x.name.split(".")[0] == saving)
        for name, content in self._files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        write_manifest(folder)

    def save(
        self, step: int, items: Mapping[str, Any], meta: dict[str, Any], *, best: bool
    ) -> None:
        """Starts saving.

        Args:
            step: the checkpoint's name.
            items: pytrees of arrays, by name.
            meta: a JSON object; `best_step` is added to it.
            best: whether to keep this checkpoint as the best so far.

        Raises:
            CannotSave: this save or the one before it failed; older checkpoints are whole.
        """
        self.wait()
        self._saving = self._to_note = step
        if best:
            self._best.step = step
        args = {name: ocp.args.StandardSave(tree) for name, tree in items.items()}
        args["meta"] = ocp.args.JsonSave({**meta, "best_step": self._best.step})
        with self._errors_of_saving():
            if step not in self._manager.all_steps():
                self._manager.save(step, args=ocp.args.Composite(**args), force=True)

    def restore(self, abstract: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """The items and the meta of the newest whole checkpoint.

        Newer checkpoints, which are damaged, move to `damaged/`: their names will be used again.

        Args:
            abstract: `jax.ShapeDtypeStruct`s with shardings, by item.

        Raises:
            UserError: the checkpoint holds other items or other shapes.
        """
        args = {name: ocp.args.StandardRestore(tree) for name, tree in abstract.items()}
        args["meta"] = ocp.args.JsonRestore()
        what = (
            f"{self.workdir}: the checkpoint of step {self.newest} is whole but "
            "holds another model or optimizer, or was written by another version:"
        )
        with as_user_error(what, ValueError, KeyError, TypeError, OSError):
            restored = self._manager.restore(self.newest, args=ocp.args.Composite(**args))
        if self._damaged:

            def set_aside() -> None:
                for step in self._damaged:
                    folder = checkpoint_folder(self.workdir, step)
                    move_folder(folder, self.workdir / "damaged" / str(step))

            from_first(set_aside)
            self._manager.reload()
            self._damaged = []
        meta = restored["meta"]
        self._best.step = meta.get("best_step") if isinstance(meta, dict) else None
        return {name: restored[name] for name in abstract}, meta

    def wait(self) -> None:
        """Returns when the checkpoint being saved is on disk.

        Raises:
            CannotSave: it could not be written; older checkpoints are whole.
        """
        with self._errors_of_saving():
            self._manager.wait_until_finished()
        self.note_sealed()

    def note_sealed(self) -> None:
        """Names a checkpoint sealed by now in `last_checkpoint.json`; does not wait for one.

        Raises:
            CannotSave: the file could not be written; the checkpoints are whole.
        """
        if self._to_note is None or not is_first() or self._manager.is_saving_in_progress():
            return
        if self._to_note in checkpoint_steps(self.workdir):  # the save may have failed
            path = self.workdir / _LAST
            failed = f"cannot write {path}:"
            with as_user_error(failed, OSError, then=STILL_WHOLE, become=CannotSave):
                write_whole(path, (json.dumps({"step": self._to_note}) + "\n").encode())
            self._to_note = None

    @contextlib.contextmanager
    def _errors_of_saving(self) -> Iterator[None]:
        """Around calls of Orbax, which raise what went wrong in its threads: a `CannotSave`."""
        try:
            yield
        except Exception as error:
            step, self._saving = self._saving, None  # no late thread may complete and seal it
            self._failed, self._to_note = True, None
            self._remove_half_saved()
            earlier = "the earlier ones cannot be listed now"
            with contextlib.suppress(Exception):  # of a bucket that does not respond
                older = ", ".join(map(str, checkpoint_steps(self.workdir)))
                whole = f"the earlier ones of steps {older} are whole"
                earlier = whole if older else "there is no earlier one"
            raise CannotSave(
                f"cannot save the checkpoint of step {step} in {self.workdir}: "
                f"{first_line(error)}; {earlier}: make room there and start the same command again"
            ) from error

    def _remove_half_saved(self) -> bool:
        """Removes unfinished checkpoints; returns whether there was none."""
        found: list[epath.Path] = []
        if is_first():
            with contextlib.suppress(Exception):  # no response from a bucket: at the next start
                found = _half_saved(self.workdir)
                for path in found:
                    remove_folder(path)
        return not found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or jax.process_count() == 1:
            with contextlib.suppress(UserError) if kind else contextlib.nullcontext():
                self.close()

    def close(self) -> None:
        """Waits, then ends Orbax's threads."""
        try:
            self.wait()
        finally:
            with contextlib.suppress(Exception):  # a failed save raises again here
                self._manager.close()
            if self._failed:
                # The threads of a failed save still write, into folders they create again, and may
                # pause in between.
                quiet = 0
                for _ in range(50):
                    time.sleep(0.1)
                    quiet = quiet + 1 if self._remove_half_saved() else 0
                    if quiet == 5:
                        break


class _Best(policies.PreservationPolicy):
    """Preserves the step marked as the best.

    Orbax's `BestN` reads a metrics file of every checkpoint at each start, so a damaged file of
    an old checkpoint would stop the run. Here the newest checkpoint's `meta` names the best one.
    """

    step: int | None = None

    def should_preserve(self, checkpoints: Sequence[Any], **_: Any) -> Sequence[bool]:
        return [checkpoint.step == self.step for checkpoint in checkpoints]


def _numbered(workdir: epath.Path) -> list[epath.Path]:
    folder = workdir / "checkpoints"
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.name.isdigit()]


def _is_sealed(checkpoint: epath.Path) -> bool:
    return not in_bucket(checkpoint) or (checkpoint / "commit_success.txt").exists()


def _half_saved(workdir: epath.Path) -> list[epath.Path]:
    """Checkpoints being saved, or left unfinished by a kill."""
    unsealed = [path for path in _numbered(workdir) if not _is_sealed(path)]
    return [*unsealed, *(workdir / "checkpoints").glob("*.orbax-checkpoint-tmp*")]


def _read_last(workdir: epath.Path) -> tuple[int | None, str]:
    """(the step noted, what is wrong with the file); (None, "") if there is no file."""
    path = workdir / _LAST
    if not path.exists():
        return None, ""
    try:
        step = json.loads(path.read_bytes())["step"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        step = None
    return (step, "") if isinstance(step, int) else (None, f"there is none, and {_LAST} is damaged")
