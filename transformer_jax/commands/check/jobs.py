"""Jobs of `transformer-jax check`: programs that threads compile, and the rows they give."""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    names: Sequence[str]  #: of its rows
    programs: Mapping[str, Callable[[], Any]]  #: name -> what gives the lowered program
    rows: Callable[[Mapping[str, Any]], Iterable[Row]]  #: of the compiled programs


class NotFinished(Exception):
    """Why a job has no rows."""


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


class Queue:
    """Compiles the programs of jobs in their order, no more at a time than there are cores.

    One program is lowered at a time: that holds the interpreter's lock.

    Args:
        jobs: in their order.
        limit: seconds for the jobs of each part.
    """

    def __init__(self, jobs: Sequence[Job], limit: float) -> None:
        self._limit, self._ends = limit, dict[str, float]()
        self._lowering = threading.Lock()
        self._pool = ThreadPoolExecutor(NUM_THREADS, "check")
        self._programs = [
            {name: self._pool.submit(self._compiled, each) for name, each in job.programs.items()}
            for job in jobs
        ]
        self.jobs = jobs

    def _compiled(self, lower: Callable[[], Any]) -> Any:
        with self._lowering:
            lowered = lower()
        return lowered.compile()

    def rows(self, index: int) -> Iterator[Row]:
        """The rows of a job.

        Raises:
            NotFinished: its part is over the limit, or the compiler or the device failed.
        """
        job, programs = self.jobs[index], self._programs[index]
        end = self._ends.setdefault(job.part, time.monotonic() + self._limit)
        try:
            compiled = {
                name: each.result(max(0.0, end - time.monotonic()))
                for name, each in programs.items()
            }
            yield from job.rows(compiled)
        except TimeoutError:
            for each in programs.values():
                each.cancel()
            raise NotFinished(f"over the limit of {self._limit:g} s") from None
        except jax.errors.JaxRuntimeError as error:
            raise NotFinished(first_line(error)) from error
