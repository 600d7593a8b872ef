"""Run by test_many_devices.py in a process of its own, on 8 virtual CPU devices.

Trains the toy model on each mesh named on the command line, translates with it, and prints one
JSON object: mesh -> what was seen.
"""

import json
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np

from tests.training import toy
from transformer_jax.config import Config, to_json
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.decoding.sample import Sample
from transformer_jax.parallel.mesh import MeshConfig, batch_sharding, make_mesh
from transformer_jax.paths import as_path
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.folder import open_run
from transformer_jax.training.trainer import Trainer
from transformer_jax.translation.translator import Translator

MESHES = {
    "one": MeshConfig(data=1),
    "data8": MeshConfig(data=8),
    "data8_bfloat16": MeshConfig(data=8),  # which adds up gradients
    "fsdp8": MeshConfig(data=1, fsdp=8),
    "all": MeshConfig(data=2, fsdp=2, tensor=2),
    "tensor4": MeshConfig(data=2, tensor=4),
}
# Sizes that eight divides: an axis that its mesh axis does not divide would stay whole.
MODEL = replace(toy.MODEL, source_vocab_size=16, target_vocab_size=16, num_heads=4)
TRAIN = replace(toy.TRAIN, ema_decay=0.9)
SOURCES = ["4 5 6", "7", "11 10 9 8 7", "", "5 5 5 4"] * 3


def train(mesh, steps, *, model=MODEL, reduce_dtype="float32"):
    """(the last state, the mean loss of each step)."""
    trainer = Trainer(model, replace(TRAIN, steps=steps, reduce_dtype=reduce_dtype), mesh)
    state, step = trainer.init(), trainer.step
    losses = []
    for position in range(steps):
        batch = jax.device_put(toy.batch(position), batch_sharding(mesh))
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss_sum"] / metrics["tokens"]))
    return state, losses


def mesh_of(name):
    """On the first device alone for "one"."""
    return make_mesh(MESHES[name], jax.devices()[:1] if name == "one" else None)


def translations(params, mesh, method, model=MODEL, **decode):
    tokenizers = SimpleNamespace(source=toy.Numbers(), target=toy.Numbers())
    limits = {"max_length_factor": 1.0, "max_length_offset": 2}
    decode = DecodeConfig(batch_size=3, method=method, **limits, **decode)
    translator = Translator(model, params, tokenizers, decode, mesh=mesh)
    best = [first for first, *_ in translator.decode(SOURCES).translations]
    scored = translator.score(SOURCES, [one.text for one in best])
    return [one.text for one in best], [one.score for one in best], scored.tolist()


def most_bytes_on_a_device(tree):
    held = Counter()
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            held[shard.device.id] += shard.data.nbytes
    return max(held.values())


def save(folder, state):
    """A run folder that says fsdp=8, with the state as its checkpoint."""
    config = Config(model=MODEL, train=TRAIN, mesh=MESHES["fsdp8"])
    (folder / "config.json").write_text(to_json(config))
    checkpoints = Checkpoints(as_path(folder), 1)
    checkpoints.save(1, state.to_items(), {}, best=False)
    checkpoints.close()


def main(folder):
    steps, names = int(sys.argv[1]), sys.argv[2:]
    assert jax.device_count() == 8
    seen = {}
    # Every mesh translates with the same parameters: those that one device arrived at.
    found_on_one = None
    for name in names:
        mesh = mesh_of(name)
        reduce_dtype = "bfloat16" if "bfloat16" in name else "float32"
        state, losses = train(mesh, steps, reduce_dtype=reduce_dtype)
        if found_on_one is None:
            found_on_one = jax.device_get(state.ema)
            save(folder, state)
        params = open_run(folder).params("latest", mesh)
        jax.tree.map(np.testing.assert_array_equal, params, found_on_one)
        seen[name] = {
            "losses": losses,
            "parameter_bytes": most_bytes_on_a_device(state.params),
            "restored_bytes": most_bytes_on_a_device(params),
            "optimizer_bytes": most_bytes_on_a_device(state.opt_state),
            "average_bytes": most_bytes_on_a_device(state.ema),
        }
        if name != "data8_bfloat16":
            seen[name]["beam"] = translations(params, mesh, Beam(beam_size=3))
        if name in ("one", "all"):
            seen[name]["sample"] = translations(params, mesh, Sample())
            seen[name]["int8"] = translations(params, mesh, Beam(beam_size=3), weights="int8")
    seen["by_default"] = most_bytes_on_a_device(open_run(folder).params("latest"))
    alone = translations(jax.tree.map(jax.numpy.asarray, found_on_one), None, Beam(beam_size=3))
    print(json.dumps(seen | {"no mesh": {"beam": alone}}))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        main(Path(made))
