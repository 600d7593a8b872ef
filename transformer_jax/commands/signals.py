"""SIGTERM (preemption) and Ctrl-C as a request to save and stop after the current step."""

import os
import signal
import time
from multiprocessing import parent_process
from threading import Thread
from types import FrameType

from transformer_jax.parallel.processes import gather, several, stop_agreed


def end_with_command() -> None:
    """Ends this process when the command that started it ends, whatever ends that."""
    if (command := parent_process()) is not None:

        def end() -> None:
            command.join()
            os._exit(1)

        Thread(target=end, daemon=True).start()


class StopOnSignals:
    """Asked once after each step whether to stop; handles the signals from its construction on.

    Several processes get the same answers. A second signal ends the process at once.

    Attributes:
        stopped: whether a signal stopped the training.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._calls, self._began = 0, time.monotonic()
        # JAX handles SIGTERM for several processes.
        for number in (signal.SIGINT,) if several() else (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def _receive(self, number: int, _: FrameType | None) -> None:
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

    def while_apart(self) -> bool:
        """As a call, where the processes do not keep step: they agree on a second to stop at.

        It is a call for each second since the last one. `meet` ends such a stretch.
        """
        if not several():
            return self()
        while not self.stopped and self._calls < time.monotonic() - self._began:
            self()
        return self.stopped

    def meet(self) -> bool:
        """Waits for the other processes; whether one of them has stopped.

        From here on they keep step.
        """
        states = gather([f"{self._calls} {self.stopped}"])
        self._calls = max(int(state.split()[0]) for state in states)
        self.stopped = any(state.endswith("True") for state in states)
        return self.stopped
