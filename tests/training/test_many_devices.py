"""One device and eight train and translate alike, however the mesh is cut."""

from pathlib import Path

import numpy as np
import pytest

from tests.devices import with_eight_devices

HERE = Path(__file__).parent

# Saved with 8 devices after 4 steps, then continued with fewer, on batches of a real plan.
FEWER = """
import hashlib, json, sys
import jax, numpy as np, shutil
from tests.training import toy
from dataclasses import replace
from transformer_jax.data.batches import BatchPlan, Share, Stream
from transformer_jax.data.config import BatchConfig
from transformer_jax.data.sentences import IdCorpus
from transformer_jax.data.pipeline import in_thread
from transformer_jax.parallel.mesh import MeshConfig, batch_devices, make_mesh
from transformer_jax.training.loop import fit
from transformer_jax.paths import as_path
from transformer_jax.runs.metrics import read_metrics

devices, folder = jax.devices(), sys.argv[1]
model = replace(toy.MODEL, source_vocab_size=16, target_vocab_size=16)
train = replace(toy.TRAIN, steps=4, log_every=1, ema_decay=0.9)
mesh = {8: MeshConfig(data=2, fsdp=2, tensor=2), 4: MeshConfig(data=1, fsdp=4),
        2: MeshConfig(), 1: MeshConfig()}
rng = np.random.default_rng(0)
source = [rng.integers(4, 16, rng.integers(1, 6)).tolist() for _ in range(43)]
corpus = IdCorpus.from_lists(source, [ids[::-1] for ids in source])
plan = BatchPlan(corpus.source.lengths, corpus.target.lengths,
                 BatchConfig(tokens=48, max_length=6, num_buckets=1), row_multiple=4)
assert plan.batches_per_epoch == 6  # the continued run comes into the second epoch
seen = []

def batches_from(position, mesh):
    rows = batch_devices(mesh)
    for batch in in_thread(Stream(corpus, plan, Share(row_multiple=rows)), position):
        content = b"".join(batch[key].tobytes() for key in sorted(batch))
        seen.append((position, hashlib.sha256(content).hexdigest()))
        yield batch
        position += 1

def go_on(steps, mesh, folder):
    mesh = make_mesh(mesh)
    state = fit(model, replace(train, steps=steps), lambda position: batches_from(position, mesh),
                mesh=mesh, workdir=folder)
    return hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(state)))

saved = go_on(4, mesh[8], folder).hexdigest()
out = {}
for count in mesh:
    shutil.copytree(folder, f"{folder}-{count}")
    jax.devices = lambda *a: devices[:count]
    del seen[:]
    restored = go_on(4, mesh[count], f"{folder}-{count}").hexdigest()  # nothing to train
    assert not seen
    go_on(8, mesh[count], f"{folder}-{count}")
    out[count] = {
        "state": [saved, restored],
        "batches": list(seen),
        "losses": [(r["step"], r["loss"]) for r in read_metrics(as_path(f"{folder}-{count}"))
                   if "loss" in r],
    }
jax.devices = lambda *a: devices
print(json.dumps(out))
"""

# Four steps in bfloat16, with parameters sent as they are used, and as they are kept.
SENT = """
import json
import jax
from dataclasses import replace
from tests import shared_programs
from tests.training import many_devices
from transformer_jax.models import api
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.training import trainer

trainer.Programs = shared_programs.ALONE
model = replace(many_devices.MODEL, dtype="bfloat16", matmul_dtype="bfloat16")
as_used = api.product_dtypes

def seen():
    state, losses = many_devices.train(make_mesh(MeshConfig()), 4, model=model)
    return losses, jax.tree.map(lambda x: x.tolist(), state.params)

rounded = [str(dtype) for dtype in jax.tree.leaves(as_used(model))]
low = seen()
api.product_dtypes = lambda model: jax.tree.map(lambda x: x.dtype, api.abstract_params(model))
whole = seen()
api.product_dtypes = as_used
shared_programs.install()
print(json.dumps({"dtypes": rounded, "low": low, "whole": whole}))
"""

