"""What several test files share."""

import contextlib
import ctypes
import gc
import io
import logging
import os
import shutil
import sys
import threading
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests import shapes
from tests.oracles import missing, need
from tests.programs import Programs

ROOT = Path(__file__).parents[1]

shapes.install()  # before the conftest of a folder that is named imports the package

# Most of the quick suite's time would go into optimising programs that run once, on a few
# numbers. What XLA makes of them at its best is tried by the slow tests and by benchmarks/.
QUICK_TO_COMPILE = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
# Programs are small: to split one for more threads takes longer than to compile it.
QUICK_TO_COMPILE += " --xla_cpu_parallel_codegen_split_count=1"
if version("jaxlib").startswith("0.10."):  # later ones end the process at this flag
    QUICK_TO_COMPILE += " --xla_cpu_use_fusion_emitters=false"


# The same examples in every run: a merge must not fail by what was drawn, and not by the host's
# speed. `--hypothesis-profile=default` draws others.
settings.register_profile(
    "suite",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("suite")
# It would also draw numbers and words from the source of those of our modules that are imported by
# then: which these are depends on the tests before, in the same process.
providers._get_local_constants = lambda: providers._local_constants

#: Tests and test files that were skipped, for `--write_skipped`.
SKIPPED = []


def pytest_addoption(parser):
    """`pytest --write_skipped=FILE; pytest @FILE` runs the skipped tests again."""
    parser.addoption("--write_skipped", metavar="FILE", help="write the skipped tests, one a line")


def pytest_runtest_logreport(report):
    if report.skipped:
        SKIPPED.append(report.nodeid)


pytest_collectreport = pytest_runtest_logreport


def pytest_sessionfinish(session):
    file = session.config.getoption("write_skipped")
    if file and not hasattr(session.config, "workerinput"):  # the workers' reports arrive here
        Path(file).write_text("".join(f"{test}\n" for test in dict.fromkeys(SKIPPED)))


def pytest_configure(config):
    """XLA reads its flags once, when jax starts it; a test's own processes inherit them."""
    gc.set_threshold(100_000, 20, 20)  # as commands do: a third of the time of tracing otherwise
    if config.option.markexpr == "not slow" and "RUN_ORACLES" not in os.environ:
        config.pluginmanager.register(Programs())
    # Processes that tests start import `transformer_jax` and `tests` from this checkout.
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    if config.option.markexpr == "not slow":
        os.environ.setdefault("XLA_FLAGS", QUICK_TO_COMPILE)
    # What one test has compiled, the others read from here, in this run and in later ones.
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        folder = ROOT / ".pytest_cache" / "compiled"
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
        limit_size(folder, most_bytes=1 << 30)


def limit_size(folder, most_bytes):
    """Deletes the oldest files of a folder.

    JAX can limit the size of its cache itself, but then writes nothing any more once a process was
    killed between the two files of an entry, and tests kill processes.
    """
    found = []
    for file in folder.glob("*"):
        with contextlib.suppress(FileNotFoundError):  # another worker has deleted it
            found.append((file.stat().st_mtime, file.stat().st_size, file))
    total = 0
    for _, size, file in sorted(found, reverse=True):
        total += size
        if total > most_bytes:
            file.unlink(missing_ok=True)


@pytest.fixture(scope="module", autouse=True)
def release_compiled_programs():
    """A worker keeps what it has compiled, for other files too, until it takes too much memory."""
    yield
    if sys.platform != "linux" or (resident_bytes() < MOST_RESIDENT and num_maps() < MOST_MAPS):
        return
    import jax

    jax.clear_caches()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # returns freed memory to the system


MOST_RESIDENT = 4 << 30
#: Linux gives a process 65,530 maps, and each program takes some: XLA crashes where it gets none.
MOST_MAPS = 30_000


def num_maps():
    """The maps of memory of this process."""
    return Path("/proc/self/maps").read_bytes().count(b"\n")


def resident_bytes():
    """The memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def silent_package():
    """After a test, the package is silent again: a command it ran logs to the console."""
    yield
    package = logging.getLogger("transformer_jax")
    package.setLevel(logging.NOTSET)
    package.propagate = True
    for handler in package.handlers[:]:
        if not isinstance(handler, logging.NullHandler):
            package.removeHandler(handler)


@pytest.fixture
def threads_of():
    """threads_of(name) -> the threads whose names begin so, but for those of tests before."""
    before = set(threading.enumerate())

    def threads_of(name):
        found = set(threading.enumerate()) - before
        return [thread for thread in found if thread.name.startswith(name)]

    return threads_of


@pytest.fixture
def logged(caplog):
    """`logged()` -> the package's messages so far, and forgets them."""
    caplog.set_level(logging.INFO, "transformer_jax")

    def take() -> list[str]:
        ours = [r for r in caplog.records if r.name.startswith("transformer_jax")]
        messages = [record.getMessage() for record in ours]
        caplog.clear()
        return messages

    return take


@pytest.fixture
def command(monkeypatch, capsys):
    """command(*words, stdin) -> exit status, standard output, standard error of a command."""
    from transformer_jax.commands.main import main  # not before pytest_configure

    def command(*words, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        status = main([str(word) for word in words])
        return status, *capsys.readouterr()

    return command


@pytest.fixture
def own_programs(monkeypatch):
    """A trainer of this test compiles programs of its own."""
    from tests import shared_programs  # not before pytest_configure

    monkeypatch.setattr("transformer_jax.training.trainer.Programs", shared_programs.ALONE)


def write_texts(folder: Path) -> Path:
    """Writes 300 lines of train.en and train.de, and 20 of test.en and test.de.

    They are short, so that few lengths are compiled.
    """
    from transformer_jax.data.sources.grammar.sentences import (
        generate,  # not before pytest_configure
    )

    pairs = [pair for pair in generate(5, 5000) if max(map(len, pair)) <= 36][:320]
    assert len(pairs) == 320
    for side, language in ((0, "en"), (1, "de")):
        lines = [pair[side] + "\n" for pair in pairs]
        (folder / f"train.{language}").write_text("".join(lines[:300]), encoding="utf-8")
        (folder / f"test.{language}").write_text("".join(lines[300:]), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """A folder with the files of `write_texts`."""
    return write_texts(tmp_path_factory.mktemp("place"))


@pytest.fixture(scope="session")
def toy_place(tmp_path_factory) -> Path:
    """The same with a recipe, for all test files: leave it as it is."""
    from tests.toy_run import RECIPE

    folder = write_texts(tmp_path_factory.mktemp("toy"))
    (folder / "recipe.py").write_text(RECIPE)
    return folder


@pytest.fixture(scope="session")
def toy_run(toy_place) -> Path:
    """A run folder of this recipe: copy it before you change it."""
    from tests.toy_run import train_command
    from transformer_jax.commands.main import main

    assert main(train_command(toy_place, toy_place / "run")) == 0
    return toy_place / "run"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the repository in which the pages docs/adding_*.md were followed."""
    from tests.followed_page import followed  # not for all tests: tests/changed.py

    with followed(tmp_path_factory.mktemp("followed")) as tree:
        yield tree


@pytest.fixture
def tests_of(tree, tmp_path):
    """tests_of(module, value) -> calls of its tests, of those with this argument if it is given."""
    from tests.followed_page import tests_in

    return partial(tests_in, tree, tmp_path)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real text beside the checkout; its sentences never enter the repository."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        missing(f"no real text at {folder}")
    return folder


@pytest.fixture(scope="module")
def browser():
    """A headless Chromium."""
    webdriver = need("selenium.webdriver")
    programs = shutil.which("chromium"), shutil.which("chromedriver")
    if not all(programs):
        missing("no chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{flag}")
    options.add_argument("--window-size=1100,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(programs[1])
    driver = webdriver.Chrome(options, service)
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def object_server():
    from tests.runs import bucket

    return bucket.start_server()  # one a process: TensorStore asks for its address once


@pytest.fixture
def store(object_server, monkeypatch):
    """An empty store of objects, for the time of a test all that `gs://` can reach."""
    from tests.runs import bucket

    store = bucket.Store()
    object_server.RequestHandlerClass.store = store
    bucket.mount(store, monkeypatch)
    return store
