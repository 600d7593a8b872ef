"""Run by test_gpu.py: a training step compiled for a device that is only described.

Prints one JSON object: the number of kernels, of loops, and of products by what they end with.
"""

import json
import re
import sys
from collections import Counter
from dataclasses import replace

from tests.training import toy
from transformer_jax.parallel.mesh import MeshConfig, make_mesh
from transformer_jax.plan.hlo import parse, walk
from transformer_jax.plan.step_time import estimate
from transformer_jax.plan.topologies import described
from transformer_jax.training.trainer import Trainer


def main() -> None:
    """Compiles the step of a toy model in bfloat16, with 328 million logits."""
    target = described(sys.argv[1])
    low = {"dtype": "bfloat16", "matmul_dtype": "bfloat16"}
    model = replace(toy.MODEL, source_vocab_size=40_000, target_vocab_size=40_000, **low)
    trainer = Trainer(model, toy.TRAIN, make_mesh(MeshConfig(), target.devices))
    lowered = trainer.lower(trainer.abstract, trainer.abstract_batch((64, 128, 128)))
    text = lowered.compile(compiler_options=dict(target.options)).as_text()
    module = parse(text)
    found = {
        "kernels": estimate(module, target).kernels,
        "loops": sum(one.opcode == "while" for one in walk(module)),
        "products": Counter(re.findall(r'"epilogue":"(\w+)"', text)),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
