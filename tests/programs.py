"""A budget that keeps the suite quick: how many programs each test file compiles.

Nearly all of the suite's time is compilation, and a count does not depend on the machine. Programs
read from the cache count too; those of a test's own processes do not. Where two workers share a
file, both may compile the same programs: the larger count is the file's. A file that runs alone
compiles the most, as single operations are shared by all files of a process: limits are for that.
"""

from collections import Counter, defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: Programs of one test file.
LIMIT = 400
BY_OPERATION = "it looks at single operations, each of which is a small program outside jit"
#: Files that may compile more, each with its reason.
EXCEPTIONS = {
    "tests/contract/test_layers.py": (500, BY_OPERATION),
    "tests/contract/test_mixers.py": (600, "every mixer in each role"),
    "tests/contract/test_positions.py": (750, BY_OPERATION),
    "tests/contract/test_suite_rejects.py": (450, BY_OPERATION),
    "tests/models/test_for_decoding.py": (900, BY_OPERATION),
    "tests/models/test_guided.py": (450, BY_OPERATION),
    "tests/models/test_options.py": (700, BY_OPERATION),
    "tests/models/test_quantization.py": (450, BY_OPERATION),
    "tests/models/test_teachers.py": (500, BY_OPERATION),
    "tests/test_adding_layers.py": (450, BY_OPERATION),
    "tests/test_attention_doc.py": (750, BY_OPERATION),
    "tests/training/test_frozen.py": (500, BY_OPERATION),
    "tests/ops/test_int8_products.py": (450, BY_OPERATION),
    "tests/positions/test_formulas.py": (450, BY_OPERATION),
}

#: What jax.monitoring calls a compilation, also one that the cache answers.
EVENT = "/jax/core/compile/backend_compile_duration"


class Programs:
    """The plugin: counts in each process, adds up where the reports arrive."""

    def __init__(self) -> None:
        self.of_process = 0
        self.of_files: dict[str, Counter[str]] = defaultdict(Counter)  #: file -> worker -> count

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
        worker = getattr(report, "worker_id", "")
        # The report of a worker that died has no count.
        self.of_files[report.nodeid.partition("::")[0]][worker] += getattr(report, "programs", 0)

    def over(self) -> list[str]:
        """A line for each file above its limit."""
        return [
            f"{name}: {count} programs, and {limit} are its limit: {__name__} says what counts"
            for name, counts in sorted(self.of_files.items())
            for count, (limit, _) in [(max(counts.values()), EXCEPTIONS.get(name, (LIMIT, "")))]
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
