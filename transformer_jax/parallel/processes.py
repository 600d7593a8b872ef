"""Several processes that train one model: starting, agreeing, and ending together.

Messages between hosts go through the key-value store of JAX's distributed runtime (as
Orbax's barriers do), not through the devices: a slow tokenizer on one host must not run
into the timeout of a collective on the others.
"""

import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from transformer_jax.errors import UserError

#: A process that has been silent for this long is taken for dead, and the others end.
HEARTBEAT_SECONDS = 30
_TIMEOUT_MS = 24 * 3600 * 1000  # a living peer may take its time; a dead one ends us
_PIECE_BYTES = 1 << 20  # of a message, to stay within gRPC's limits
_counter = itertools.count()


def several() -> bool:
    """Whether there is more than this process."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this process writes logs, scores and the config."""
    return jax.process_index() == 0


def start(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> None:
    """Joins the other processes; what is not given is detected (TPU, SLURM, Kubernetes, Open MPI).

    Call it before anything asks for devices.

    Raises:
        UserError: not all of it is known, or the others do not answer.
    """
    given = {
        "--coordinator_address": coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS"),
        "--num_processes": num_processes,
        "--process_id": process_id,
    }
    if coordinator_address and ":" not in coordinator_address:
        raise UserError(f"--coordinator_address={coordinator_address}: expected HOST:PORT")
    if num_processes is not None and num_processes < 1:
        raise UserError(f"--num_processes={num_processes}: expected at least 1")
    if num_processes is not None and not 0 <= (process_id or 0) < num_processes:
        raise UserError(f"--process_id={process_id}: expected 0 to {num_processes - 1}")
    explicit = all(value is not None for value in given.values())
    try:
        jax.distributed.initialize(
            coordinator_address,
            num_processes,
            process_id,
            cluster_detection_method="deactivate" if explicit else None,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=2 * HEARTBEAT_SECONDS,
        )
    except (ValueError, TypeError, RuntimeError) as error:
        missing = [name for name, value in given.items() if value is None]
        advice = f"; no cluster was detected, so give {', '.join(missing)}" if missing else ""
        line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise UserError(f"cannot start several processes: {line}{advice}") from error
    _keep_stopping_to_ourselves()


def from_first(make: Callable[[], bytes]) -> bytes:
    """What `make` returns in the first process, for all of them.

    Raises:
        UserError: `make` raised one in the first process: all of them raise it.
    """
    if jax.process_count() == 1:
        return make()
    key = _next_key()
    if not is_first():
        answer = _get(key)
    else:
        try:
            answer = b"+" + make()
        except UserError as error:
            answer = b"-" + str(error).encode()
        except OSError as error:
            answer = f"-{error.filename or 'input and output'}: {error.strerror}".encode()
        _set(key, answer)
    if answer[:1] == b"-":
        raise UserError(answer[1:].decode())
    return answer[1:]


def one_host_at_a_time(make: Callable[[], Any]) -> Any:
    """`make()` in every process, first in one of each host: the others find its caches."""
    if jax.process_count() == 1:
        return make()
    import socket

    hosts = gather([socket.gethostname()])
    leads = hosts.index(hosts[jax.process_index()]) == jax.process_index()
    result = make() if leads else None
    gather([])
    return result if leads else make()


def gather(texts: Sequence[str]) -> list[str]:
    """The texts of all processes, in the order of the processes; also a barrier."""
    if jax.process_count() == 1:
        return list(texts)
    key = _next_key()
    _set(f"{key}/{jax.process_index()}", json.dumps(list(texts)).encode())
    return [
        text
        for process in range(jax.process_count())
        for text in json.loads(_get(f"{key}/{process}"))
    ]


class _Stopping:
    """Stands in the place of JAX's preemption service, which `stop_agreed` alone may ask.

    The service takes whoever asks to be at the step that he names, and lets all stop at one
    step past the farthest. Orbax asks in every save, from another thread too, for steps that
    are long over: a process would miss the step at which the others stop.
    """

    def __init__(self, service: Any) -> None:
        self.service = service

    def reached_sync_point(self, step: int) -> bool:
        """What Orbax is told."""
        del step
        return False

    def shutdown(self) -> None:
        """Called before the distributed runtime ends."""
        self.service.shutdown()


def _keep_stopping_to_ourselves() -> None:
    state = _state()
    if state.preemption_sync_manager is not None:  # None: JAX was told to have no such service
        state.preemption_sync_manager = _Stopping(state.preemption_sync_manager)


def stop_agreed(step: int) -> bool:
    """Whether all processes save and stop after this step, since one of them got a SIGTERM.

    JAX's preemption service decides: the answer is the same in every process. Call it once
    after each step, with numbers that rise by one, the same in every process.
    """
    stopping = _state().preemption_sync_manager
    return isinstance(stopping, _Stopping) and bool(stopping.service.reached_sync_point(step))


def _next_key() -> str:
    return f"transformer_jax/{next(_counter)}"  # every process makes the same calls in order


def _state() -> Any:
    from jax._src import distributed  # no public name; Orbax's barriers use the same client

    return distributed.global_state


def _client() -> Any:
    return _state().client


def _set(key: str, value: bytes) -> None:
    pieces = range(0, max(len(value), 1), _PIECE_BYTES)
    for number, start in enumerate(pieces):
        _client().key_value_set_bytes(f"{key}:{number}", value[start : start + _PIECE_BYTES])
    _client().key_value_set_bytes(f"{key}:count", str(len(pieces)).encode())


def _get(key: str) -> bytes:
    def pieces() -> Iterator[bytes]:
        count = int(_client().blocking_key_value_get_bytes(f"{key}:count", _TIMEOUT_MS))
        for number in range(count):
            yield _client().blocking_key_value_get_bytes(f"{key}:{number}", _TIMEOUT_MS)

    return b"".join(pieces())
