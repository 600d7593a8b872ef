"""Every registered decoding method passes the suite, and the suite rejects broken ones."""

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.enumerated import PIECES
from tests.quick import quick
from transformer_jax.decoding.base import best_first
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.constrained import Constrained
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.decoding.registry import METHODS
from transformer_jax.decoding.sample import Sample
from transformer_jax.errors import UserError
from transformer_jax.testing import methods as suite
from transformer_jax.testing.toy_decoder import VOCAB_SIZE, ToyDecoder
from transformer_jax.vocabulary import EOS_ID

#: Each method with its default options, and some with others.
CASES = {kind: cls() for kind, cls in METHODS.items()} | {
    "beam of one": Beam(beam_size=1, length_penalty_form="power"),
    "power penalty": Beam(length_penalty=1.0, length_penalty_form="power"),
    "beam with patience": Beam(beam_size=3, patience=1.0),
    "constrained": Constrained(Beam(beam_size=2)),
    "cut samples": Sample(num_samples=3, temperature=0.7, top_k=3, top_p=0.9, epsilon=0.1, seed=5),
}


@pytest.mark.parametrize("check", suite.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    "name", quick(CASES, *METHODS, "beam with patience", "constrained", "cut samples")
)
def test_a_registered_method_passes(name, check):
    check(CASES[name])


def test_a_rule_holds_at_every_place_and_lets_sentences_end():
    toy, banned = ToyDecoder(seed=2, eos_bias=-4.0), PIECES[0]

    def rule(prefix_BZT, position):
        """No `banned`, and no piece twice in a row."""
        last = jnp.take(prefix_BZT, jnp.maximum(position - 1, 0), axis=2)[..., None]
        vocabulary = jnp.arange(VOCAB_SIZE)
        return (vocabulary != banned) & (vocabulary != jnp.where(position > 0, last, -1))

    found = suite.decode(Constrained(Beam(3), rule), toy, range(4), [3, 5, 7, 9], max_length=9)
    for row in range(4):
        for place in range(3):
            tokens = toy.tokens_of(found, row, place)
            assert tokens[-1] == EOS_ID and banned not in tokens
            assert all(one != other for one, other in pairwise(tokens))
    ends = Constrained(Beam(2), lambda prefix_BZT, position: jnp.arange(VOCAB_SIZE) != EOS_ID)
    limits = [2, 4]
    at_limit = suite.decode(ends, toy, range(2), limits, max_length=4)
    assert at_limit.lengths[:, 0].tolist() == limits
    assert np.isfinite(at_limit.scores).all()
    nothing = Constrained(Beam(2), lambda prefix_BZT, position: jnp.zeros(VOCAB_SIZE, bool))
    found = suite.decode(nothing, toy, range(2), limits, max_length=4)
    assert toy.tokens_of(found, 0, 0) == toy.tokens_of(found, 1, 0) == (EOS_ID,)
    number = Constrained(Beam(2), lambda prefix_BZT, position: jnp.ones(VOCAB_SIZE))
    with pytest.raises(UserError, match="the rule returned float32: give True at allowed pieces"):
        suite.decode(number, toy, range(2), limits, max_length=4)


# --- the suite rejects methods that break one promise each


class DependsOnTheRow(Sample):
    """Draws by the row of the batch, not by the sentence."""

    def search(self, step, state, limits):
        rows_B = jnp.arange(len(limits.sentence_ids_B))
        return super().search(step, state, replace(limits, sentence_ids_B=rows_B))


class TranslatesPadding(Greedy):
    """Gives rows of padding a translation."""

    def search(self, step, state, limits):
        at_least_one_B = jnp.maximum(limits.max_lengths_B, 1)
        return super().search(step, state, replace(limits, max_lengths_B=at_least_one_B))


class IgnoresTheLimit(Greedy):
    """Uses the length of the result as every sentence's limit."""

    def search(self, step, state, limits):
        longest_B = jnp.where(limits.max_lengths_B > 0, limits.max_length, 0)
        return super().search(step, state, replace(limits, max_lengths_B=longest_B))


class IsNotSorted(Beam):
    """Returns the worst hypothesis first."""

    def search(self, step, state, limits):
        return jax.tree.map(lambda leaf: leaf[:, ::-1], super().search(step, state, limits))


class IgnoresThePenalty(Beam):
    """Reports the log-probability as the score."""

    def search(self, step, state, limits):
        found = super().search(step, state, limits)
        return best_first(found._replace(scores=found.log_probs))


class ReordersPartOfTheState(Beam):
    """Gives each hypothesis a part of another one's state."""

    def search(self, step, state, limits):
        def mixed(tokens_BZ, position, state):
            return step(tokens_BZ, position, state | {"copy": jnp.roll(state["copy"], 1, axis=1)})

        return super().search(mixed, state, limits)


class CompilesForEverySeed(Sample):
    """Passes its seed to jit."""

    @property
    def static(self):
        return self


class UnrollsTheSteps(Greedy):
    """A Python loop over positions."""

    def search(self, step, state, limits):
        for position in range(3):
            tokens_BZ = jnp.zeros((len(limits.max_lengths_B), 1), jnp.int32)
            step(tokens_BZ, jnp.asarray(position), state)
        return super().search(step, state, limits)


class CannotWiden(Sample):
    """Promises more hypotheses than it has."""

    def with_hypotheses(self, n):
        return self


class ReturnsOneTooFew(Sample):
    """Drops a hypothesis."""

    def search(self, step, state, limits):
        return jax.tree.map(lambda leaf: leaf[:, 1:], super().search(step, state, limits))


class IgnoresNumBest(Beam):
    """Returns all hypotheses, however many are asked for."""

    def search(self, step, state, limits):
        return super().search(step, state, replace(limits, num_best_B=None))


@pytest.mark.parametrize(
    ("method", "check"),
    [
        (DependsOnTheRow(num_samples=2), suite.check_batch_mates_and_padding),
        (TranslatesPadding(), suite.check_batch_mates_and_padding),
        (IgnoresTheLimit(), suite.check_ends),
        (IsNotSorted(), suite.check_log_probs_and_scores),
        (IgnoresThePenalty(), suite.check_log_probs_and_scores),
        (ReordersPartOfTheState(beam_size=3), suite.check_log_probs_and_scores),
        (CompilesForEverySeed(), suite.check_compiles_once),
        (UnrollsTheSteps(), suite.check_compiles_once),
        (CannotWiden(), suite.check_num_hypotheses),
        (ReturnsOneTooFew(num_samples=2), suite.check_num_hypotheses),
        (IgnoresNumBest(), suite.check_num_best),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_the_suite_rejects_a_broken_method(method, check):
    with pytest.raises(AssertionError):
        check(method)
