"""Every registered decoding method passes the suite, and the suite rejects broken ones."""

from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.contract.broken import changed
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


def given(cls, change):
    """The method with `change(limits)` in place of its limits."""

    def search(self, step, state, limits):
        return cls.search(self, step, state, change(limits))

    return type(cls.__name__, (cls,), {"search": search})


def takes_another_ones_state(self, _, step, state, limits):
    def mixed(tokens_BZ, position, state):
        return step(tokens_BZ, position, state | {"copy": jnp.roll(state["copy"], 1, axis=1)})

    return Beam.search(self, mixed, state, limits)


def unrolls_the_steps(self, found, step, state, limits):
    for position in range(3):
        step(jnp.zeros((len(limits.max_lengths_B), 1), jnp.int32), jnp.asarray(position), state)
    return found


#: Methods that break one promise each, and the check that must reject them.
BROKEN = {
    "draws by the row of the batch": (
        given(Sample, lambda x: replace(x, sentence_ids_B=jnp.arange(len(x.sentence_ids_B)))),
        suite.check_batch_mates_and_padding,
    ),
    "translates padding": (
        given(Greedy, lambda x: replace(x, max_lengths_B=jnp.maximum(x.max_lengths_B, 1))),
        suite.check_batch_mates_and_padding,
    ),
    "has one limit for all sentences": (
        given(Greedy, lambda x: replace(x, max_lengths_B=(x.max_lengths_B > 0) * x.max_length)),
        suite.check_ends,
    ),
    "gives all hypotheses": (
        given(Beam, lambda x: replace(x, num_best_B=None)),
        suite.check_num_best,
    ),
    "gives the worst first": (
        changed(Beam, "search", lambda self, found, *_: jax.tree.map(lambda x: x[:, ::-1], found)),
        suite.check_log_probs_and_scores,
    ),
    "has no penalty": (
        changed(
            Beam,
            "search",
            lambda self, found, *_: best_first(found._replace(scores=found.log_probs)),
        ),
        suite.check_log_probs_and_scores,
    ),
    "reorders a part of the state": (
        changed(Beam, "search", takes_another_ones_state),
        suite.check_log_probs_and_scores,
    ),
    "another program for each seed": (
        changed(Sample, "static", property(lambda self: self)),
        suite.check_compiles_once,
    ),
    "unrolls the steps": (changed(Greedy, "search", unrolls_the_steps), suite.check_compiles_once),
    "cannot be widened": (
        changed(Sample, "with_hypotheses", lambda self, *_: self),
        suite.check_num_hypotheses,
    ),
    "gives one too few": (
        changed(Sample, "search", lambda self, found, *_: jax.tree.map(lambda x: x[:, 1:], found)),
        suite.check_num_hypotheses,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_suite_rejects_a_broken_method(name):
    cls, check = BROKEN[name]
    with pytest.raises(AssertionError):
        check(cls(2) if cls.__base__ is Sample else cls())
