"""What another project can do with the public names alone: `tests/second_project`.

It is installed beside this package: a folder on the path, with the metadata that pip would write.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest

import transformer_jax as tj
import transformer_jax.config  # all families
from transformer_jax.settings.variants import FAMILIES

PROJECT = Path(__file__).parent / "second_project"
ROOT = PROJECT.parents[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    place = tmp_path_factory.mktemp("installed")
    shutil.copytree(PROJECT / "acme_mt", place / "acme_mt")
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    about = place / f"acme_mt-{project['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"]["transformer_jax"]
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (about / "entry_points.txt").write_text(f"[transformer_jax]\n{lines}")
    sys.path.insert(0, str(place))
    before = [dict(family) for family in FAMILIES]
    yield place
    sys.path.remove(str(place))
    for family, own in zip(FAMILIES, before, strict=True):  # other tests know nothing of it
        family.clear()
        family.update(own)


@pytest.fixture(scope="module")
def run(installed, tmp_path_factory):
    """A run of its mixer, position scheme, method and source."""
    from acme_mt import parts

    parts.register()
    place = tmp_path_factory.mktemp("run")
    return tj.train(parts.config(), place / "run")


def python(code, *path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT)))}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_its_parts_are_trained_saved_and_opened_in_another_process(run, installed):
    config = json.loads((Path(run.path) / "config.json").read_text())
    assert config["model"]["decoder"]["mixers"] == [
        {"kind": "acme_average", "package": "acme_mt", "gain": 2.0}
    ]
    assert config["model"]["encoder"]["position"] == {"kind": "acme_waves", "package": "acme_mt"}
    assert config["decode"]["method"]["kind"] == "acme_narrow"
    assert config["data"]["source"] == {
        "kind": "acme_numbers",
        "package": "acme_mt",
        "count": 40,
    }
    texts = ["one two three four", "nine"]
    here = run.translator("latest").translate(texts)
    code = (
        "import transformer_jax as tj\n"
        "from acme_mt.parts import register\n"
        "register()\n"
        f"print(tj.open_run({str(run.path)!r}).translator('latest').translate({texts}))\n"
    )
    done = python(code, installed)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == repr(here)


@pytest.mark.parametrize(
    ("knows", "message"),
    [
        (
            False,
            "'acme_numbers' is of 'acme_mt', which is not known here: call",
        ),
        (True, r"'acme_numbers' is of 'acme_mt', .*register\('acme_numbers', CLASS\) before"),
    ],
)
def test_a_process_that_does_not_know_a_part_says_whose_it_is(run, installed, knows, message):
    """Also where the package is installed, but the name is none of its entry points'."""
    code = f"import transformer_jax as tj; tj.open_run({str(run.path)!r})"
    done = python(code, *([installed] if knows else []))
    assert done.returncode == 1
    assert re.search(message, done.stderr.splitlines()[-1]), done.stderr


def test_its_loss_is_killed_and_continued_to_the_same_bits(installed, tmp_path):
    from acme_mt import loop

    whole = loop.train(str(tmp_path / "whole"))
    folder = str(tmp_path / "killed")
    killed = python(f"from acme_mt.loop import train; train({folder!r}, die_after=3)", installed)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    continued = loop.train(folder)
    assert int(continued.step) == loop.STEPS
    jax.tree.map(np.testing.assert_array_equal, continued.params, whole.params)
    plain = tj.fit(loop.MODEL, tj.TrainConfig(steps=loop.STEPS, evaluate_every=9), loop.batches)
    assert not np.array_equal(*(jax.tree.leaves(each.params)[0] for each in (plain, whole)))
    assert repr(whole) == "TrainState(step=6, 4,848 parameters)"


def test_its_code_is_strictly_typed(installed):
    pytest.importorskip("mypy")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--no-incremental",
            "acme_mt/parts.py",
            "acme_mt/loop.py",
        ],
        cwd=installed,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
