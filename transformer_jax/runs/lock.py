"""One run per folder: a lock that the kernel releases when its process ends, however it ends.

`filelock` locks `<workdir>/.lock` with `flock(2)`, which works between the processes of one machine
and, on Linux, over NFS; other network file systems may limit it to one machine or lack it. Without
a lock the folder is still used, and a warning is logged. A bucket has no lock: an object in place
of one would outlive a `SIGKILL`.
"""

import contextlib
import functools
import logging
import os
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from etils import epath
from filelock import FileLock, Timeout

from transformer_jax.errors import UserError
from transformer_jax.paths import in_bucket

_LOGGER = logging.getLogger(__name__)


@contextlib.contextmanager
def only_run(workdir: epath.Path) -> Iterator[None]:
    """Holds the folder while the context is open, and makes it if missing.

    A thread that holds it may enter again.

    Raises:
        UserError: another process or another thread trains there.
    """
    with contextlib.ExitStack() as stack:
        if in_bucket(workdir):
            _warn(f"no lock on {workdir}: a bucket has none, so start no second run")
        else:
            workdir.mkdir(parents=True, exist_ok=True)
            path = Path(workdir, ".lock")
            # A singleton, so that a thread may enter again. `_sign` excludes the fallback to a lock
            # file that would outlive its process.
            lock = FileLock(path, blocking=False, is_singleton=True, on_acquired=_sign)
            try:
                stack.enter_context(lock)
            except Timeout:
                holder = "another process"
                with contextlib.suppress(OSError):
                    holder = path.read_text(errors="replace").strip() or holder
                raise UserError(
                    f"{workdir}: a run is in progress here ({holder}); wait for its end, stop it, "
                    "or use another folder"
                ) from None
            except OSError as error:
                _warn(
                    f"no lock on {workdir} ({error.strerror}): this file system has none, so start "
                    "no second run there"
                )
        yield


@functools.cache  # once a process, also where the folder is entered again
def _warn(message: str) -> None:
    _LOGGER.warning("%s", message)


def _sign(descriptor: int) -> None:
    """Writes into the lock file who holds it."""
    owner = f"process {os.getpid()} on {socket.gethostname()} since {datetime.now():%F %T}"
    with contextlib.suppress(OSError):  # a full disk is no reason to refuse the lock
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, owner.encode(), 0)
