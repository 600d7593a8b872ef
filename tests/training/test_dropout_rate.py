"""`model.dropout_rate=auto`."""

from dataclasses import replace

import pytest

from tests.training import toy
from transformer_jax.errors import UserError
from transformer_jax.models import api
from transformer_jax.training.trainer import dropout_for


@pytest.mark.parametrize(
    ("epochs", "rate"), [(0, 0.1), (14.9, 0.1), (15, 0.2), (27.9, 0.2), (28, 0.3), (1e9, 0.3)]
)
def test_the_rate_follows_from_the_epochs(epochs, rate):
    assert dropout_for(epochs) == rate


def test_a_model_needs_a_number():
    with pytest.raises(UserError, match="model.dropout_rate=auto is resolved by train.py alone"):
        api.abstract_params(replace(toy.MODEL, dropout_rate="auto"))
