"""A run is trained and translated with where TensorFlow is not installed."""

import subprocess
import sys

from tests.toy_run import train_command

SCRIPT = """
import sys

for name in ("tensorflow", "tensorflow_datasets"):
    sys.modules[name] = None  # importing it fails, and importlib finds no such package
from transformer_jax.commands.main import main

assert main(sys.argv[1:]) == 0
assert not [n for n, module in sys.modules.items() if module and n.startswith("tensorflow")]
"""


def test_train_and_translate(toy_place, tmp_path):
    run = tmp_path / "run"
    for words in (
        train_command(toy_place, run, "--config.train.steps=4"),
        ["translate", f"--workdir={run}", "--checkpoint=latest", "--method=beam(beam_size=2)"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, *words],
            input="The dog sleeps.\n",
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("\n") == 1
