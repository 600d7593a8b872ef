"""Folders that are filled once, and files, appear whole: after a kill, and beside other writers."""

import errno
import functools
import json
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from etils import epath

from transformer_jax import paths
from transformer_jax.errors import UserError
from transformer_jax.formats.export import write as export
from transformer_jax.paths import RECORD, claim, made, read_record, stage, write_record, write_whole

INPUTS = {"text": "a", "sizes": (1, 2)}
stage_here = functools.partial(stage, flag="--here")
made_here = functools.partial(made, flag="--here")


def test_an_empty_name_is_not_the_current_folder() -> None:
    with pytest.raises(UserError, match="an empty name"):
        paths.as_path("")
    assert paths.as_path(Path()) == epath.Path(".")


class Killed(BaseException):
    """In place of a SIGKILL: nothing that runs after it may touch a file."""


def fill(folder: epath.Path) -> dict[str, int]:
    """Three files, each made if it is missing, one of them in a folder of its own."""
    for number in range(3):
        path = folder / ("inner" if number == 1 else "") / str(number)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            write_whole(path, bytes([number]) * 9)
    return {"num_files": 3}


def content(folder: epath.Path) -> dict[str, bytes]:
    found = (path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


#: What reaches the disk; a kill comes before each call, or in the middle of a write.
CALLS = ("mkdir", "rename", "replace", "unlink", "rmtree", "write_bytes")


def kill_at(number: int, patch: pytest.MonkeyPatch) -> list[str]:
    """Kills at the call of this number to the disk, and at each later one; the calls so far."""
    calls: list[str] = []
    for name in CALLS:
        whole = getattr(epath.Path("/tmp").__class__, name)

        def call(self, *args, _whole=whole, _name=name, **options):
            calls.append(_name)
            if len(calls) == number and _name == "write_bytes":
                _whole(self, args[0][: len(args[0]) // 2])
            if len(calls) >= number:
                raise Killed
            return _whole(self, *args, **options)

        patch.setattr(epath.Path("/tmp").__class__, name, call)
    return calls


def test_killed_at_any_call_it_ends_in_the_same_bytes(tmp_path, monkeypatch):
    assert stage_here(epath.Path(tmp_path / "whole" / "it"), INPUTS, fill) == {"num_files": 3}
    with monkeypatch.context() as patch:
        calls = kill_at(10**6, patch)
        stage_here(epath.Path(tmp_path / "counted" / "it"), INPUTS, fill)
    assert len(calls) >= 15
    for number in range(1, len(calls) + 1):
        folder = epath.Path(tmp_path / str(number) / "it")
        with monkeypatch.context() as patch, pytest.raises(Killed):
            kill_at(number, patch)
            stage_here(folder, INPUTS, fill)
        assert stage_here(folder, INPUTS, fill) == {"num_files": 3}
        left = {name: each for name, each in content(folder.parent).items() if "lock" not in name}
        assert left == content(tmp_path / "whole"), f"{number}: {calls[number - 1]}"


def test_killed_at_any_write_to_a_bucket_it_ends_in_the_same_objects(store):
    def objects(place: str) -> dict[str, bytes]:
        return {name: store.objects[name] for name in store.names(f"bucket/{place}/")}

    writes: list[int] = []

    def after_write() -> None:
        writes.append(1)
        if len(writes) == deadline:
            raise Killed

    store.after_write, deadline = after_write, 0
    stage_here(epath.Path("gs://bucket/whole/it"), INPUTS, fill)
    whole, count = objects("whole"), len(writes)
    assert count >= 12 and all(name.startswith("bucket/whole/it/") for name in whole)
    for deadline in range(1, count + 1):
        writes.clear()
        folder = epath.Path(f"gs://bucket/{deadline}/it")
        with pytest.raises(Killed):
            stage_here(folder, INPUTS, fill)
        assert stage_here(folder, INPUTS, fill) == made_here(folder, INPUTS) == {"num_files": 3}
        found = {
            name.replace(f"/{deadline}/", "/whole/", 1): x
            for name, x in objects(str(deadline)).items()
        }
        assert found == whole, deadline


def test_what_is_there_is_not_made_again_and_others_are_refused(tmp_path):
    folder = epath.Path(tmp_path / "it")
    assert made_here(folder, INPUTS) is None
    stage_here(folder, INPUTS, fill)
    before = content(tmp_path)
    assert stage_here(folder, INPUTS, None) == made_here(folder, INPUTS) == {"num_files": 3}
    words = "it: made with another text, another sizes: give the same to continue, name another --h"
    with pytest.raises(UserError, match=words):
        stage_here(folder, {"text": "b", "sizes": (2, 1)}, fill)
    assert content(tmp_path) == before

    def stops(place: epath.Path) -> None:
        raise Killed

    with pytest.raises(Killed):
        stage_here(epath.Path(tmp_path / "begun"), INPUTS, stops)
    with pytest.raises(UserError, match=r"begun\.partial: made with another text: give the same"):
        stage_here(epath.Path(tmp_path / "begun"), INPUTS | {"text": "b"}, fill)


DAMAGES = {
    "cut": lambda folder: os.truncate(folder / "inner/1", 8),
    "missing": lambda folder: (folder / "2").unlink(),
    "more": lambda folder: (folder / "more").write_text(""),
    "no record": lambda folder: (folder / RECORD).write_text("{"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder_is_refused_and_one_of_a_cache_made_again(tmp_path, damage):
    folder = epath.Path(tmp_path / "it")
    stage_here(folder, INPUTS, fill)
    whole = content(tmp_path)
    DAMAGES[damage](folder)
    with pytest.raises(UserError, match="damaged: remove it"):
        stage_here(folder, INPUTS, fill)
    stage_here(folder, INPUTS, fill, is_whole=lambda known: known["num_files"] == 3)
    assert content(tmp_path) == whole
    fills: list[epath.Path] = []
    stage_here(folder, INPUTS, lambda place: fills.append(place), is_whole=lambda known: not known)
    assert len(fills) == 1  # what is known of it was not right


def test_a_folder_of_an_older_version_is_used(tmp_path):
    folder = epath.Path(tmp_path / "it")
    folder.mkdir()
    assert stage_here(folder, INPUTS, fill) == {}
    (folder / RECORD).write_text(json.dumps(INPUTS))
    assert stage_here(folder, INPUTS, fill) == {}
    with pytest.raises(UserError, match="made with another text"):
        stage_here(folder, INPUTS | {"text": "b"}, fill)


def test_one_of_several_makes_it_and_the_others_wait(tmp_path):
    filled, barrier = [], threading.Barrier(4)

    def slowly(place: epath.Path) -> None:
        filled.append(place)
        fill(place)

    def start(_: int) -> None:
        barrier.wait(10)
        stage_here(epath.Path(tmp_path / "it"), INPUTS, slowly)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, range(4)))
    assert len(filled) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


def test_without_locks_each_fills_a_folder_of_its_own(tmp_path, monkeypatch):
    def refused(self) -> None:
        raise OSError(errno.ENOSYS, "no locks")

    monkeypatch.setattr(paths.FileLock, "_acquire", refused)
    places = []

    def nested(place: epath.Path) -> None:
        places.append(place.name)
        fill(place)
        if len(places) == 1:  # meanwhile another process begins and ends
            stage_here(epath.Path(tmp_path / "it"), INPUTS, nested)

    stage_here(epath.Path(tmp_path / "it"), INPUTS, nested)
    assert len(set(places)) == 2
    assert set(content(tmp_path / "it")) == {"0", "inner/1", "2", RECORD}


def test_what_killed_processes_left_in_a_cache_goes_a_day_later(tmp_path):
    now = time.time()
    for name, hours in (("old.partial", 25), ("it.partial", 25), ("new.partial", 23), ("git", 99)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("")
        for path in (tmp_path / name / "file", tmp_path / name):
            os.utime(path, (now - 3600 * hours,) * 2)
    stage_here(epath.Path(tmp_path / "other"), INPUTS, fill)
    assert (tmp_path / "old.partial").exists()
    stage_here(epath.Path(tmp_path / "it"), INPUTS, fill, is_whole=lambda _: True)
    assert {each.name for each in tmp_path.iterdir()} == {"git", "it", "new.partial", "other"}


def test_a_full_disk_is_one_line_also_from_another_process(tmp_path):
    def full(place: epath.Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError) as found:
        stage_here(epath.Path(tmp_path / "it"), INPUTS, full)
    message = str(pickle.loads(pickle.dumps(found.value)))
    assert message == (
        f"{tmp_path / 'it'}: cannot be written (No space left on device): free some space, or name "
        "another --here"
    )


def test_a_record_is_of_its_inputs(tmp_path):
    path = epath.Path(tmp_path / "deep" / "record.json")
    assert read_record(path, INPUTS, "--here") is None
    claim(path, INPUTS, "--here")
    claim(path, INPUTS, "--here")
    write_record(path, INPUTS, more=3)
    assert read_record(path, INPUTS, "--here") == {"more": 3}
    with pytest.raises(UserError, match="deep: made with another text: give the same"):
        claim(path, INPUTS | {"text": "c"}, "--here")
    for damaged in ("[1]", "{", "[" * 100_000):
        path.write_text(damaged)
        with pytest.raises(UserError, match=r"record\.json: damaged: remove it, or name another -"):
            claim(path, INPUTS, "--here")


def test_writers_with_the_same_process_number_do_not_disturb_each_other(tmp_path, monkeypatch):
    """As in two containers that share a disk: one writes while the other is about to rename."""
    path = epath.Path(tmp_path / "totals.json")
    write_bytes = type(path).write_bytes

    def interrupted(temporary: Path, content: bytes) -> int:
        written = write_bytes(temporary, content)
        if content == b"first":
            write_whole(path, b"second")
            assert path.read_bytes() == b"second"
        return written

    monkeypatch.setattr(type(path), "write_bytes", interrupted)
    write_whole(path, b"first")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [tmp_path / "totals.json"]


def test_of_two_exports_into_one_folder_the_first_that_is_complete_stays(tmp_path):
    folder = epath.Path(tmp_path / "out")

    class Exporter:
        def __init__(self, content: str, meanwhile: "Exporter | None" = None) -> None:
            self.content, self.meanwhile = content, meanwhile

        def write(self, _: object, temporary: Path) -> None:
            (temporary / "model").write_text(self.content)
            if self.meanwhile:
                export(self.meanwhile, None, folder)

    with pytest.raises(UserError, match="out already exists"):
        export(Exporter("late", Exporter("early")), None, folder)
    assert (folder / "model").read_text() == "early"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
