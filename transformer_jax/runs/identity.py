"""Whether a run folder's checkpoints come from the data and tokenizer at hand."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path

from transformer_jax.errors import UserError
from transformer_jax.paths import as_path
from transformer_jax.runs.checkpoints import checkpoint_steps


def check_identity(
    saved: Mapping[str, str] | None, now: Mapping[str, str] | None, workdir: str | Path | None
) -> None:
    """Refuses to continue a run on other data.

    A key that is not stored differs from nothing: older checkpoints have fewer of them.

    Args:
        saved: the identity stored in a checkpoint.
        now: the identity of what is at hand, by the name of each part.
        workdir: the run folder, to be named.

    Raises:
        UserError: a part differs.
    """
    for key, value in (now or {}).items():
        if (saved or {}).get(key, value) != value:
            raise UserError(
                f"--workdir={workdir}: the {key} changed since this run was saved, so it cannot be "
                "continued exactly: restore what it was, or use another folder"
            )


def check_run_folder(workdir: str | Path, now: Mapping[str, str]) -> None:
    """`check_identity` with the newest checkpoint of a folder, of which nothing is touched.

    Raises:
        UserError: as there.
    """
    check_identity(_stored(workdir), now, workdir)


def _stored(workdir: str | Path) -> dict[str, str] | None:
    """The newest identity that can be read, without Orbax, which makes folders."""
    folders = [as_path(workdir) / name for name in ("checkpoints", "best")]
    found = [(step, folder) for folder in folders for step in checkpoint_steps(folder)]
    for step, folder in sorted(found, key=lambda each: -each[0]):
        # Whether a checkpoint is whole is for its restoration to say.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            path = folder / str(step) / "meta" / "metadata"
            return dict(json.loads(path.read_text(encoding="utf-8"))["identity"])
    return None
