"""The initial values of S4D's systems (Gu et al. 2022, arXiv:2206.11893)."""

import jax
import numpy as np
import pytest

from transformer_jax.layers.diagonal_systems import DiagonalOptions, DiagonalSystems

STATES = 8


def legs():
    """Eigenvalues of A + P P^T, A and P of HiPPO-LegS, with the upper half of each pair."""
    n = np.arange(STATES)
    root = np.sqrt(2 * n + 1.0)
    a = -np.tril(np.outer(root, root), -1) - np.diag(n + 1.0)
    eigenvalues = np.linalg.eigvals(a + np.outer(root, root) / 2)
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