# A training in simulated int8, which begins with factors that are measured on the mesh.
INT8 = """
import json
import jax, numpy as np
from dataclasses import replace
from tests.training import many_devices, toy
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.models import api
from transformer_jax.models.paths import by_path
from transformer_jax.models.quantization import Int8
from transformer_jax.parallel.mesh import param_shardings
from transformer_jax.training.trainer import Trainer

given = jax.tree.map(np.array, api.init(many_devices.MODEL, jax.random.key(0)))
axes = api.logical_axes(many_devices.MODEL)
model = replace(many_devices.MODEL, quantize=Int8())
seen = {}
for name in ("one", "all"):
    mesh = many_devices.mesh_of(name)
    trainer = Trainer(model, replace(toy.TRAIN, init_from="a run"), mesh)
    begin = jax.device_put(given, param_shardings(axes, given, mesh))
    begin = trainer.measured(begin, toy.batches_from)
    state, losses = trainer.init(begin), []
    for position in range(4):
        state, metrics = trainer.step(state, trainer.place(toy.batch(position)))
        losses.append(float(metrics["loss_sum"] / metrics["tokens"]))
    params = jax.tree.map(np.asarray, state.params)
    seen[name] = {
        "losses": losses,
        "alphas": [float(x) for _, x in sorted(by_path(params["alphas"]).items())],
        "texts": many_devices.translations(params, mesh, Greedy(), model)[0],
    }
print(json.dumps(seen))
"""

