"""Run by test_gpu.py: a small training step, compiled for devices that are only described.

Prints one JSON object: whether the compiler takes all options but one that is made up; whether
products are calls of cuBLAS, with these options and without; FLOPs counted outside and inside the
mesh.
"""

import json
import sys

from transformer_jax.config import TrainConfig
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.models.flops import train_step_flops
from transformer_jax.parallel.mesh import MeshConfig, activations_on, make_mesh
from transformer_jax.plan.topologies import described
from transformer_jax.training import step as training_step
from transformer_jax.training.trainer import Trainer

ROWS, LENGTH = 8, 64


def main() -> None:
    """Compiles the step twice, with the options of a training and with none."""
    mesh = make_mesh(MeshConfig(), described(sys.argv[1]).devices)
    stack = StackConfig(num_layers=1)
    sizes = dict(source_vocab_size=512, target_vocab_size=512, d_model=128, d_ff=256, num_heads=2)
    model = ModelConfig(encoder=stack, decoder=stack, dtype="bfloat16", max_length=LENGTH, **sizes)
    real = training_step.COMPILER_OPTIONS["gpu"]

    def uses_cublas(options):
        training_step.COMPILER_OPTIONS["gpu"] = options
        trainer = Trainer(model, TrainConfig(steps=1), mesh)
        batch = trainer.abstract_batch((ROWS, LENGTH, LENGTH))
        text = trainer.lower(trainer.abstract, batch).compile().as_text()
        return "__cublas$lt$matmul" in text

    with_made_up = {**real, "xla_gpu_made_up": False}
    cublas = [uses_cublas(with_made_up), uses_cublas({})]
    training_step.COMPILER_OPTIONS["gpu"] = with_made_up
    taken = training_step.options_for(mesh)
    flops = [train_step_flops(model, ROWS, LENGTH)]
    with activations_on(mesh):
        flops.append(train_step_flops(model, ROWS, LENGTH))
    print(json.dumps({"is_as_wanted": taken == real, "cublas": cublas, "flops": flops}))


if __name__ == "__main__":
    main()
