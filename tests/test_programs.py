"""The budget of compiled programs fails a run that exceeds it, and says which file."""

from types import SimpleNamespace

import pytest

from tests import programs


def finished(*counts: tuple[str, str, int]) -> programs.Programs:
    """After reports of (file, worker, programs)."""
    plugin = programs.Programs()
    for file, worker, count in counts:
        report = SimpleNamespace(nodeid=f"{file}::test_a", worker_id=worker, programs=count)
        plugin.pytest_runtest_logreport(report)
    return plugin


def status_of(plugin: programs.Programs) -> int:
    session = SimpleNamespace(config=SimpleNamespace(), exitstatus=pytest.ExitCode.OK)
    plugin.pytest_sessionfinish(session)
    return session.exitstatus


def test_a_file_above_its_limit_fails_the_run(monkeypatch) -> None:
    monkeypatch.setattr(programs, "EXCEPTIONS", {"large.py": (500, "a reason")})
    counts = ("a.py", "gw0", 300), ("a.py", "gw1", 350), ("large.py", "gw0", 450)
    within = finished(*counts)
    assert within.over() == [] and status_of(within) == 0
    above = finished(*counts, ("a.py", "gw1", 51), ("large.py", "gw0", 51))
    assert [line.split(" programs")[0] for line in above.over()] == ["a.py: 401", "large.py: 501"]
    assert status_of(above) == 1


def test_every_exception_is_a_file_with_a_reason() -> None:
    for name, (limit, reason) in programs.EXCEPTIONS.items():
        assert limit > programs.LIMIT and reason and (programs.ROOT / name).is_file(), name
