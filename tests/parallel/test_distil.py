"""`distil` in two real processes: byte for byte what one process makes, and stopping together."""

import itertools
import json
import signal
import time

import numpy as np
import pytest

from tests.commands.distil.test_distil import STUDENT, teacher
from tests.data.listed import write
from tests.parallel.test_commands import finish
from tests.parallel.test_processes import losses
from transformer_jax.commands.main import STOPPED
from transformer_jax.config import TokenizerConfig
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.data.tokenizer_training import train_tokenizers

COMMAND = ("-c", "import sys; from transformer_jax.commands.main import main; sys.exit(main())")
#: Three parts of the lines, of which the first process has two.
LINES = {"train": 9000, "validation": 6, "test": 6}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a text, a recipe, and the run of an untrained teacher."""
    folder = tmp_path_factory.mktemp("place")
    rest = iter(generate(3, sum(LINES.values())))
    for split, size in LINES.items():
        write(folder, itertools.islice(rest, size), name=split)
    (folder / "student.py").write_text(STUDENT.replace("FOLDER", str(folder)))
    tokenizers = train_tokenizers(TokenizerConfig(vocab_size=350), generate(3, 500))
    teacher(folder, "teacher", tokenizers)
    return folder


def distil(place, workdir):
    words = [f"--teacher={place / 'teacher'}", f"--config={place / 'student.py'}"]
    return [*COMMAND, "distil", *words, f"--workdir={workdir}", "--no_progress", "--batch_size=4"]


def made(workdir):
    """The content of the files that do not depend on the time or the folder."""
    names = ("text", "translations", "chosen", "table.md")
    folder = workdir / "distillation"
    found = [path for name in names for path in (folder / name, *(folder / name).rglob("*"))]
    content = {p.relative_to(folder).as_posix(): p.read_bytes() for p in found if p.is_file()}
    # The last column of the table is a speed.
    table = content["table.md"].decode().splitlines()
    content["table.md"] = [
        line.rpartition("sentences/s")[0] or line.rsplit("|", 2)[0] for line in table
    ]
    return content


def done(folder):
    """How many lines are translated."""
    begun = folder.glob("*.partial/progress.json")
    finished = sum(len(path.read_text().splitlines()) for path in folder.glob("*.jsonl"))
    return finished + sum(json.loads(path.read_text())["done"] for path in begun)


@pytest.mark.slow
def test_two_processes_distil_byte_for_byte_as_one_and_stop_together(place, tmp_path, start):
    one, two = tmp_path / "one", tmp_path / "two"
    [table] = finish(start(1, *distil(place, one)))
    assert "| student | greedy |" in table

    # A signal to one of them, while they translate, is a signal to both.
    partial = two / "distillation" / "translations.partial"
    for number, to in ((signal.SIGTERM, 1), (signal.SIGINT, 0)):
        before, processes = done(partial), start(2, *distil(place, two))
        deadline = time.monotonic() + 900
        while done(partial) == before:
            assert time.monotonic() < deadline
            assert [each.poll() for each in processes] == [None, None]
            time.sleep(0.02)
        processes[to].send_signal(number)
        for process in processes:
            assert process.wait(timeout=400) == STOPPED
        assert before < done(partial) < 9000
    _, of_the_second = finish(start(2, *distil(place, two)))
    assert "BLEU" not in of_the_second, "only the first process prints the table"
    parts = sorted(path.name for path in (two / "distillation" / "translations").glob("*.jsonl"))
    assert parts == ["000000.jsonl", "000001.jsonl", "000002.jsonl"]
    assert made(two) == made(one)
    assert list(losses(two)) == list(losses(one))
    # The gradient of two devices is added up in another order.
    np.testing.assert_allclose(*(list(losses(each).values()) for each in (one, two)), atol=1e-5)
