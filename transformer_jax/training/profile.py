"""A trace of some steps of a training, which TensorBoard and Perfetto open."""

import logging
import os
from typing import Any

import jax

_LOGGER = logging.getLogger(__name__)

#: Steps that are left out at the start: beside them libraries are imported and inputs are read.
SETTLING_STEPS = 10


class StepProfile:
    """Traces so many steps, once the first ones are done and no program is being compiled.

    Args:
        folder: where the trace is written, on this machine.
        steps: how many are traced; 0: none.
    """

    def __init__(self, folder: str | os.PathLike[str], steps: int) -> None:
        self._folder, self._left = os.fspath(folder), steps
        self._before, self._is_on = SETTLING_STEPS, False

    def end_step(self, metrics: Any, *, is_settled: bool) -> None:
        """Begins the trace after a step, or ends it.

        Args:
            metrics: of the step, which are waited for at both ends of the trace.
            is_settled: whether nothing is being compiled.
        """
        if not self._left:
            return
        self._before -= 1
        if self._is_on:
            self._left -= 1
            if not self._left:
                jax.block_until_ready(metrics)
                self.close()
        elif self._before < 0 and is_settled:
            jax.block_until_ready(metrics)
            jax.profiler.start_trace(self._folder)
            self._is_on = True

    def close(self) -> None:
        """Writes what was traced."""
        if self._is_on:
            jax.profiler.stop_trace()
            _LOGGER.info("profile of the steps: %s", self._folder)
        elif self._left:
            _LOGGER.warning("the training ended before its steps could be profiled")
        self._left, self._is_on = 0, False
