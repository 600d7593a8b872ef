"""`DecodeConfig`: ranges, overrides by keyword, and the limit on length."""

import pytest

from transformer_jax.config import override
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.config import DecodeConfig, while_training
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.decoding.sample import Sample
from transformer_jax.errors import UserError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": Beam(beam_size=0)}, r"decode.method: beam\(beam_size=0\)"),
        ({"method": "beam(length_penalty=nan)"}, "length_penalty"),
        ({"method": Beam(patience=0.9)}, r"beam\(patience=0.9\): .* greater than or equal to 1"),
        ({"method": Sample(temperature=0.0)}, r"sample\(temperature=0.0\): .* equal to 0.000001"),
        ({"method": Sample(top_p=0.0)}, "top_p"),
        ({"method": Sample(top_p=1.5)}, "top_p"),
        ({"method": Sample(seed=2**32)}, "seed"),
        ({"no_repeat_ngram": -1}, "decode.no_repeat_ngram=-1"),
        ({"repetition_penalty": 0.0}, "decode.repetition_penalty=0.0: .* greater than 0"),
        ({"max_length_factor": -1.0}, "decode.max_length_factor=-1.0"),
        ({"batch_sise": 3}, r"decode.batch_sise: no such key \(did you mean decode.batch_size\?"),
        ({"beam_size": 8}, "decode.beam_size: no such key; use decode.method.beam_size=8"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(given, message):
    with pytest.raises(UserError, match=message) as error:
        override(DecodeConfig(), given, prefix="decode.")
    assert "\n" not in str(error.value)


def test_training_evaluates_greedily():
    config = DecodeConfig(max_length_factor=2.0, weights="int8")
    assert while_training(config) == DecodeConfig(
        method=Greedy(), max_length_factor=2.0, batch_size=64
    )


def test_max_target_length():
    assert DecodeConfig(max_length_factor=1.5, max_length_offset=10).max_target_length(7) == 21
    config = DecodeConfig(max_length_factor=0.0, max_length_offset=4)
    assert [config.max_target_length(7, prefix) for prefix in (0, 3, 4, 9)] == [4, 4, 5, 10]
