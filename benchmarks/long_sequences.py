"""One layer's mixer in training on long sequences, by the compiler of one TPU v5e.

    JAX_PLATFORMS=cpu TPU_SKIP_MDS_QUERY=1 python benchmarks/long_sequences.py [--only=NAME,NAME]

Needs libtpu but no TPU: compiled, not run. The gradient of a causal mixer (d_model 512, 8 heads,
bfloat16) for one sequence, by its parameters and its input. The memory is that of the program's
temporaries; the time is the compiler's estimate, and for attention kernels a roofline.
Mixers that use an FFT (h3, s4, s4d) become very large programs, which take many minutes to compile.
"""

import argparse
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

LENGTHS = (4096, 16384, 65536)
D_MODEL, HEADS = 512, 8
DTYPE = "bfloat16"
CAUSAL = {name: cls() for name, cls in MIXERS.items() if "decoder" not in cls.refuses}
CASES: dict[str, MixerConfig] = {
    "full (plain)": Full(implementation="plain"),
    "full (fused)": Full(implementation="fused"),
    **{name: mixer for name, mixer in CAUSAL.items() if name != "full"},
}


def compiled(config: MixerConfig, length: int, mesh: Mesh) -> Any:
    """The compiled gradient for one sequence of this length."""
    context = MixerContext(
        d_model=D_MODEL,
        num_heads=HEADS,
        head_dim=D_MODEL // HEADS,
        max_length=length,
        causal=True,
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

    return jax.jit(jax.grad(loss, (0, 1))).lower(variables, x, mask).compile()


def cell(config: MixerConfig, length: int, target: Target) -> str:
    """Milliseconds and mebibytes, or that the program does not fit."""
    try:
        program = compiled(config, length, make_mesh(MeshConfig(), target.devices))
    except jax.errors.JaxRuntimeError as error:
        if (refused := refusal(str(error), 0)) is None:
            raise
        return f"does not fit: {refused[0] / 2**30:.0f} GiB"
    time = estimate(parse(program.as_text()), target)
    memory = program.memory_analysis().temp_size_in_bytes
    return f"{1e3 * time.seconds if time else 0:,.1f} ms, {memory / 2**20:,.0f} MiB"


def main() -> None:
    """Prints a row for each mixer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="mixers, separated by commas")
    only = parser.parse_args().only
    chosen = only.split(",") if only else list(CASES)
    slice_ = described("v5e:2x4")
    target = Target(slice_.devices[:1], slice_.device)
    print("| mixer | " + " | ".join(f"{length:,}" for length in LENGTHS) + " |")
    print("| --- |" + " ---: |" * len(LENGTHS))
    for name in chosen:
        cells = [cell(CASES[name], length, target) for length in LENGTHS]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
