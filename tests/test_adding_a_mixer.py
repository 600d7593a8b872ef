"""docs/adding_a_mixer.md, followed in a copy of the repository."""

import pytest

from tests.followed_page import copied, options_of

PAGE = "adding_a_mixer.md"


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


def test_the_pages_of_mixers_and_options_know_it(tree):
    copied(tree, "tests.test_mixers_doc").test_roles()
    written = options_of(PAGE, tree)
    assert "### moving_average" in written and "| `longest` | `10.0` |" in written


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
