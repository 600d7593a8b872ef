"""The quickstart's score, random kills, and that a program is compiled once."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import EXAMPLES
from tests.pages import text_of

ROOT = Path(__file__).parents[2]

#: Compiles something worth keeping, and says how often the cache on disk had it.
PROGRAM = """
from transformer_jax.commands.main import _prepare_process
_prepare_process()
import jax, jax.numpy as jnp
hits = []
jax.monitoring.register_event_listener(
    lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None
)
def program(x):
    for turn in range(100):
        x = jnp.sin(x) @ x + turn
    return x
jax.jit(program)(jnp.ones((8, 8))).block_until_ready()
print(len(hits))
"""


@pytest.mark.slow
def test_programs_are_compiled_once_for_all_runs(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    environment |= {"XDG_CACHE_HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"}

    def start():
        command = [sys.executable, "-c", PROGRAM]
        return int(subprocess.check_output(command, env=environment, cwd=ROOT, text=True))

    assert start() == 0
    assert start() == 1


@pytest.mark.slow
def test_the_quickstart_scores_97_and_translates_the_session_of_the_readme(tmp_path):
    def call(*arguments, **options):
        return subprocess.check_output([sys.executable, *arguments], cwd=ROOT, text=True, **options)

    config = f"--config={ROOT / 'configs' / 'quickstart.py'}"
    call("train.py", config, f"--workdir={tmp_path}", "--no_progress")
    report = json.loads(call("eval.py", f"--workdir={tmp_path}", "--json"))
    assert report["scores"]["bleu"]["score"] >= 97
    (session,) = re.findall(r"^> (.*\n(?:.*\n)*?)```", text_of("README.md"), re.MULTILINE)
    sources, targets = zip(*re.findall(r"(.+)\n(.+)\n(?:> )?", session), strict=True)
    code = "import sys; from transformer_jax.commands.main import main; sys.exit(main())"
    assert [EXAMPLES[source] for source in sources] == list(targets)
    lines = "".join(source + "\n" for source in EXAMPLES)
    found = call("-c", code, "translate", f"--workdir={tmp_path}", input=lines)
    assert found.splitlines() == list(EXAMPLES.values())
    call("-c", code, "inspect", f"--workdir={tmp_path}")
    for picture in ("training.png", "cross_attention.png"):
        assert (tmp_path / "plots" / picture).stat().st_size > 0


@pytest.mark.slow
def test_killed_at_random_moments_and_restarted():
    """docs/reliability.md has the result of thirty kills."""
    done = subprocess.run(
        [sys.executable, "benchmarks/kill_and_resume.py", "--kills=5", "--steps=150", "--seed=1"],
        capture_output=True,
        text=True,
        timeout=1500,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert json.loads(done.stdout)["kills"] == 5
