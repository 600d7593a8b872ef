"""One run per folder: a lock that the kernel releases when its process ends, however it ends.

`flock(2)` on `<workdir>/.lock` works between the processes of one machine and, on Linux, over
NFS; other network file systems may limit it to one machine or lack it. Without a lock the folder
is still used, and a warning is logged. A bucket has no lock: an object in place of one would
outlive a `SIGKILL`.
"""

import contextlib
import contextvars
import errno
import json
import logging
import os
import socket
from collections.abc import Iterator
from datetime import datetime

from etils import epath

from transformer_jax.errors import UserError
from transformer_jax.paths import in_bucket

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

_LOGGER = logging.getLogger(__name__)

#: Folders that this context already holds.
_held: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar(
    "held run folders", default=frozenset()
)


@contextlib.contextmanager
def only_run(workdir: epath.Path) -> Iterator[None]:
    """Holds the folder while the context is open, and makes it if missing.

    Raises:
        UserError: another process or another thread trains there.
    """
    folder = os.fspath(workdir) if in_bucket(workdir) else os.path.realpath(workdir)
    if folder in _held.get():
        yield
        return
    with contextlib.ExitStack() as stack:
        if in_bucket(workdir):
            _LOGGER.warning("no lock on %s: a bucket has none, so start no second run", workdir)
        else:
            workdir.mkdir(parents=True, exist_ok=True)
            _lock(stack.enter_context(_opened(workdir / ".lock")), workdir)
        token = _held.set(_held.get() | {folder})
        stack.callback(_held.reset, token)
        yield


@contextlib.contextmanager
def one_at_a_time(path: epath.Path) -> Iterator[None]:
    """Waits until no other process is in this context with the same file.

    For reading a file and writing it back. In a bucket, or on a file system without locks, it
    does not wait.
    """
    with contextlib.ExitStack() as stack:
        if fcntl and not in_bucket(path):
            descriptor = stack.enter_context(_opened(path.with_name(f".{path.name}.lock")))
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _opened(path: epath.Path) -> Iterator[int]:
    """The descriptor of a lock file; removing it would race with a process that opens it now."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, workdir: epath.Path) -> None:
    if not fcntl:
        _LOGGER.warning("no lock on %s on this system: start no second run there", workdir)
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise UserError(
                f"{workdir}: a run is in progress here ({_holder(descriptor)}); wait for its end, "
                "stop it, or use another folder"
            ) from None
        _LOGGER.warning(
            "no lock on %s (%s): this file system has none, so start no second run there",
            workdir,
            error.strerror,
        )
        return
    since = f"{datetime.now():%Y-%m-%d %H:%M:%S}"
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
    with contextlib.suppress(OSError):  # a full disk is no reason to refuse the lock
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode() + b"\n", 0)


def _holder(descriptor: int) -> str:
    try:
        owner = json.loads(os.pread(descriptor, 1000, 0))
        return f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
