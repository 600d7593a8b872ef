"""A checkpoint that was damaged is noticed, named and passed over; none is ever half used."""

import re
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.errors import UserError
from transformer_jax.paths import as_path, files_below
from transformer_jax.runs.checkpoints import Checkpoints, checkpoint_folder, checkpoint_steps
from transformer_jax.runs.damage import find_damage, write_manifest


def items(step):
    return {
        "params": {"w": jnp.arange(600.0) + step},
        "trainer": {"mu": jnp.full(600, 0.5) * step, "step": jnp.asarray(step, jnp.int32)},
    }


def abstract():
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), items(0))


def save(folder, *steps, best=(), keep=5):
    checkpoints = Checkpoints(as_path(folder), keep, files={"tokenizer/joint.model": b"pieces"})
    for step in steps:
        checkpoints.save(step, items(step), {"position": step}, best=step in best)
    checkpoints.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run folder with the steps 4, 8 and 12."""
    folder = tmp_path_factory.mktemp("saved")
    save(folder, 4, 8, 12)
    return folder


@pytest.fixture
def run(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "run")
    return as_path(tmp_path / "run")


def reopened(folder):
    """The step of the newest whole checkpoint, which is restored."""
    checkpoints = Checkpoints(as_path(folder), 5)
    restored, meta = checkpoints.restore(abstract())
    checkpoints.close()
    step = int(restored["trainer"]["step"])
    assert meta["position"] == checkpoints.newest == step
    np.testing.assert_array_equal(restored["params"]["w"], items(step)["params"]["w"])
    return step


def flipped(content):
    content = bytearray(content)
    content[len(content) // 2] ^= 0x10
    return content


def damage(checkpoint, name="params", change=flipped):
    """Changes or removes a file of a checkpoint, or the largest in a folder of it."""
    path = checkpoint / name
    if path.is_dir():
        path = max(files_below(path), key=lambda path: (path.stat().length, str(path)))
    if change is None:
        path.unlink()
    else:
        path.write_bytes(bytes(change(path.read_bytes())))


OTHER_HANDLER = b"StandardCheckpointHandler", b"StandardCheckpoinuHandler"
DAMAGES = [
    ("_CHECKPOINT_METADATA", lambda content: content[:-9], "is missing or damaged"),
    ("_CHECKPOINT_METADATA", lambda content: content.replace(*OTHER_HANDLER), "differs from what"),
    ("params", lambda content: content[:-7], "bytes instead of"),
    ("params", flipped, "other bytes than were written"),
    ("trainer", None, "is missing"),
    ("manifest.json", None, "is missing"),
    ("manifest.json", lambda content: b'{"files": [1, 2', "is damaged"),
    ("tokenizer/joint.model", lambda content: b"pieceZ", "has other bytes"),
]


def test_whole_checkpoints_are_found_whole(run, logged):
    assert [find_damage(checkpoint_folder(run, step)) for step in (4, 8, 12)] == [None] * 3
    assert reopened(run) == 12
    assert logged() == []
    assert (run / "checkpoints/12/tokenizer/joint.model").read_bytes() == b"pieces"


@pytest.mark.parametrize(("name", "change", "words"), DAMAGES)
def test_the_one_before_is_taken_with_one_line(run, name, change, words, logged):
    damage(checkpoint_folder(run, 12), name, change)
    assert reopened(run) == 8
    (line,) = logged()
    assert re.search(f"checkpoints/12: {name}.* {words}.* step 8$", line) and "\n" not in line
    # Its name is free for the step that will be trained again.
    save(run, 12)
    logged()
    assert reopened(run) == 12 and logged() == []
    assert (run / "damaged" / "12").is_dir()


def test_a_checkpoint_that_is_gone_altogether(run, logged):
    checkpoint_folder(run, 12).rmtree()
    assert reopened(run) == 8
    assert "checkpoint 12 is gone" in logged()[0]


def test_the_last_ones_and_the_best_are_kept(tmp_path):
    save(tmp_path, 4, 8, 12, 16, best=[4, 8], keep=2)
    assert checkpoint_steps(as_path(tmp_path)) == [8, 12, 16]
    checkpoints = Checkpoints(as_path(tmp_path), 2)
    assert checkpoints.restore(abstract())[1]["best_step"] == 8
    checkpoints.save(20, items(20), {"position": 20}, best=False)  # the best is still known
    checkpoints.close()
    assert checkpoint_steps(as_path(tmp_path)) == [8, 16, 20]


def test_none_left_is_refused_and_nothing_is_touched(run):
    for step in (4, 8, 12):
        damage(checkpoint_folder(run, step))
    before = sorted(files_below(run))
    with pytest.raises(UserError, match="checkpoints is whole .*checkpoints/8: params/") as error:
        Checkpoints(run, 5)
    assert "\n" not in str(error.value)
    assert sorted(files_below(run)) == before


@pytest.mark.parametrize("emptied", ["checkpoints", "checkpoints/4 8 12"])
def test_a_run_without_its_checkpoints_does_not_start_over(run, emptied):
    if emptied == "checkpoints":
        (run / "checkpoints").rmtree()
    else:
        for path in (run / "checkpoints").iterdir():
            path.rmtree()
    with pytest.raises(UserError, match="the one of step 12 is gone"):
        Checkpoints(run, 5)


@pytest.mark.parametrize("note", ["", "{}", "[4]", '{"step": null}'])
def test_nor_where_the_note_of_them_is_damaged(tmp_path, note):
    (tmp_path / "last_checkpoint.json").write_text(note)
    with pytest.raises(UserError, match=r"there is none, and last_checkpoint\.json is damaged"):
        Checkpoints(as_path(tmp_path), 5)


def test_a_damaged_note_does_not_matter_where_a_checkpoint_is_whole(run):
    (run / "last_checkpoint.json").write_text("{")
    assert reopened(run) == 12
    save(run, 16)
    assert (run / "last_checkpoint.json").read_text() == '{"step": 16}\n'


def test_a_run_killed_before_its_first_checkpoint_starts(tmp_path):
    unfinished = tmp_path / "checkpoints" / "4.orbax-checkpoint-tmp"
    unfinished.mkdir(parents=True)
    checkpoints = Checkpoints(as_path(tmp_path), 5)
    assert checkpoints.newest is None
    assert not unfinished.exists(), "what kills leave would fill the disk"
    checkpoints.close()


def test_another_models_checkpoint_is_one_line(run):
    other = abstract() | {"params": {"v": abstract()["params"]["w"]}}
    checkpoints = Checkpoints(run, 5)
    with pytest.raises(UserError, match="another model or optimizer") as error:
        checkpoints.restore(other)
    assert "\n" not in str(error.value)
    checkpoints.close()


def test_a_manifest_cannot_point_outside(run):
    manifest = checkpoint_folder(run, 12) / "manifest.json"
    manifest.write_text('{"files": {"../../secret": [1, "00"]}}')
    assert find_damage(checkpoint_folder(run, 12)) == "manifest.json is damaged"


def test_a_manifest_waits_for_what_orbax_writes_in_a_thread(tmp_path, monkeypatch):
    (tmp_path / "params").write_bytes(b"numbers")
    written = iter(['{"item_handlers": null}', '{"item_hand', '{"item_handlers": {"params": "x"}}'])

    def sleep(seconds):
        (tmp_path / "_CHECKPOINT_METADATA").write_text(next(written))

    monkeypatch.setattr("transformer_jax.runs.damage.time", SimpleNamespace(sleep=sleep))
    write_manifest(as_path(tmp_path))
    assert find_damage(as_path(tmp_path)) is None and not list(written)