# Trainings that begin with the run of another mesh, with adapters, and that it teaches.
FINETUNED = """
import json, sys
from dataclasses import replace
import jax, numpy as np
from tests.training import many_devices, toy
from transformer_jax.config import Config, to_json
from transformer_jax.models.lora import Lora
from transformer_jax.models.paths import by_path
from transformer_jax.models.teachers import WordLevel
from transformer_jax.paths import as_path
from transformer_jax.runs.pretrained import open_named
from transformer_jax.training.loop import fit

model = many_devices.MODEL
adapted = replace(model, adapter=Lora(rank=2, targets=("*/kernel", "*/table")))
train = replace(toy.TRAIN, steps=3, log_every=1)
folder = as_path(sys.argv[1])
base = folder / "base"

def losses(name):
    records = (folder / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in records if "loss" in line]

mesh = many_devices.mesh_of("fsdp8")
state = fit(model, train, toy.batches_from, workdir=base, mesh=mesh)
before = by_path(jax.device_get(state.params))
(base / "config.json").write_text(to_json(Config(model=model, train=train)))
seen = {}
for name in ("one", "all"):
    mesh = many_devices.mesh_of(name)
    given = open_named("train.init_from", str(base)).params("best", mesh)
    on = max(len(leaf.sharding.device_set) for leaf in jax.tree.leaves(given))
    for path, leaf in by_path(given).items():
        np.testing.assert_array_equal(leaf, before[path])
    tuning = replace(train, init_from=str(base))
    state = fit(adapted, tuning, toy.batches_from, mesh=mesh, workdir=folder / name)
    after = by_path(state.params)
    for path in before:
        np.testing.assert_array_equal(after[path], before[path])
    taught = replace(train, teacher=WordLevel(str(base), weight=0.9, pieces=4))
    fit(model, taught, toy.batches_from, mesh=mesh, workdir=folder / f"{name}_taught")
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


def run(steps, *meshes):
    """What many_devices.py saw."""
    return with_eight_devices(str(HERE / "many_devices.py"), str(steps), *meshes)


@pytest.fixture(scope="module")
def few_steps():
    return run(4, "one", "all", "data8", "data8_bfloat16")


@pytest.fixture(scope="module")
def fifty_steps():
    return run(50, "one", "data8", "fsdp8", "all", "tensor4")


def assert_same_translations(seen, one):
    assert any(one["beam"][0] + one["sample"][0])  # something was said
    for search in seen.keys() & {"beam", "sample", "int8"}:
        assert seen[search][0] == one[search][0]
        for got, wanted in zip(seen[search][1:], one[search][1:], strict=True):
            np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_losses_and_translations_are_those_of_one_device(few_steps):
    assert any(few_steps["one"]["beam"][0])  # later the toy's best may be empty
    for mesh in ("all", "data8"):
        np.testing.assert_allclose(few_steps[mesh]["losses"], few_steps["one"]["losses"], atol=1e-5)
        assert_same_translations(few_steps[mesh], few_steps["one"])


def test_gradients_added_up_in_bfloat16_change_little(few_steps):
    exact, rounded = few_steps["one"]["losses"], few_steps["data8_bfloat16"]["losses"]
    np.testing.assert_allclose(rounded, exact, atol=1e-3)
    assert np.abs(np.subtract(rounded, exact)).max() > 1e-5


@pytest.mark.parametrize("part", ["parameter_bytes", "average_bytes", "optimizer_bytes"])
def test_devices_that_share_only_the_batch_each_keep_a_part_of_the_state(few_steps, part):
    assert few_steps["data8"][part] < 0.3 * few_steps["one"][part]


def test_parameters_sent_in_the_dtype_in_which_they_are_used_change_nothing():
    seen = with_eight_devices("-c", SENT)
    assert {"bfloat16", "float32"} == set(seen["dtypes"])
    assert seen["low"] == seen["whole"]


def test_training_in_int8_is_that_of_one_device():
    seen = with_eight_devices("-c", INT8)
    one, all_axes = seen["one"], seen["all"]
    np.testing.assert_allclose(all_axes["alphas"], one["alphas"], rtol=1e-5)
    # A sum in another order may be rounded to the next whole number.
    np.testing.assert_allclose(all_axes["losses"], one["losses"], atol=3e-3)
    assert len(all_axes["texts"]) == len(one["texts"]) > 0


def test_a_run_begins_with_another_or_is_taught_by_it_as_on_one_device(tmp_path):
    seen = with_eight_devices("-c", FINETUNED, str(tmp_path))
    one, eight = seen["one"], seen["all"]
    assert (one["devices"], eight["devices"]) == (1, 8)
    assert (one["columns"], eight["columns"]) == (32, 16)  # adapters are split as their matrix
    assert len(eight["losses"]) == 3
    np.testing.assert_allclose(eight["losses"], one["losses"], rtol=1e-5)
    np.testing.assert_allclose(eight["b"], one["b"], atol=1e-4)
    assert np.abs(one["b"]).max() > 1e-3
    np.testing.assert_allclose(eight["taught"], one["taught"], rtol=1e-5)
    assert abs(one["taught"][0] - one["losses"][0]) > 1e-3


def test_a_mesh_of_one_device_translates_as_no_mesh(few_steps):
    assert few_steps["one"]["beam"] == few_steps["no mesh"]["beam"]


def test_parameters_are_read_onto_the_devices_that_hold_them(few_steps):
    one, seen = few_steps["one"], few_steps["all"]
    assert one["restored_bytes"] == one["parameter_bytes"]
    assert seen["restored_bytes"] == seen["parameter_bytes"] < 0.5 * one["restored_bytes"]
    # To decode, each device has all of them.
    assert few_steps["data8"]["restored_bytes"] == one["parameter_bytes"]
    # What a run folder says, fsdp=8 here, is how it is loaded; scales and biases stay whole.
    assert few_steps["by_default"] < 0.3 * one["restored_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["data8", "fsdp8", "all", "tensor4"])
def test_fifty_steps_follow_the_loss_curve_of_one_device(fifty_steps, mesh):
    losses = fifty_steps["one"]["losses"]
    assert len(losses) == 50 and losses[-1] < losses[0] - 0.1
    np.testing.assert_allclose(fifty_steps[mesh]["losses"], losses, atol=1e-5)
    assert_same_translations(fifty_steps[mesh], fifty_steps["one"])


@pytest.mark.slow
def test_saved_on_eight_devices_and_continued_on_one_two_and_four(tmp_path):
    runs = with_eight_devices("-c", FEWER, str(tmp_path / "run"))
    steps, expected = zip(*runs["8"]["losses"], strict=True)
    assert list(steps) == list(range(1, 9))
    assert [position for position, _ in runs["8"]["batches"]] == [4, 5, 6, 7]
    for count in ("8", "4", "2", "1"):
        saved, restored = runs[count]["state"]
        assert restored == saved, "the parameters, moments or the average are not those saved"
        assert runs[count]["batches"] == runs["8"]["batches"]
        found_steps, found = zip(*runs[count]["losses"], strict=True)
        assert found_steps == steps
        np.testing.assert_allclose(found, expected, atol=1e-5)
