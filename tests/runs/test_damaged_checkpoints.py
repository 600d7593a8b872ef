"""A checkpoint that was damaged is noticed, named and passed over; none is ever half used."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.errors import UserError
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.damage import find_damage
from transformer_jax.training.state import TrainState


def state(step):
    zero = jnp.zeros((), jnp.int32)
    return TrainState(
        step=jnp.asarray(step, jnp.int32),
        params={"w": jnp.arange(600.0) + step},
        opt_state={"mu": jnp.full(600, 0.5) * step},
        ema={},
        skipped=zero,
        skipped_in_a_row=zero,
    )


def abstract():
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), state(0))


def save(folder, *steps, best=(), keep=5):
    checkpoints = Checkpoints(folder, keep, files={"tokenizer/joint.model": b"pieces"})
    for step in steps:
        checkpoints.save(step, state(step), {"position": step}, best=step in best)
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
    return tmp_path / "run"


def reopened(folder):
    """(step, parameters and meta of the newest whole checkpoint, lines said)."""
    said = []
    checkpoints = Checkpoints(folder, 5, say=said.append)
    restored, meta = checkpoints.restore(abstract())
    checkpoints.close()
    assert meta["position"] == restored.step
    np.testing.assert_array_equal(restored.params["w"], state(int(restored.step)).params["w"])
    return int(restored.step), said


def largest_file(folder):
    return max(
        (p for p in folder.rglob("*") if p.is_file()), key=lambda p: (p.stat().st_size, str(p))
    )


def truncate(folder):
    file = largest_file(folder / "params")
    file.write_bytes(file.read_bytes()[:-7])


def flip(folder):
    file = largest_file(folder / "params")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)


def lose_a_file(folder):
    largest_file(folder / "trainer").unlink()


def lose_a_folder(folder):
    shutil.rmtree(folder / "params")


def lose_the_manifest(folder):
    (folder / "manifest.json").unlink()


def garble_the_manifest(folder):
    (folder / "manifest.json").write_text('{"files": [1, 2')


def change_the_tokenizer(folder):
    (folder / "tokenizer" / "joint.model").write_bytes(b"pieceZ")


def garble_orbaxs_own_file(folder):
    file = folder / "_CHECKPOINT_METADATA"
    file.write_text(file.read_text()[:-9])


def change_orbaxs_own_file(folder):
    file = folder / "_CHECKPOINT_METADATA"
    file.write_text(
        file.read_text().replace("StandardCheckpointHandler", "StandardCheckpoinuHandler")
    )


DAMAGES = [
    (garble_orbaxs_own_file, "_CHECKPOINT_METADATA is missing or damaged"),
    (change_orbaxs_own_file, "_CHECKPOINT_METADATA says something else"),
    (truncate, "bytes instead of"),
    (flip, "other bytes than were written"),
    (lose_a_file, "is missing"),
    (lose_a_folder, "is missing"),
    (lose_the_manifest, "manifest.json is missing"),
    (garble_the_manifest, "manifest.json is damaged"),
    (change_the_tokenizer, "tokenizer/joint.model has other bytes"),
]


def test_whole_checkpoints_are_found_whole(run):
    assert [find_damage(run / "checkpoints" / str(step)) for step in (4, 8, 12)] == [None] * 3
    assert reopened(run) == (12, [])
    assert (run / "checkpoints/12/tokenizer/joint.model").read_bytes() == b"pieces"


@pytest.mark.parametrize(("damage", "words"), DAMAGES, ids=lambda x: getattr(x, "__name__", ""))
def test_the_one_before_is_taken_with_one_line(run, damage, words):
    damage(run / "checkpoints" / "12")
    step, said = reopened(run)
    assert step == 8
    (line,) = said
    assert words in line and "checkpoints/12" in line and "step 8" in line and "\n" not in line
    # Its name is free for the step that will be trained again.
    save(run, 12)
    assert reopened(run) == (12, [])
    assert (run / "damaged" / "checkpoints-12").is_dir()


def test_a_whole_copy_of_the_best_step_serves(tmp_path):
    save(tmp_path, 4, 8, best=[8])
    flip(tmp_path / "checkpoints" / "8")
    step, said = reopened(tmp_path)
    assert step == 8 and len(said) == 1


def test_a_checkpoint_that_is_gone_altogether(run):
    shutil.rmtree(run / "checkpoints" / "12")
    step, said = reopened(run)
    assert step == 8
    assert "checkpoint 12 is gone" in said[0]


def test_none_left_is_refused_and_nothing_is_touched(run):
    for step in (4, 8, 12):
        flip(run / "checkpoints" / str(step))
    before = sorted(p for p in run.rglob("*"))
    with pytest.raises(UserError, match="none of its checkpoints is whole") as error:
        Checkpoints(run, 5)
    assert "\n" not in str(error.value)
    assert sorted(p for p in run.rglob("*")) == before


@pytest.mark.parametrize("emptied", ["checkpoints", "checkpoints/4 8 12"])
def test_a_run_without_its_checkpoints_does_not_start_over(run, emptied):
    if emptied == "checkpoints":
        shutil.rmtree(run / "checkpoints")
    else:
        for path in (run / "checkpoints").iterdir():
            shutil.rmtree(path)
    with pytest.raises(UserError, match="the one of step 12 is gone"):
        Checkpoints(run, 5)


@pytest.mark.parametrize("note", ["", "{}", "[4]", '{"step": null}'])
def test_nor_where_the_note_of_them_is_damaged(tmp_path, note):
    (tmp_path / "last_checkpoint.json").write_text(note)
    with pytest.raises(UserError, match=r"none is there, and last_checkpoint\.json is damaged"):
        Checkpoints(tmp_path, 5)


def test_a_damaged_note_does_not_matter_where_a_checkpoint_is_whole(run):
    (run / "last_checkpoint.json").write_text("{")
    assert reopened(run) == (12, [])
    save(run, 16)
    assert (run / "last_checkpoint.json").read_text() == '{"step": 16}\n'


def test_a_run_killed_before_its_first_checkpoint_starts(tmp_path):
    unfinished = tmp_path / "checkpoints" / "4.orbax-checkpoint-tmp"
    unfinished.mkdir(parents=True)
    checkpoints = Checkpoints(tmp_path, 5)
    assert checkpoints.newest is None
    assert not unfinished.exists(), "what kills leave would fill the disk"
    checkpoints.close()


def test_another_models_checkpoint_is_one_line(run):
    other = abstract().replace(params={"v": abstract().params["w"]})
    checkpoints = Checkpoints(run, 5)
    with pytest.raises(UserError, match="another model or optimizer") as error:
        checkpoints.restore(other)
    assert "\n" not in str(error.value)
    checkpoints.close()


def test_a_manifest_cannot_point_outside(run):
    manifest = run / "checkpoints" / "12" / "manifest.json"
    manifest.write_text('{"files": {"../../secret": [1, "00"]}}')
    assert find_damage(run / "checkpoints" / "12") == "manifest.json is damaged"
