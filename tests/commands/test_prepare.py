"""A text that is prepared first, by the commands a user types."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from tests.commands.conftest import CORPORA
from tests.malformed.harness import contents
from tests.oracles import need
from tests.toy_run import text_flags
from transformer_jax.commands.main import main
from transformer_jax.commands.prepare import shards
from transformer_jax.data.tokenizer_pair import load_tokenizers
from transformer_jax.paths import as_path
from transformer_jax.runs.folder import open_run

PARTS = "--part_pairs=50"


def preparing(place, folder):
    return ["prepare", f"--config={place / 'recipe.py'}", f"--output={folder}", PARTS]


@pytest.fixture(scope="module")
def prepared(corpora_place):
    """By two processes, several corpora with tags, weights and sampled segmentations."""
    folder = corpora_place / "prepared"
    assert main([*preparing(corpora_place, folder), "--shards=2"]) == 0
    return folder


def losses(run):
    keys = ("loss", "nll", "validation.bleu", "grad_norm")
    return [[record.get(key) for key in keys] for record in open_run(run).metrics()]


def test_training_from_it_is_training_from_the_text(corpora_place, corpora_run, prepared, tmp_path):
    command = ["train", f"--config={corpora_place / 'recipe.py'}", "--no_progress"]
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    for path in [*corpora_place.glob("train.*"), *corpora_place.glob("test.*")]:
        path.rename(hidden / path.name)
    try:
        here = f"--config.data.prepared={prepared}"
        assert main([*command, f"--workdir={tmp_path / 'prepared'}", here]) == 0
        assert main(["eval", f"--workdir={tmp_path / 'prepared'}"]) == 0
    finally:
        for path in hidden.iterdir():
            path.rename(corpora_place / path.name)
    assert losses(corpora_run) == losses(tmp_path / "prepared")
    one, other = (open_run(each).params("latest") for each in (corpora_run, tmp_path / "prepared"))
    jax.tree.map(np.testing.assert_array_equal, one, other)


@contextlib.contextmanager
def direct():
    yield "--runner=DirectRunner --direct_num_workers=2 --direct_running_mode=multi_processing"


@contextlib.contextmanager
def dask():
    """A cluster of two processes."""
    distributed = need("distributed")
    with distributed.LocalCluster(2, threads_per_worker=1, dashboard_address=None) as cluster:
        runner = "apache_beam.runners.dask.dask_runner.DaskRunner"
        yield f"--runner={runner} --dask_client_address={cluster.scheduler_address}"


@pytest.mark.slow  # its versions do not go with those of the oracles
@pytest.mark.parametrize("runner", [direct, dask])
def test_by_apache_beam(runner, corpora_place, prepared, tmp_path):
    need("apache_beam")
    whole = contents(prepared)
    prepared.rename(tmp_path / "by_processes")
    command = preparing(corpora_place, prepared)
    with runner() as flags:
        assert main([*command, "--shards=5", f"--beam={flags}"]) == 0
    assert contents(prepared) == whole


def test_the_vocabulary_does_not_depend_on_the_machine_that_prepares(corpora_place, tmp_path):
    """These tests run on a CPU; the training may not."""
    table = "by_pairs = tj.ByPairs(('tokenizer.vocab_size',), {200: (400,), 400: (410,)}, 199)"
    (tmp_path / "recipe.py").write_text(f"{CORPORA.format(place=corpora_place)}\n{table}\n")
    command = [f"--config={tmp_path / 'recipe.py'}", "--config.data.corpora=none"]
    command += text_flags(corpora_place)
    sizes = []
    for flags in ([], ["--config.tokenizer.vocab_size=405"]):
        folder = tmp_path / str(len(sizes))
        assert main(["prepare", *command, f"--output={folder}", "--tokenizer", *flags]) == 0
        sizes.append(load_tokenizers(as_path(folder / "tokenizer")).source.vocab_size)
    assert sizes == [410, 405]


def killed(*args, **options):
    os.kill(os.getpid(), signal.SIGKILL)


def test_it_goes_on_after_a_process_was_killed(corpora_place, tmp_path, refused, monkeypatch):
    command = preparing(corpora_place, tmp_path / "new")
    with monkeypatch.context() as patch:
        patch.setattr(shards, "make_shard", killed)
        line = refused([*command, "--shards=1"])
    assert "a shard was killed, perhaps for want of memory: there were 1; run the same" in line
    assert main([*command, "--shards=1"]) == 0


def waits(*args, **options):
    print("begun", flush=True)
    time.sleep(20)
    print("still there", flush=True)
    os._exit(0)


def test_no_process_of_a_shard_outlives_the_command(corpora_place, prepared, tmp_path):
    shutil.copytree(prepared / "tokenizer", tmp_path / "new/tokenizer")
    command = preparing(corpora_place, tmp_path / "new")
    script = (
        "from tests.commands.test_prepare import main, shards, waits\n"
        f"shards.make_shard = waits\nmain({[*command, '--shards=1']})\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begun\n"
        process.kill()
        assert process.stdout.read() == b""  # its end, when nobody can write any more


def test_pairs_that_teach_little_are_counted(corpora_place, tmp_path, capsys):
    for side, more in (("en", "a dog\n"), ("de", "\n")):
        lines = (corpora_place / f"train.{side}").read_text().splitlines()[:60]
        (tmp_path / f"a.{side}").write_text("\n".join([*lines, "word " * 300]) + "\n" + more)
    flags = ["--config.data.validation_from_train=none", "--config.tokenizer.vocab_size=330"]
    words = ["prepare", "--config=from_files", f"--output={tmp_path / 'new'}"]
    command = [*words, *text_flags(tmp_path, "a"), *flags]
    for step in ("--tokenizer", "--shard=1/2", "--shard=0/2", "--merge"):
        capsys.readouterr()
        assert main([*command, "--part_pairs=50", step]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == (
        "1:en-de: 1 pairs have an empty side, and 1 longer than batch.max_length=128 are skipped "
        "by a training"
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--part_pairs=99999999999999999999"], "--part_pairs: 99999999999999999999 is too large"),
        (["--shard=3/3"], "--shard=3/3: give I/N with I from 0 to N - 1"),
        (["--shard=a"], "--shard=a: give I/N"),
        (["--shards=0"], "--shards: 0: must be at least 1"),
        (["--merge", "--shards=2"], "--shards has no effect on one step"),
        (["--config.data.prepared=x"], "data.prepared is what `prepare` makes"),
        (["--config.tokenizer.vocab_size=99"], "vocab_size=99 has no room for characters"),
        (["--config.data.corpora=none"], "no training text"),
    ],
)
def test_mistakes_are_one_line(corpora_place, tmp_path, capsys, flags, message):
    command = preparing(corpora_place, tmp_path / "new")
    assert main([*command, *flags]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert message in line
    assert not (tmp_path / "new").exists()
