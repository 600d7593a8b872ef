"""A forced prefix, against the enumeration of all its continuations, and for every method."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.enumerated import all_hypotheses, assert_best
from tests.decoding.test_methods import CASES
from tests.quick import quick
from transformer_jax.decoding.base import Limits
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.forced_prefix import force_prefix
from transformer_jax.decoding.registry import METHODS
from transformer_jax.testing.toy_decoder import ToyDecoder
from transformer_jax.vocabulary import EOS_ID, PAD_ID

MAX_LENGTH = 5
PREFIXES = [(), (3,), (5, 4), (4, 4, 3)]


def continued(method, toy, sentences, prefixes, *, limits=None, max_length=MAX_LENGTH):
    """The hypotheses of sentences whose targets begin with these prefixes."""
    prefix_BT = np.full((len(prefixes), max_length), PAD_ID, np.int32)
    for row, prefix in enumerate(prefixes):
        prefix_BT[row, : len(prefix)] = prefix
    limits = [max_length] * len(prefixes) if limits is None else limits

    @jax.jit
    def run(state, limits_B, ids_B, prefix_BT):
        step, state = force_prefix(toy.step, state, prefix_BT)
        limits = Limits(limits_B, ids_B, jax.random.key(0), max_length)
        return method.search(step, state, limits)

    state = toy.state(sentences, method.num_hypotheses)
    return run(state, jnp.asarray(limits), jnp.asarray(sentences), prefix_BT)


@pytest.mark.parametrize("alpha", [0.0, 0.6, -1.0])
def test_a_wide_beam_finds_the_best_continuations(alpha):
    toy = ToyDecoder(seed=1, eos_bias=-1.0)
    sentences = [5, 17, 300, 5]
    found = continued(Beam(81, alpha), toy, sentences, PREFIXES)
    for row, (sentence, prefix) in enumerate(zip(sentences, PREFIXES, strict=True)):

        def continued_by(tokens, sentence=sentence, prefix=prefix):
            if tokens[: len(prefix)] != prefix:
                return -np.inf
            return toy.log_prob(sentence, tokens) - toy.log_prob(sentence, prefix)

        expected = all_hypotheses(continued_by, MAX_LENGTH, alpha)
        assert_best(toy, found, row, expected)
        log_probs = [continued_by(tokens) for _, tokens in expected[:81]]
        np.testing.assert_allclose(
            found.log_probs[row, : len(log_probs)], log_probs, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("name", quick(CASES, *METHODS))
def test_every_method_continues_the_prefix(name):
    """And a sentence alone has the same translations as beside others with other prefixes."""
    method, toy = CASES[name], ToyDecoder(seed=2, scale=0.5)
    limits = [5, 3, 3, 4]  # the last ones leave room for EOS alone
    together = continued(method, toy, range(4), PREFIXES, limits=limits)
    for row, prefix in enumerate(PREFIXES):
        alone = continued(
            method, toy, [row], [prefix], limits=limits[row : row + 1], max_length=MAX_LENGTH + 2
        )
        for place in range(method.num_hypotheses):
            tokens = toy.tokens_of(together, row, place)
            assert tokens == toy.tokens_of(alone, 0, place)
            if not tokens:  # fewer exist
                continue
            assert tokens[: len(prefix)] == prefix
            assert tokens[-1] == EOS_ID
            assert len(prefix) < len(tokens) <= limits[row]
            given, whole = toy.log_prob(row, prefix), toy.log_prob(row, tokens)
            assert together.log_probs[row, place] == pytest.approx(whole - given, abs=1e-5)
        np.testing.assert_allclose(alone.scores[0], together.scores[row], rtol=1e-6)
