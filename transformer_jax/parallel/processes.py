"""Several processes that train one model: they start, exchange messages and stop together.

Messages go through the key-value store of JAX's distributed runtime, as Orbax's barriers do, and
not through the devices: while one host learns a tokenizer, a collective on the others would time
out.
"""

import itertools
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from transformer_jax.errors import UserError, as_user_error
from transformer_jax.settings.unsupported import jax_distributed_state

#: A process without a heartbeat for this long counts as dead, and the others end.
HEARTBEAT_SECONDS = 30
_TIMEOUT_MS = 24 * 3600 * 1000  # a slow process is waited for; a dead one is noticed by heartbeat

#: None, a bool, a number, a string, or a list or dict of these.
Json = Any
T = TypeVar("T")
_counter = itertools.count()


def several() -> bool:
    """Whether there are other processes."""
    return jax.process_count() > 1


def is_first() -> bool:
    """Whether this process writes logs, scores and the config."""
    return jax.process_index() == 0


def start(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> None:
    """Joins the other processes; arguments that are None are detected from the cluster.

    JAX detects TPU, SLURM, Kubernetes and Open MPI. Call this before JAX starts a device.

    Raises:
        UserError: an argument is missing and not detected, or the others do not respond.
    """
    given = {
        "coordinator_address": coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS"),
        "num_processes": num_processes,
        "process_id": process_id,
    }
    if coordinator_address and ":" not in coordinator_address:
        raise UserError(f"coordinator_address={coordinator_address}: expected HOST:PORT")
    if num_processes is not None and num_processes < 1:
        raise UserError(f"num_processes={num_processes}: expected at least 1")
    if num_processes is not None and not 0 <= (process_id or 0) < num_processes:
        raise UserError(f"process_id={process_id}: expected 0 to {num_processes - 1}")
    missing = [name for name, value in given.items() if value is None]
    advice = f"; no cluster was detected, so give {', '.join(missing)}" if missing else ""
    failed = "cannot start several processes:"
    with as_user_error(failed, ValueError, TypeError, RuntimeError, then=advice):
        jax.distributed.initialize(
            coordinator_address,
            num_processes,
            process_id,
            cluster_detection_method=None if missing else "deactivate",
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=2 * HEARTBEAT_SECONDS,
        )
    state = jax_distributed_state()
    if state.preemption_sync_manager is not None:  # None: JAX is configured without the service
        state.preemption_sync_manager = _Preemption(state.preemption_sync_manager)


def from_first(
    make: Callable[[], T],
    encode: Callable[[T], Json] = lambda value: value,
    decode: Callable[[Json], T] = lambda value: value,
) -> T:
    """The value that `make` returns in the first process, for all of them.

    Args:
        make: called in the first process alone.
        encode: makes a JSON value of it, which is sent.
        decode: what the others make of that.

    Raises:
        UserError: `make` raised one in the first process, or an OSError: all processes raise it.
    """
    if jax.process_count() == 1:
        return make()
    key = _next_key()
    if not is_first():
        answer = _get(key)
        if "error" in answer:
            raise UserError(answer["error"])
        return decode(answer["value"])
    try:
        value = make()
    except (UserError, OSError) as error:
        message = str(error)
        if isinstance(error, OSError):
            message = f"{error.filename or 'input and output'}: {error.strerror}"
        _set(key, {"error": message})
        raise UserError(message) from None
    _set(key, {"value": encode(value)})
    return value


def one_host_at_a_time(make: Callable[[], Any]) -> Any:
    """`make()` in every process, but first in one process of each host: it fills the caches."""
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
    _set(f"{key}/{jax.process_index()}", list(texts))
    return [text for process in range(jax.process_count()) for text in _get(f"{key}/{process}")]


class _Preemption:
    """Takes the place of JAX's preemption service, so that only `stop_agreed` asks it.

    The service assumes the caller has reached the step it passes, and lets all processes stop one
    step after the farthest. Orbax passes it the step of every save, also from another thread and
    long after that step: a process would then miss the step at which the others stop.
    """

    def __init__(self, service: Any) -> None:
        self.service = service

    def reached_sync_point(self, _: int) -> bool:
        """The answer to Orbax."""
        return False

    def shutdown(self) -> None:
        """Called before the distributed runtime ends."""
        self.service.shutdown()


def stop_agreed(step: int) -> bool:
    """Whether all processes save and stop after this step, because one received SIGTERM.

    JAX's preemption service gives every process the same answer. Call it once after each step,
    with numbers that rise by one and are the same in every process.
    """
    preemption = jax_distributed_state().preemption_sync_manager
    return isinstance(preemption, _Preemption) and bool(preemption.service.reached_sync_point(step))


def _next_key() -> str:
    return f"transformer_jax/{next(_counter)}"  # the same in all: they make the same calls


def _set(key: str, value: Json) -> None:
    jax_distributed_state().client.key_value_set(key, json.dumps(value))


def _get(key: str) -> Json:
    return json.loads(jax_distributed_state().client.blocking_key_value_get(key, _TIMEOUT_MS))
