"""The files of a web page; `test_bergamot_engine.py` opens one in a browser."""

import json
import shutil
import stat
import tarfile

import pytest

from tests.formats import exporter_suite as suite
from transformer_jax.config import Config
from transformer_jax.errors import UserError
from transformer_jax.formats.export import write
from transformer_jax.formats.marian.web import Web
from transformer_jax.paths import as_path

FILES = ("bergamot-translator-worker.js", "bergamot-translator-worker.wasm")


@pytest.fixture
def engine(tmp_path):
    folder = tmp_path / "engine"
    folder.mkdir()
    for name in FILES:
        (folder / name).write_text(f"not {name}")
    return folder


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """`npm(script)` puts a program of that name first on the path."""

    def make(script):
        place = tmp_path / "bin"
        place.mkdir()
        program = place / "npm"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")

    return make


def test_the_folder(student, student_folder, engine, tmp_path):
    exporter = Web(engine=str(engine))
    exporter.check(student.config)
    write(exporter, student, as_path(tmp_path / "page"))
    page = tmp_path / "page"
    for path in student_folder.iterdir():
        assert (page / "model" / path.name).read_bytes() == path.read_bytes()
    for name in FILES:
        assert (page / "engine" / name).read_text() == f"not {name}"
    assert "Mozilla Public License 2.0" in (page / "engine" / "LICENSE.txt").read_text()
    settings = json.loads((page / "settings.json").read_text())
    assert settings["model"] == "model.bin" and settings["vocabs"] == ["vocab.spm"]
    assert "gemm-precision: float32" in settings["config"]
    assert "models:" not in settings["config"]
    assert {"index.html", "page.css", "page.js", "worker.js", "icon.svg"} <= {
        path.name for path in page.iterdir()
    }


def test_what_cannot_work_is_refused_before_anything_is_written(
    student, engine, monkeypatch, tmp_path
):
    with pytest.raises(UserError, match="model.norm_placement=pre"):
        Web(engine=str(engine)).check(Config(model=suite.small()))
    (engine / FILES[1]).unlink()
    with pytest.raises(UserError, match=rf"engine={engine}: has no {FILES[1]}"):
        Web(engine=str(engine)).check(student.config)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"npm, which is not installed.*engine=FOLDER"):
        Web().check(student.config)


def test_npm_that_fails(student, npm, tmp_path):
    npm("echo 'npm error network is down' >&2; exit 1")
    Web().check(student.config)
    with pytest.raises(UserError, match=r"npm could not get .*network is down.*engine=FOLDER"):
        write(Web(), student, as_path(tmp_path / "page"))
    assert not (tmp_path / "page").exists()


def test_another_content_of_the_package(student, npm, engine, tmp_path):
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        archive.add(engine, "package/worker")
    shutil.rmtree(engine)
    npm(f'for last; do :; done; cp {tmp_path}/a.tgz "$last"')
    with pytest.raises(UserError, match=rf"{FILES[0]} in @browsermt.* is not the expected one"):
        write(Web(), student, as_path(tmp_path / "page"))
    assert not (tmp_path / "page").exists()
