"""Run by test_described.py: programs compiled for devices that are only described.

`python -m tests.plan.compiled PROGRAM TOPOLOGY` prints one JSON object.
"""

import json
import re
import sys
from collections import Counter
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from tests.training import toy
from transformer_jax.commands.check.numbers import ATTENTION_SHAPE, attention_program
from transformer_jax.ops.flash_attention import chosen_kernel, flash_attention
from transformer_jax.parallel.mesh import MeshConfig, activations_on, make_mesh, replicated
from transformer_jax.plan.hlo import by_kind, parse, walk
from transformer_jax.plan.step_time import estimate
from transformer_jax.plan.topologies import described
from transformer_jax.training.trainer import Trainer

LOW = {"dtype": "bfloat16", "matmul_dtype": "bfloat16"}


def attention(target):
    """The gradient of cross-attention over a mesh of 2 x 2 x 2.

    Its custom calls, as [target and name, sizes of each operand], and its collectives.
    """
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), target.devices)

    def array(*sizes, dtype=jnp.bfloat16):
        spec = PartitionSpec(("data", "fsdp"), None, *["tensor", None][: len(sizes) - 2])
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, spec))

    def gradient(q, k, v, mask):
        def loss(q, k, v):
            with activations_on(mesh):
                return flash_attention((q, k, v), mask).astype(jnp.float32).sum()

        return jax.grad(loss, (0, 1, 2))(q, k, v)

    keys, mask = array(8, 640, 2, 64), array(8, 640, dtype=jnp.bool_)
    lowered = jax.jit(gradient).lower(array(8, 512, 8, 64), keys, keys, mask)
    module = parse(lowered.compile(compiler_options=dict(target.options)).as_text())
    calls = [
        [f"{one.target} {one.name}", [arrays[0].sizes for arrays in one.inputs if arrays]]
        for one in walk(module)
        if one.opcode == "custom-call"
    ]
    return {"calls": calls, "collectives": by_kind(module, len(target.devices))}


def kernels(target):
    """Of a step in bfloat16 with 328 million logits: kernels, loops, products by their end."""
    model = replace(toy.MODEL, source_vocab_size=40_000, target_vocab_size=40_000, **LOW)
    trainer = Trainer(model, toy.TRAIN, make_mesh(MeshConfig(), target.devices))
    lowered = trainer.lower(trainer.abstract, trainer.abstract_batch((64, 128, 128)))
    text = lowered.compile(compiler_options=dict(target.options)).as_text()
    module = parse(text)
    return {
        "kernels": estimate(module, target).kernels,
        "loops": sum(one.opcode == "while" for one in walk(module)),
        "products": Counter(re.findall(r'"epilogue":"(\w+)"', text)),
    }


def check(target):
    """The kernel of each dtype whose attention programs `check` compares."""
    mesh = make_mesh(MeshConfig(), target.devices[:1])

    def attend(*arrays, **options):
        with activations_on(mesh):
            return flash_attention(*arrays, **options)

    kernels = {}
    for dtype in ("bfloat16", "float32"):
        array = partial(jax.ShapeDtypeStruct, sharding=replicated(mesh))
        qkv = [array(ATTENTION_SHAPE, jnp.dtype(dtype))] * 3
        arrays = [*qkv, array(ATTENTION_SHAPE[:2], bool), array(ATTENTION_SHAPE, jnp.float32)]
        lowered = jax.jit(attention_program({"chosen": attend})).lower(*arrays)
        lowered.compile(compiler_options=dict(target.options))
        with activations_on(mesh):
            kernels[dtype] = chosen_kernel(qkv[0])
    return kernels


if __name__ == "__main__":
    programs = {each.__name__: each for each in (attention, kernels, check)}
    print(json.dumps(programs[sys.argv[1]](described(sys.argv[2]))))
