import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.enumerated import all_hypotheses
from transformer_jax.decoding.base import Limits
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.decoding.sample import Sample, truncate
from transformer_jax.testing.methods import decode
from transformer_jax.testing.toy_decoder import ToyDecoder
from transformer_jax.vocabulary import BOS_ID, PAD_ID


def test_greedy_takes_the_best_piece_until_eos():
    toy = ToyDecoder(seed=1)
    found = decode(Greedy(), toy, range(20), [10] * 20, max_length=10)
    for row in range(20):
        tokens = toy.tokens_of(found, row, 0)
        assert found.log_probs[row, 0] == pytest.approx(toy.log_prob(row, tokens), rel=1e-5)
        for position in range(len(tokens) if len(tokens) < 10 else 9):
            prefix = tokens[:position]
            options = {
                token: toy.log_prob(row, (*prefix, token))
                for token in range(toy.vocab_size)
                if token not in (PAD_ID, BOS_ID)
            }
            assert max(options, key=options.get) == tokens[position]


def test_samples_follow_the_models_distribution():
    """Chi-square over all sequences; PAD and BOS, which are never drawn, are renormalised away."""
    toy = ToyDecoder(seed=2, scale=1.0)
    toy.table[:, [PAD_ID, BOS_ID]] = -30.0
    num_samples, max_length = 4000, 3
    found = decode(Sample(num_samples=num_samples), toy, [9], [max_length], max_length=max_length)
    counts = Counter(toy.tokens_of(found, 0, place) for place in range(num_samples))
    log_prob = functools.partial(toy.log_prob, 9)
    sequences = [tokens for _, tokens in all_hypotheses(log_prob, max_length, alpha=0.0)]
    # The forced EOS is drawn with probability 1.
    drawn = [tokens[:-1] if len(tokens) == max_length else tokens for tokens in sequences]
    expected = num_samples * np.exp([log_prob(tokens) for tokens in drawn])
    assert len(sequences) == 13 and sum(expected) == pytest.approx(num_samples, rel=1e-4)
    observed = np.array([counts[tokens] for tokens in sequences])
    # The 0.1 % point of chi-square with 12 degrees of freedom.
    assert ((observed - expected) ** 2 / expected).sum() < 32.9


def test_temperature_sharpens():
    toy = ToyDecoder(seed=3)
    limits = [8] * 6
    best = decode(Greedy(), toy, range(6), limits, max_length=8)
    cold = decode(Sample(num_samples=3, temperature=1e-4), toy, range(6), limits, max_length=8)
    for place in range(3):
        np.testing.assert_array_equal(cold.tokens[:, place], best.tokens[:, 0])
    np.testing.assert_allclose(cold.log_probs[:, 0], best.log_probs[:, 0], rtol=1e-6)
    hot = decode(Sample(num_samples=30, temperature=5.0), toy, range(6), limits, max_length=8)
    assert float(hot.log_probs.mean()) < float(cold.log_probs.mean())


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"top_k": 2}, {1, 3}),
        ({"top_k": 1}, {1}),
        ({"top_k": 9}, {0, 1, 2, 3, 4}),
        ({"top_p": 0.39}, {1}),
        ({"top_p": 0.41}, {1, 3}),
        ({"top_p": 0.71}, {1, 3, 0}),
        ({"top_p": 1e-9}, {1}),
        # After top-k two are left, renormalised to 4/7 and 3/7.
        ({"top_k": 2, "top_p": 0.56}, {1}),
        ({"top_k": 2, "top_p": 0.58}, {1, 3}),
        ({"epsilon": 0.05}, {0, 1, 3, 4}),
        ({"epsilon": 0.25}, {1, 3}),
        ({"epsilon": 0.99}, {1}),
        # Of 4/9, 3/9 and 2/9.
        ({"top_k": 3, "epsilon": 0.21}, {0, 1, 3}),
        ({"top_p": 0.71, "epsilon": 0.23}, {1, 3}),
    ],
)
def test_the_cuts_keep_the_right_pieces(settings, allowed):
    probabilities = np.asarray([0.2, 0.4, 0.04, 0.3, 0.06], np.float32)
    logits, tokens = truncate(jnp.log(probabilities), **settings)
    tokens = np.arange(5) if tokens is None else np.asarray(tokens)
    assert set(tokens[np.isfinite(logits)].tolist()) == allowed
    np.testing.assert_allclose(
        np.exp(logits)[np.isfinite(logits)], probabilities[tokens[np.isfinite(logits)]], rtol=1e-6
    )


def test_top_k_limits_what_is_drawn():
    toy = ToyDecoder(seed=4, scale=0.5)
    found = decode(Sample(num_samples=300, top_k=2), toy, [3], [2], max_length=2)
    drawn = {toy.tokens_of(found, 0, place)[0] for place in range(300)}
    options = [token for token in range(toy.vocab_size) if token not in (PAD_ID, BOS_ID)]
    assert drawn == set(sorted(options, key=lambda token: -toy.log_prob(3, (token,)))[:2])


def test_sentences_samples_and_seeds_differ():
    toy, method = ToyDecoder(seed=5, scale=0.1, eos_bias=-2.0), Sample(num_samples=2)
    run = jax.jit(functools.partial(method.search, toy.step))

    def drawn(seed):
        limits = Limits(jnp.full(2, 8), jnp.arange(2), jax.random.key(seed), 8)
        return run(toy.state([7, 7], 2), limits)

    first, again, other = (drawn(seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.tokens, again.tokens)
    places = np.ndindex(2, 2)
    found = {toy.tokens_of(each, *at) for at in places for each in (first, other)}
    assert len(found) == 8
