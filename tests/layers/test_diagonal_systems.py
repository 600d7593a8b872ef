"""The initial values of S4D's systems (Gu et al. 2022, arXiv:2206.11893)."""

import jax
import numpy as np
import pytest

from tests.ops.test_dplr_ssm import normal_part
from transformer_jax.layers.diagonal_systems import DiagonalOptions, DiagonalSystems

STATES = 8


def legs():
    """Eigenvalues of A + P P^T of HiPPO-LegS, the upper one of each pair."""
    eigenvalues = np.linalg.eigvals(normal_part(STATES)[0])
    return sorted(eigenvalues[eigenvalues.imag > 0], key=np.imag)


EXPECTED = {
    "lin": [-0.5 + 1j * np.pi * n for n in range(4)],
    "inv": [-0.5 + 1j * 8 / np.pi * (8 / (2 * n + 1) - 1) for n in range(4)],
    "legs": legs(),
}


@pytest.mark.parametrize("init", EXPECTED)
def test_every_channel_starts_with_these_eigenvalues(init):
    options = DiagonalOptions(state_size=STATES, init=init)
    systems = DiagonalSystems(3, options, 1, "embed", "float32")
    p = jax.tree.map(np.asarray, systems.init(jax.random.key(0), 1, method="kernels"))["params"]
    p = {name: box.value for name, box in p.items()}
    got = -np.exp(p["log_decay"]) + 1j * p["frequency"]
    np.testing.assert_allclose(got, np.tile(EXPECTED[init], (3, 1)), rtol=1e-5)
