"""Jobs of `transformer-jax check`: programs that threads compile, and the rows they give."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import Any, NamedTuple

import jax

from transformer_jax.commands.check.row import Row
from transformer_jax.errors import first_line
from transformer_jax.ops.sharding import alone_on
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.training.step import options_for

#: XLA need not look for the fastest kernels of a program that is not timed.
UNTUNED = {"xla_gpu_autotune_level": 0}

NUM_THREADS = os.cpu_count() or 1


class Job(NamedTuple):
    """Rows that are computed together."""

    part: str  #: what `--parts` calls it
    name: str
    programs: Mapping[str, Callable[[], Any]]  #: name -> what gives the lowered program
    rows: Callable[[Mapping[str, Any]], Iterable[Row]]  #: of the compiled programs
    is_timed: bool = False  #: nothing may be compiled meanwhile

    def missing(self, why: str) -> Row:
        """Stands for rows that are missing."""
        return Row(self.part, self.name, f"not finished: {why}", limit=0.0)


class Untuned(NamedTuple):
    """A lowered program of one device that is not timed."""

    lowered: Any
    device: jax.Device

    def compile(self) -> Any:
        """The compiled program. Options that the compiler does not take are left out."""
        options = _options(self.device)
        try:
            return self.lowered.compile(compiler_options=options | UNTUNED)
        except jax.errors.JaxRuntimeError:
            return self.lowered.compile(compiler_options=options)


@cache
def _options(device: jax.Device) -> dict[str, Any]:
    return options_for(make_mesh(MeshConfig(), [device]))


def exact(device: jax.Device, lower: Callable[[], Any]) -> Callable[[], Untuned]:
    """What lowers for one device, with products of float32 in full."""

    def lowered() -> Untuned:
        precise, here = jax.default_matmul_precision("highest"), jax.default_device(device)
        with precise, here, alone_on(device.platform):
            return Untuned(lower(), device)

    return lowered


def at_once(job: Job) -> Iterable[Row]:
    """The rows of a job alone."""
    return job.rows({name: lower().compile() for name, lower in job.programs.items()})


def run(jobs: list[Job], limit: float) -> Iterator[Row]:
    """The rows of jobs in their order; a job is taken off the list when its rows are known.

    As many threads as cores compile; only one lowers at a time, since that holds the interpreter's
    lock.

    Args:
        jobs: in their order.
        limit: seconds that a part waits for its programs.
    """
    lowering, ends, pool = threading.Lock(), dict[str, float](), ThreadPoolExecutor(NUM_THREADS)

    def compiled(lower: Callable[[], Any]) -> Any:
        with lowering:
            lowered = lower()
        return lowered.compile()

    programs = [
        {name: pool.submit(compiled, lower) for name, lower in job.programs.items()} for job in jobs
    ]
    try:
        for own in programs:
            end = ends.setdefault(jobs[0].part, time.monotonic() + limit)
            try:
                everything = [each for some in programs for each in some.values()]
                if jobs[0].is_timed and wait(everything, limit).not_done:
                    raise TimeoutError
                results = {
                    name: each.result(max(0.0, end - time.monotonic()))
                    for name, each in own.items()
                }
                yield from jobs[0].rows(results)
            except TimeoutError:
                for each in own.values():
                    each.cancel()
                yield jobs[0].missing(f"over the limit of {limit:g} s")
            except Exception as error:  # what else there is still tells something
                yield jobs[0].missing(f"{type(error).__name__}: {first_line(error)}")
            jobs.pop(0)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
