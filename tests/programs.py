"""A budget that keeps the suite quick: how many programs each test file compiles.

Nearly all of the suite's time is compilation, and a count does not depend on the machine. Programs
read from the cache count too, and programs of both workers; those of a test's own processes do not.
"""

from collections import Counter

import pytest

#: Programs of one test file.
LIMIT = 150
#: Files that may compile more, each with its reason.
EXCEPTIONS: dict[str, tuple[int, str]] = {}

#: What jax.monitoring calls a compilation, also one that the cache answers.
EVENT = "/jax/core/compile/backend_compile_duration"


class Programs:
    """The plugin: counts in each process, adds up where the reports arrive."""

    def __init__(self) -> None:
        self.of_process = 0
        self.of_files: Counter[str] = Counter()

    def pytest_collection_finish(self, session):  # the flags of XLA are set by then
        import jax

        def count(event: str, seconds: float, **_: object) -> None:
            self.of_process += event == EVENT

        jax.monitoring.register_event_duration_secs_listener(count)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        report.programs, self.of_process = self.of_process, 0
        return report

    def pytest_runtest_logreport(self, report):
        self.of_files[report.nodeid.partition("::")[0]] += report.programs

    def over(self) -> list[str]:
        """A line for each file above its limit."""
        return [
            f"{name}: {count} programs, and {limit} are its limit: {__name__} says what counts"
            for name, count in sorted(self.of_files.items())
            for limit, _ in [EXCEPTIONS.get(name, (LIMIT, ""))]
            if count > limit
        ]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        is_worker = hasattr(session.config, "workerinput")
        if not is_worker and self.over() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        for line in self.over():
            terminalreporter.write_line(line, red=True)
