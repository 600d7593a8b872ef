"""docs/adding_a_mixer.md, followed in a copy of the repository."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.followed_page import copied, options_of

PAGE = "adding_a_mixer.md"


def config(**overrides):
    """A model whose decoder alternates the new mixer with full attention."""
    from transformer_jax.config import Config, override

    keys = {
        "source_vocab_size": "20",
        "target_vocab_size": "20",
        "d_model": "16",
        "d_ff": "16",
        "num_heads": "2",
        "max_length": "8",
        "encoder.num_layers": "1",
        "decoder.num_layers": "3",
        "decoder.position": "none",
        "decoder.mixers": "moving_average(longest=5),full",
    } | overrides
    return override(Config(), {f"model.{key}": value for key, value in keys.items()}).model


@pytest.mark.parametrize(
    "check",
    [
        "check_step_equals_parallel",
        "check_no_leak",
        "check_padding_and_batch_mates",
        "check_beams_permute",
        "check_gradients",
    ],
)
def test_the_suite_runs_over_the_mixer_of_the_page(tree, check):
    contract = copied(tree, "tests.contract.test_mixers")
    assert "moving_average" in contract.CAUSAL
    assert "moving_average" not in contract.BIDIRECTIONAL
    suite = copied(tree, "transformer_jax.testing.mixers")
    contract.test_decoder("moving_average", getattr(suite, check))


def test_the_test_of_the_page(tree):
    copied(tree, "tests.mixers.test_moving_average").test_equals_the_loop()


def test_the_test_of_the_page_can_fail(tree, monkeypatch):
    module = copied(tree, "transformer_jax.mixers.moving_average").MovingAverageMixer
    step = module.step
    monkeypatch.setattr(module, "step", lambda *a: (step(*a)[0], step(*a)[1] * 0.9))
    with pytest.raises(AssertionError):
        copied(tree, "tests.mixers.test_moving_average").test_equals_the_loop()


def test_the_pages_of_mixers_and_options_know_it(tree):
    copied(tree, "tests.test_mixers_doc").test_roles()
    written = options_of(PAGE, tree)
    assert "### moving_average" in written and "| `longest` | `10.0` |" in written


def test_a_hybrid_with_it_decodes_as_it_trains(tree):
    from transformer_jax.models import api

    model = config()
    assert model.decoder.mixers[0].longest == 5.0
    params = jax.jit(api.init, static_argnums=0)(model, jax.random.key(0))
    assert "decay" in params["decoder"]["blocks_2"]["mixer"]
    ids, mask = jnp.array([[5, 6, 7, 2]]), jnp.ones((1, 4), bool)
    target_in = api.shift_right(ids)
    want = jax.jit(api.apply, static_argnums=0)(model, params, ids, mask, target_in, mask)
    encode = jax.jit(api.encode, static_argnums=0, static_argnames="max_length")
    sentence, state = encode(model, params, ids, mask, max_length=4)
    step = jax.jit(api.decode_step, static_argnums=0)
    for t in range(4):
        got, state = step(model, params, target_in[:, t : t + 1], jnp.int32(t), state, sentence)
        np.testing.assert_allclose(got[:, 0], want[:, t], atol=2e-5)


def test_what_it_refuses(tree):
    from transformer_jax.errors import UserError
    from transformer_jax.models.config import check_model_config

    with pytest.raises(UserError, match="mixers=moving_average: .* looks only backwards; use"):
        check_model_config(config(**{"encoder.mixers": "moving_average"}))
    with pytest.raises(UserError, match=r"mixers.*moving_average\(longest=0.5\).*greater than 1"):
        config(**{"decoder.mixers": "moving_average(longest=0.5)"})
    with pytest.raises(UserError, match="no option 'dropout_rate'.*its options are longest"):
        config(**{"decoder.mixers": "moving_average(dropout_rate=0.1)"})


def test_both_ways_gives_it_the_encoder(tree):
    suite = copied(tree, "transformer_jax.testing.mixers")
    module = copied(tree, "transformer_jax.mixers.moving_average")
    both_ways = copied(tree, "transformer_jax.mixers.both_ways")

    class BothWays(both_ways.BothWaysConfig):
        longest = 5.0

        def build_causal(self, context, position):
            return module.MovingAverageMixer(self, context, position)

    context = suite.context(causal=False)
    mixer = BothWays().build(context, suite.position(causal=False))
    suite.check_sees_both_ways(mixer, suite.initialised(mixer))
