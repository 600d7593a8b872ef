"""Flags of several processes that cannot work are one line, before anything is written."""

import jax
import pytest

from transformer_jax.commands.main import main
from transformer_jax.parallel import processes


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--distributed"], "no cluster was detected, so give coordinator_address"),
        (["--coordinator_address=nowhere", "--num_processes=2", "--process_id=0"], "HOST:PORT"),
        (["--coordinator_address=localhost:1", "--num_processes=2", "--process_id=2"], "0 to 1"),
        (["--num_processes=0", "--process_id=0"], "num_processes=0: expected at least 1"),
        (["--process_id=many"], "--process_id"),
    ],
)
def test_flags_that_cannot_work(tmp_path, monkeypatch, capsys, flags, words):
    for name in ("JAX_COORDINATOR_ADDRESS", "SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    recipe = tmp_path / "recipe.py"
    recipe.write_text("from transformer_jax.config import Config\nconfig = Config()\n")
    status = main(["train", f"--config={recipe}", f"--workdir={tmp_path / 'run'}", *flags])
    error = capsys.readouterr().err.strip().splitlines()
    assert status == 2
    assert error[-1].startswith("error: ") and words in error[-1]
    assert not (tmp_path / "run").exists()


def test_a_cluster_is_asked_where_nothing_is_given(monkeypatch):
    asked = []
    monkeypatch.setattr(
        jax.distributed,
        "initialize",
        lambda *given, cluster_detection_method, **_: asked.append(
            (*given, cluster_detection_method)
        ),
    )
    processes.start()
    processes.start("host:1", 2, 0)
    assert asked == [(None, None, None, None), ("host:1", 2, 0, "deactivate")]
