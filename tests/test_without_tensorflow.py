"""Model, training, checkpoints and decoding where TensorFlow is not installed."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys

for name in ("tensorflow", "tensorflow_datasets"):
    sys.modules[name] = None  # importing it fails, and importlib finds no such package
import dataclasses, pathlib
import jax, jax.numpy as jnp
from tests.training import toy
import transformer_jax as tj
from transformer_jax.data.batches import BatchPlan
from transformer_jax.data.config import BatchConfig
from transformer_jax.data.sentences import IdCorpus
from transformer_jax.data.pipeline import batches
from transformer_jax.decoding.base import Limits
from transformer_jax.decoding.beam import Beam
from transformer_jax.config import Config, to_json

workdir = pathlib.Path(sys.argv[1])
ids = [[4 + (i + j) % 8 for j in range(1 + i % 5)] for i in range(40)]
corpus = IdCorpus.from_lists(ids, [list(reversed(line)) for line in ids])
plan = BatchPlan(corpus.source.lengths, corpus.target.lengths,
                 BatchConfig(tokens=48, max_length=toy.LENGTH, num_buckets=1))
train = dataclasses.replace(toy.TRAIN, steps=4, checkpoint_every=2)
state = tj.fit(toy.MODEL, train, lambda position: batches(corpus, plan, position),
               workdir=workdir)
(workdir / "config.json").write_text(to_json(Config(model=toy.MODEL, train=train)))
params = tj.open_run(workdir).params("latest")
source = jnp.array([[4, 5, 2]]); mask = jnp.ones((1, 3), bool)
sentence, beams = tj.encode(toy.MODEL, params, source, mask, max_length=5, beam_size=2)
found = Beam(beam_size=2).search(
    lambda tokens, position, state: tj.decode_step(
        toy.MODEL, params, tokens, position, state, sentence),
    beams, Limits(jnp.array([5]), jnp.array([0]), jax.random.key(0), max_length=5))
assert found.tokens.shape == (1, 2, 5), found.tokens.shape
assert not [n for n, module in sys.modules.items() if module and n.startswith("tensorflow")]
print("done at step", int(state.step))
"""


def test_train_save_restore_and_decode(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "done at step 4" in done.stdout
