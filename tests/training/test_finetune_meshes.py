"""One device equals eight for a run that begins with another, or that another teaches."""

import numpy as np
import pytest

from tests.devices import with_eight_devices

HERE = """
import json, sys
from dataclasses import replace
import jax, numpy as np
from tests.training import toy
from transformer_jax.config import Config, to_json
from transformer_jax.models.lora import Lora
from transformer_jax.models.paths import by_path
from transformer_jax.models.teachers import WordLevel
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.paths import as_path
from transformer_jax.runs.pretrained import open_named
from transformer_jax.training.loop import fit
from transformer_jax.training.trainer import Trainer

MESHES = {"one": MeshConfig(data=1), "eight": MeshConfig(data=2, fsdp=2, tensor=2)}
model = replace(toy.MODEL, source_vocab_size=16, target_vocab_size=16, num_heads=4)
adapted = replace(model, adapter=Lora(rank=2, targets=("*/kernel", "*/table")))
train = replace(toy.TRAIN, steps=3, log_every=1)
folder = as_path(sys.argv[1])

def mesh(name):
    return make_mesh(MESHES[name], jax.devices()[:1] if name == "one" else None)

def losses(name):
    records = (folder / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in records if "loss" in line]

other = make_mesh(MeshConfig(data=1, fsdp=8))
before = fit(model, train, toy.batches_from, workdir=folder / "base", mesh=other)
before = by_path(jax.device_get(before.params))
(folder / "base" / "config.json").write_text(to_json(Config(model=model, train=train)))
seen = {}
for name in MESHES:
    given = open_named("train.init_from", str(folder / "base")).params("best", mesh(name))
    on = max(len(leaf.sharding.device_set) for leaf in jax.tree.leaves(given))
    for path, leaf in by_path(given).items():
        np.testing.assert_array_equal(leaf, before[path])
    tuning = replace(train, init_from=str(folder / "base"))
    state = fit(adapted, tuning, toy.batches_from, mesh=mesh(name), workdir=folder / name)
    after = by_path(state.params)
    for path in before:
        np.testing.assert_array_equal(after[path], before[path])
    taught = replace(train, teacher=WordLevel(str(folder / "base"), weight=0.9, pieces=4))
    fit(model, taught, toy.batches_from, mesh=mesh(name), workdir=folder / f"{name}_taught")
    up = after["lora/encoder/blocks_0/feed_forward/up/kernel/b"]
    seen[name] = {
        "losses": losses(name),
        "taught": losses(f"{name}_taught"),
        "devices": on,
        "b": np.asarray(up).tolist(),
        "columns": up.addressable_shards[0].data.shape[1],
    }
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    return with_eight_devices("-c", HERE, str(tmp_path_factory.mktemp("runs")))


def test_eight_devices_train_as_one_does(seen):
    assert seen["one"]["devices"] == 1 and seen["eight"]["devices"] == 8
    assert len(seen["eight"]["losses"]) == 3
    np.testing.assert_allclose(seen["eight"]["losses"], seen["one"]["losses"], rtol=1e-5)
    np.testing.assert_allclose(seen["eight"]["b"], seen["one"]["b"], atol=1e-4)
    assert np.abs(seen["one"]["b"]).max() > 1e-3


def test_adapters_are_split_as_their_matrix(seen):
    assert [seen[name]["columns"] for name in ("one", "eight")] == [32, 16]


def test_a_teacher_spreads_labels_on_eight_devices_as_on_one(seen):
    np.testing.assert_allclose(seen["eight"]["taught"], seen["one"]["taught"], rtol=1e-5)
    assert abs(seen["one"]["taught"][0] - seen["one"]["losses"][0]) > 1e-3
