"""What changes a model's steps: a forced prefix, and controls of repetition.

The hypotheses of every method are compared with those of a search through all of them.
"""

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
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID

MAX_LENGTH = 5
PREFIXES = [(), (3,), (5, 4), (4, 4, 3)]


def search(
    method, toy, sentences, *, prefixes=None, repetition=None, limits=None, max_length=MAX_LENGTH
):
    """The hypotheses of sentences whose targets begin with these prefixes, and repeat so much."""
    size = len(sentences)
    limits_B = jnp.asarray([max_length] * size if limits is None else limits)

    @jax.jit
    def run(state):
        step = toy.step
        limits = Limits(limits_B, jnp.asarray(sentences), jax.random.key(0), max_length)
        if repetition is not None:
            shape = size, method.num_hypotheses, max_length
            step, state = control_repetition(step, state, repetition, shape)
        if prefixes is not None:
            rows = [[*prefix, *[PAD_ID] * (max_length - len(prefix))] for prefix in prefixes]
            step, state = force_prefix(step, state, jnp.asarray(rows))
        return method.search(step, state, limits)

    return run(toy.state(sentences, method.num_hypotheses))


@pytest.mark.parametrize("alpha", [0.0, 0.6, -1.0])
def test_a_wide_beam_finds_the_best_continuations(alpha):
    toy = ToyDecoder(seed=1, eos_bias=-1.0)
    sentences = [5, 17, 300, 5]
    found = search(Beam(81, alpha), toy, sentences, prefixes=PREFIXES)
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
    together = search(method, toy, range(4), prefixes=PREFIXES, limits=limits)
    for row, prefix in enumerate(PREFIXES):
        asked = {"prefixes": [prefix], "limits": [limits[row]], "max_length": MAX_LENGTH + 2}
        alone = search(method, toy, [row], **asked)
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


@pytest.mark.parametrize("repetition", OPTIONS)
def test_a_wide_beam_finds_the_exact_n_best_of_the_changed_model(repetition):
    toy = ToyDecoder(seed=1, eos_bias=-1.0)
    found = search(Beam(27, 0.6), toy, [5, 17], repetition=repetition, max_length=4)
    for row, sentence in enumerate([5, 17]):
        of_sentence = functools.partial(log_prob, toy, sentence, repetition=repetition)
        assert_best(toy, found, row, all_hypotheses(of_sentence, 4, 0.6))


@pytest.mark.parametrize("repetition", OPTIONS)
@pytest.mark.parametrize("name", quick(CASES, *METHODS))
def test_every_method_searches_the_changed_model(name, repetition):
    method, toy = CASES[name], ToyDecoder(seed=2, eos_bias=-3.0)
    found = search(method, toy, range(4), repetition=repetition, max_length=9)
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
    found = search(Beam(3), toy, [1], prefixes=[(3, 3, 4)], repetition=repetition, max_length=6)
    hypotheses = {toy.tokens_of(found, 0, place) for place in range(3)}
    # PIECES are 3, 4 and 5: only 5 is left.
    assert hypotheses == {(3, 3, 4, EOS_ID), (3, 3, 4, 5, EOS_ID), ()}
