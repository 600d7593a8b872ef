"""What is asked of JAX's runtime where a cluster's variables are set; nothing is started."""

import os

import jax
import pytest
from jax._src import distributed
from jax._src.clusters import cluster

from transformer_jax.parallel import processes


class Client:
    def connect(self):
        pass


@pytest.fixture
def detected(monkeypatch):
    """detected(variables) -> (coordinator, number of processes, which this is, its GPUs)."""
    for name in os.environ:
        if name.startswith(("SLURM_", "OMPI_", "JAX_LOCAL_DEVICE", "JAX_COORDINATOR")):
            monkeypatch.delenv(name)
    state, asked, settings = distributed.State(), [], {}
    monkeypatch.setattr(
        distributed._jax,
        "get_distributed_runtime_client",
        lambda address, process_id, **_: asked.append(address) or Client(),
    )
    monkeypatch.setattr(distributed._jax, "get_distributed_runtime_service", lambda *_, **__: None)
    monkeypatch.setattr(distributed.State, "initialize_preemption_sync_manager", lambda self: None)
    monkeypatch.setattr(jax.distributed, "initialize", state.initialize)
    monkeypatch.setattr(cluster, "running_in_cloud_tpu_vm", False)
    monkeypatch.setattr(distributed.config, "update", settings.__setitem__)

    def ask(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        processes.start()
        devices = settings["jax_cuda_visible_devices"]
        return asked[-1], state.num_processes, state.process_id, devices

    return ask


SLURM = {
    "SLURM_JOB_ID": "4096",
    "SLURM_STEP_NODELIST": "node[001-002]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_NTASKS": "16",
    "SLURM_PROCID": "11",
    "SLURM_LOCALID": "3",
}
ALL = "0,1,2,3,4,5,6,7"
ONE_TASK_A_NODE = {"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}
OPEN_MPI = {
    "OMPI_MCA_orte_hnp_uri": "16777216.0;tcp://10.0.0.1,10.1.0.1:34911",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (SLURM, ("node001:61440", 16, 11, "3")),  # each task has the GPU of its number
        (SLURM | ONE_TASK_A_NODE | {"JAX_LOCAL_DEVICE_IDS": ALL}, ("node001:61440", 2, 1, ALL)),
        (OPEN_MPI, ("10.0.0.1:61440", 4, 2, "1")),
    ],
    ids=["SLURM", "SLURM, one task a node", "Open MPI"],
)
def test_what_a_cluster_says(detected, variables, expected):
    assert detected(variables) == expected
