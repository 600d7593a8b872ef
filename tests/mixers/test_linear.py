"""Linear attention: its formula, its state, its rotation."""

import jax
import jax.numpy as jnp
import pytest

from tests.mixers.kernel_cases import assert_module_is_the_formula, build
from tests.reference.naive_kernel_attention import naive_elu_features
from transformer_jax.testing import mixers as suite


@pytest.mark.parametrize("causal", [False, True])
def test_the_module_is_the_formula_rotated_in_the_numerator_alone(causal):
    mixer, variables = build("linear", causal=causal, chunk=3)
    assert_module_is_the_formula(mixer, variables, naive_elu_features, causal=causal)


def test_steps_equal_the_chunked_form_with_rotation():
    suite.check_step_equals_parallel(*build("linear", causal=True, chunk=3))


def test_no_matrix_of_length_by_length_is_built():
    mixer, variables = build("linear", causal=True, turned=False, chunk=8)
    x, mask = jnp.zeros((1, 96, suite.D)), jnp.ones((1, 96), bool)
    text = str(jax.make_jaxpr(lambda x: suite.parallel(mixer, variables, x, mask))(x))
    assert "96,96" not in text and "8,8" in text
