"""One layer's mixer in training on long sequences, by the compiler of one TPU or GPU.

    JAX_PLATFORMS=cpu python benchmarks/long_sequences.py [--topology=v5e:2x4|h100:1]
        [--only=NAME,NAME] [--lengths=4096,16384,65536]

Needs libtpu or jax-cuda13-plugin but no device (docs/scale.md): compiled, not run. The gradient of
a mixer (d_model 512, 8 heads, bfloat16) for one sequence, by its parameters and its input; causal,
unless it is for encoders only. The memory is that of the temporaries. On a TPU the time is
the compiler's estimate, and for attention kernels a roofline. On a GPU it is a roofline of each
kernel; the number of kernels follows, since their launches are not in the time.
Mixers that use an FFT (h3, s4, s4d) become very large programs on a TPU, which take many minutes to
compile.
"""

import argparse
import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.sharding import Mesh

from transformer_jax.mixers.base import MixerConfig, MixerContext
from transformer_jax.mixers.full_attention import Full
from transformer_jax.mixers.registry import MIXERS
from transformer_jax.parallel.mesh import MeshConfig, activations_on, make_mesh, replicated
from transformer_jax.plan.devices import Target
from transformer_jax.plan.hlo import parse
from transformer_jax.plan.programs import refusal
from transformer_jax.plan.step_time import estimate
from transformer_jax.plan.topologies import described
from transformer_jax.positions.none import NoPosition

D_MODEL, HEADS = 512, 8
DTYPE = "bfloat16"
CASES: dict[str, MixerConfig] = {
    "full (plain)": Full(implementation="plain"),
    "full (fused)": Full(implementation="fused"),
    **{name: cls() for name, cls in MIXERS.items() if name != "full"},
}


def lowered(config: MixerConfig, length: int, mesh: Mesh, what: str = "gradient") -> Any:
    """The gradient, or what is computed forwards, for one sequence; ready to compile."""
    context = MixerContext(
        d_model=D_MODEL,
        num_heads=HEADS,
        head_dim=D_MODEL // HEADS,
        max_length=length,
        causal="decoder" not in config.refuses,
        dtype=DTYPE,
        matmul_dtype=DTYPE,
    )
    mixer = config.build(context, NoPosition().build(context))
    on_device = partial(jax.ShapeDtypeStruct, sharding=replicated(mesh))
    x = on_device((1, length, D_MODEL), jnp.dtype(DTYPE))
    mask = on_device((1, length), jnp.bool_)
    initial = jax.eval_shape(lambda x, mask: mixer.init(jax.random.key(0), x, mask), x, mask)
    variables = jax.tree.map(lambda leaf: on_device(leaf.shape, leaf.dtype), nn.unbox(initial))

    def loss(variables: Any, x: jax.Array, mask: jax.Array) -> jax.Array:
        with activations_on(mesh):
            return jnp.square(mixer.apply(variables, x, mask).astype(jnp.float32)).sum()

    program = jax.grad(loss, (0, 1)) if what == "gradient" else loss
    return jax.jit(program).lower(variables, x, mask)


def cell(config: MixerConfig, length: int, target: Target) -> str:
    """Milliseconds, mebibytes and a GPU's kernels, or that the program does not fit."""
    program = lowered(config, length, make_mesh(MeshConfig(), target.devices))
    try:
        executable = program.compile(compiler_options=dict(target.options))
    except jax.errors.JaxRuntimeError as error:
        if (refused := refusal(str(error), 0)) is None:
            raise
        return f"does not fit: {refused[0] / 2**30:.0f} GiB"
    memory = executable.memory_analysis().temp_size_in_bytes
    if target.memory is not None and memory > target.memory:
        return f"does not fit: {memory / 2**30:.0f} GiB"
    time = estimate(parse(executable.as_text()), target)
    if time is None:
        raise ValueError(f"{target.description}: the compiler gave no estimates")
    kernels = "" if time.kernels is None else f", {time.kernels:,}"
    return f"{1e3 * time.seconds:,.1f} ms, {memory / 2**20:,.0f} MiB{kernels}"


def main() -> None:
    """Prints a row for each mixer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--topology", default="v5e:2x4", help="as train --plan_topology; its first device counts"
    )
    parser.add_argument("--only", default="", help="mixers, separated by commas")
    parser.add_argument("--lengths", default="4096,16384,65536", help="tokens")
    args = parser.parse_args()
    chosen = args.only.split(",") if args.only else list(CASES)
    lengths = [int(length) for length in args.lengths.split(",")]
    topology = described(args.topology)
    target = dataclasses.replace(topology, devices=topology.devices[:1])
    print("| mixer | " + " | ".join(f"{length:,}" for length in lengths) + " |")
    print("| --- |" + " ---: |" * len(lengths))
    for name in chosen:
        cells = [cell(CASES[name], length, target) for length in lengths]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
