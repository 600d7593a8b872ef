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
from tests.oracles import apart
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
    for family in FAMILIES:
        family._has_looked = False  # for entry points, as in a new process
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


def python(code, *path, cwd=None):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_its_parts_are_trained_saved_and_opened_in_another_process(run, installed):
    config = json.loads((Path(run.path) / "config.json").read_text())
    assert config["model"]["decoder"]["mixers"] == [
        {"kind": "acme_average", "package": "acme_mt", "gain": 2.0}
    ]
    assert config["model"]["encoder"]["position"] == {"kind": "acme_waves", "package": "acme_mt"}
    assert config["decode"]["method"]["kind"] == "acme_narrow"
    source = {"kind": "acme_numbers", "package": "acme_mt", "count": 40}
    assert config["data"]["source"] == source
    texts = ["one two three four", "nine"]
    here = run.translator("latest").translate(texts)
    code = (
        "import transformer_jax as tj\n"
        "from acme_mt.parts import register\n"
        "register()\n"
        f"print(tj.open_run({str(run.path)!r}).translator('latest').translate({texts}))\n"
    )
    done = python(code, installed, ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == repr(here)


@pytest.mark.parametrize(
    ("knows", "message"),
    [
        (False, "'acme_numbers' is of 'acme_mt', which is not known here: call"),
        (True, r"'acme_numbers' is of 'acme_mt', .*register\('acme_numbers', CLASS\) before"),
    ],
)
def test_a_process_that_does_not_know_a_part_says_whose_it_is(run, installed, knows, message):
    """Also where the package is installed, but the name is none of its entry points'."""
    code = f"import transformer_jax as tj; tj.open_run({str(run.path)!r})"
    done = python(code, *([installed] if knows else []), ROOT)
    assert done.returncode == 1
    assert re.search(message, done.stderr.splitlines()[-1]), done.stderr


@pytest.mark.parametrize("format", ["ctranslate2", "bergamot", "huggingface"])
def test_exporters_refuse_its_mixer_by_name(run, format, tmp_path):
    if format == "ctranslate2":
        pytest.importorskip("ctranslate2")
    with pytest.raises(tj.UserError, match=r"acme_(average|waves)"):
        tj.export(run, format, tmp_path / "out")


def test_its_parts_pass_the_suites(installed, tmp_path):
    from acme_mt.parts import Average, Narrow, Numbers, Waves

    from transformer_jax.testing.methods import check_num_best, check_num_hypotheses
    from transformer_jax.testing.mixers import check_mixer
    from transformer_jax.testing.positions import check_widths
    from transformer_jax.testing.sources import read

    check_mixer(Average(), causal=True)
    check_widths(Waves())
    check_num_best(Narrow())
    check_num_hypotheses(Narrow())
    text = {split: read(Numbers(), split, ("en", "xx")) for split in ("train", "test")}
    assert text["train"][0] == ("seven nine one nine", "7 9 1 9")


@pytest.mark.slow  # three trainings; tests/runs/test_resume.py kills the package's own
def test_its_loss_is_killed_and_continued_to_the_same_bits(installed, tmp_path):
    from acme_mt import loop

    whole = loop.train(str(tmp_path / "whole"))
    folder = str(tmp_path / "killed")
    killed = python(
        f"from acme_mt.loop import train; train({folder!r}, die_after=3)", installed, ROOT
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    continued = loop.train(folder)
    assert int(continued.step) == loop.STEPS
    jax.tree.map(np.testing.assert_array_equal, continued.params, whole.params)
    plain = tj.fit(loop.MODEL, tj.TrainConfig(steps=loop.STEPS, evaluate_every=9), loop.batches)
    assert not np.array_equal(*(jax.tree.leaves(each.params)[0] for each in (plain, whole)))
    assert repr(whole) == "TrainState(step=6, 4,848 parameters)"


def test_its_rule_holds_and_its_gradient_is_a_finite_difference(run, installed):
    from acme_mt import loop

    translator = run.translator("latest")
    size = run.tokenizers().target.vocab_size
    texts = ["one two three four"]
    (free,) = translator.n_best(texts, 2)[0][:1]
    banned = free.tokens[0]
    for best in translator.n_best(texts, 2, method=loop.never(banned, size))[0]:
        assert banned not in best.tokens
    own = run.translator("latest", method=loop.never(banned, size))
    assert banned not in own.decode(texts, max_length_offset=5).translations[0][0].tokens
    begun, *_ = own.decode(texts, target_prefix=[[banned]]).translations[0]
    assert begun.tokens[0] == banned and banned not in begun.tokens[1:]
    params = tj.init(loop.MODEL, jax.random.key(0))
    gradient, (total, words) = loop.gradient_by_source(params, next(loop.batches(0)))
    direction = jax.random.normal(jax.random.key(1), words.shape)
    expected = (total(words + 1e-2 * direction) - total(words - 1e-2 * direction)) / 2e-2
    np.testing.assert_allclose((gradient * direction).sum(), expected, rtol=2e-3)


def test_its_code_is_strictly_typed(installed):
    pytest.importorskip("mypy")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--no-incremental"]
    done = subprocess.run(
        [*mypy, "acme_mt/parts.py", "acme_mt/loop.py"],
        cwd=installed,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_it_works_beside_the_wheel(tmp_path):
    """Both built and installed by pip into a folder, without this checkout."""
    apart("it builds wheels")
    shutil.copytree(PROJECT, tmp_path / "second")
    (tmp_path / "first").mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "transformer_jax", "configs"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / "first" / name)
    target = ["--target", tmp_path / "site", tmp_path / "first", tmp_path / "second"]
    options = ["--quiet", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *target], check=True)
    code = (
        "import transformer_jax as tj\n"
        "from acme_mt import parts\n"
        "parts.register()\n"
        "run = tj.train(parts.config(), 'run')\n"
        "run.translator('latest').translate(['one two'])\n"
        "print(tj.__file__, run.config.model.decoder.mixers[0])\n"
    )
    done = python(code, tmp_path / "site", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0].startswith(str(tmp_path)) and "Average(gain=2.0)" in done.stdout
