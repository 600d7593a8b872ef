"""Controls of repetition, against every sequence of the changed model."""

import functools

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
from transformer_jax.decoding.repetition import Repetition, control_repetition
from transformer_jax.testing.toy_decoder import ToyDecoder
from transformer_jax.vocabulary import BOS_ID, EOS_ID

OPTIONS = [Repetition(n, penalty) for n, penalty in [(1, 1.0), (2, 1.0), (0, 1.5), (3, 0.8)]]


def changed_logits(logits, history, repetition):
    """The definition, written without any of the code under test."""
    logits, n = logits.copy(), repetition.no_repeat_ngram
    for token in set(history):
        c = repetition.penalty
        logits[token] = logits[token] * c if logits[token] < 0 else logits[token] / c
    ngrams = {tuple(history[i : i + n]) for i in range(len(history) - n + 1)} if n else set()
    for token in range(len(logits)):
        if n and (*history[len(history) - n + 1 :], token) in ngrams:
            logits[token] = -np.inf
    return logits


def log_prob(toy, sentence, tokens, repetition):
    """log p(tokens) of the toy with the controls, in float64."""
    total, history = 0.0, [BOS_ID]
    for token in tokens:
        row = changed_logits(toy.logits(sentence, history[1:]), history, repetition)
        total += row[token] - np.log(np.exp(row).sum())
        history.append(token)
    return total


def search(method, toy, sentences, repetition, *, max_length, prefix_BT=None):
    @jax.jit
    def run(state):
        shape = (len(sentences), method.num_hypotheses, max_length)
        step, state = control_repetition(toy.step, state, repetition, shape)
        if prefix_BT is not None:
            step, state = force_prefix(step, state, prefix_BT)
        limits_B, ids_B = jnp.full(shape[0], max_length), jnp.asarray(sentences)
        return method.search(step, state, Limits(limits_B, ids_B, jax.random.key(0), max_length))

    return run(toy.state(sentences, method.num_hypotheses))


@pytest.mark.parametrize("repetition", OPTIONS)
def test_a_wide_beam_finds_the_exact_n_best_of_the_changed_model(repetition):
    toy, max_length = ToyDecoder(seed=1, eos_bias=-1.0), 4
    found = search(Beam(27, 0.6), toy, [5, 17], repetition, max_length=max_length)
    for row, sentence in enumerate([5, 17]):
        of_sentence = functools.partial(log_prob, toy, sentence, repetition=repetition)
        assert_best(toy, found, row, all_hypotheses(of_sentence, max_length, 0.6))


@pytest.mark.parametrize("repetition", OPTIONS)
@pytest.mark.parametrize("name", quick(CASES, *METHODS))
def test_every_method_searches_the_changed_model(name, repetition):
    method, toy = CASES[name], ToyDecoder(seed=2, eos_bias=-3.0)
    found = search(method, toy, range(4), repetition, max_length=9)
    for row in range(4):
        for place in range(method.num_hypotheses):
            tokens = toy.tokens_of(found, row, place)
            if not tokens:  # fewer exist
                continue
            n = repetition.no_repeat_ngram
            ngrams = [tokens[i : i + n] for i in range(len(tokens) - n + 1)] if n else []
            assert len(ngrams) == len(set(ngrams))
            expected = log_prob(toy, row, tokens, repetition)
            assert found.log_probs[row, place] == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_a_prefix_may_repeat_itself_and_counts_as_generated():
    toy, repetition = ToyDecoder(seed=3, eos_bias=-3.0), Repetition(no_repeat_ngram=1)
    prefix_BT = jnp.asarray([[3, 3, 4, 0, 0, 0]])
    found = search(Beam(3), toy, [1], repetition, max_length=6, prefix_BT=prefix_BT)
    hypotheses = {toy.tokens_of(found, 0, place) for place in range(3)}
    # PIECES are 3, 4 and 5: only 5 is left.
    assert hypotheses == {(3, 3, 4, EOS_ID), (3, 3, 4, 5, EOS_ID), ()}
