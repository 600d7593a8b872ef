"""What every part must satisfy, for those who write one: functions that raise AssertionError.

    from transformer_jax.testing.mixers import check_mixer

    def test_my_mixer():
        check_mixer(MyMixer(), causal=True)

`mixers`, `positions`, `layers` (norms and feed-forward networks), `methods` and `sources` hold the
checks that the parts of this package pass, and a function that runs all of them. They need no
pytest. `toy_decoder` is a model that is small enough to enumerate.
"""
