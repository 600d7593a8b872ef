"""One run per folder: a lock that the kernel lets go of when its process ends, however.

`flock(2)` on `<workdir>/.lock`. It holds between processes of one machine and, on Linux,
over NFS; other network file systems may keep it to one machine or not have it at all. A
folder on which no lock can be taken is used without one, and a line says so. In a bucket
there is none: an object that stands for one would outlive a `SIGKILL`.
"""

import contextlib
import contextvars
import errno
import json
import os
import socket
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from transformer_jax.errors import UserError
from transformer_jax.paths import as_path, in_bucket, make_folder

#: Folders that the caller of this code already holds.
_held: contextvars.ContextVar[frozenset[Path]] = contextvars.ContextVar(
    "held run folders", default=frozenset()
)

_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)


@contextlib.contextmanager
def only_run(workdir: str | Path, say: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Holds the folder as long as the context is open; made if missing.

    Raises:
        UserError: another process, or another thread, trains there.
    """
    folder = as_path(workdir)
    folder = folder if in_bucket(folder) else folder.resolve()
    if folder in _held.get():
        yield
        return
    with contextlib.ExitStack() as stack:
        if in_bucket(folder):
            say(f"note: no lock on {workdir}: a bucket has none, so start no second run there")
        else:
            make_folder(folder)
            descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
            # The file stays: removing it would race with who opens it now.
            stack.callback(os.close, descriptor)
            _lock(descriptor, workdir, say)
        token = _held.set(_held.get() | {folder})
        stack.callback(_held.reset, token)
        yield


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Waits until no other process is between here and the context's end for this file.

    For reading a file and writing it again. A folder of a file system that has no locks, or
    of a bucket, has none here either.
    """
    with contextlib.ExitStack() as stack:
        if not in_bucket(path):
            flags = os.O_RDWR | os.O_CREAT
            descriptor = os.open(path.with_name(f".{path.name}.lock"), flags, 0o644)
            stack.callback(os.close, descriptor)
            with contextlib.suppress(ImportError, OSError):
                import fcntl

                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _lock(descriptor: int, workdir: str | Path, say: Callable[[str], None]) -> None:
    try:
        import fcntl
    except ImportError:  # not a Unix
        say(f"note: no lock on {workdir} on this system: start no second run there")
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            raise UserError(
                f"--workdir={workdir}: a run is going on here ({_holder(descriptor)}); wait for "
                "its end, stop it, or use another folder"
            ) from None
        say(
            f"note: no lock on {workdir} ({error.strerror}): this file system has none, so start "
            "no second run there"
        )
        return
    who = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": f"{datetime.now():%Y-%m-%d %H:%M:%S}",
    }
    with contextlib.suppress(OSError):  # a full disk must not keep anybody from the lock
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(who).encode() + b"\n", 0)


def _holder(descriptor: int) -> str:
    try:
        who = json.loads(os.pread(descriptor, 1000, 0))
        return f"process {who['pid']} on {who['host']} since {who['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
