"""SIGTERM (preemption) and Ctrl-C as a request to save and stop after the current step."""

import os
import signal
from types import FrameType

from transformer_jax.parallel.processes import several, stop_agreed


class StopOnSignals:
    """Asked once after each step whether to stop; handles the signals from its construction on.

    Several processes get the same answers. A second signal ends the process at once.

    Attributes:
        stopped: whether a signal stopped the training.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._calls = 0
        # JAX handles SIGTERM for several processes.
        for number in (signal.SIGINT,) if several() else (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.SIG_DFL)
        if several():
            os.kill(os.getpid(), signal.SIGTERM)  # the only signal that `stop_agreed` knows
        else:
            self.stopped = True

    def __call__(self) -> bool:
        if several():
            self._calls += 1  # the same number in every process
            self.stopped = stop_agreed(self._calls)
        return self.stopped
