import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding.enumerated import all_hypotheses, assert_best
from transformer_jax.decoding import beam
from transformer_jax.decoding.base import Limits
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.testing.methods import decode
from transformer_jax.testing.toy_decoder import ToyDecoder
from transformer_jax.vocabulary import EOS_ID

MAX_LENGTH = 4


@pytest.mark.parametrize("form", ["gnmt", "power"])
@pytest.mark.parametrize(
    ("alpha", "eos_bias"), [(0.0, -1.0), (0.6, 2.0), (0.6, -1.0), (2.0, -1.0), (-1.0, 1.0)]
)
def test_a_wide_beam_finds_the_exact_n_best(alpha, eos_bias, form):
    toy = ToyDecoder(seed=1, eos_bias=eos_bias)
    sentences = [5, 17, 300]
    method = Beam(3 ** (MAX_LENGTH - 1), alpha, form)
    found = decode(method, toy, sentences, [MAX_LENGTH] * 3, max_length=MAX_LENGTH)
    for row, sentence in enumerate(sentences):
        log_prob = functools.partial(toy.log_prob, sentence)
        assert_best(toy, found, row, all_hypotheses(log_prob, MAX_LENGTH, alpha, form))


@pytest.mark.parametrize("form", ["gnmt", "power"])
@pytest.mark.parametrize("alpha", [0.6, 1.0, 3.0, -2.0])  # a wrong bound fails for some of them
def test_the_early_stop_changes_nothing(alpha, form, monkeypatch):
    """Each sentence in a batch of its own: batch-mates would keep its search going.

    (vmap freezes a lane of the loop whose own condition has become false.)
    """
    toy = ToyDecoder(seed=3, eos_bias=0.5)
    method = Beam(3, alpha, form)
    sentences, limits = jnp.arange(1200), jnp.arange(1200) % 37 % 12 + 1

    def run():
        def alone(sentence, limit):
            num_best = sentence[None] % 3 + 1
            asked = Limits(limit[None], sentence[None], jax.random.key(0), 12, num_best)
            return method.search(toy.step, toy.state(sentence[None], 3), asked)

        return jax.jit(jax.vmap(alone))(sentences, limits)

    stopped = run()
    monkeypatch.setattr(beam, "_is_done", lambda best_live_B, *_: jnp.zeros_like(best_live_B, bool))
    jax.tree.map(np.testing.assert_array_equal, stopped, run())


def first_come(toy, sentence, method, limit):
    """[(score, tokens)] by the search that stops at patience * beam_size ends, as in fairseq."""
    live, ended = [(0.0, ())], []
    for position in range(limit):
        extended = []
        for log_prob, tokens in live:
            logits_V = toy.logits(sentence, tokens)
            log_probs_V = logits_V - np.log(np.exp(logits_V).sum())
            for token in [EOS_ID] if position == limit - 1 else range(EOS_ID, toy.vocab_size):
                extended.append((log_prob + log_probs_V[token], (*tokens, token)))
        extended.sort(reverse=True)
        for log_prob, tokens in extended[: method.beam_size]:
            if tokens[-1] == EOS_ID:
                ended.append((log_prob / len(tokens) ** method.length_penalty, tokens))
        live = [each for each in extended if each[1][-1] != EOS_ID][: method.beam_size]
        if len(ended) >= method.patience * method.beam_size:
            break
    return sorted(ended, reverse=True)[: method.beam_size]


@pytest.mark.parametrize("patience", [1.0, 1.4, 2.0])  # 1.4: at the fifth, not at the fourth
def test_with_patience_a_search_ends_at_so_many_ended_hypotheses(patience):
    """In one batch, so that what is done waits for the others."""
    toy, method = ToyDecoder(seed=10, eos_bias=-0.5), Beam(3, 1.0, "power", patience)
    limits = np.arange(60) % 10 + 1
    found = decode(method, toy, range(60), limits, max_length=10)
    exact = decode(Beam(3, 1.0, "power"), toy, range(60), limits, max_length=10)
    for row, limit in enumerate(limits):
        expected = first_come(toy, row, method, limit)
        tokens = [toy.tokens_of(found, row, place) for place in range(3)]
        assert [each for each in tokens if each] == [tokens for _, tokens in expected]
        np.testing.assert_allclose(
            found.scores[row, : len(expected)], [score for score, _ in expected], rtol=1e-5
        )
    assert (found.scores[:, 0] <= exact.scores[:, 0] + 1e-5).all()
    assert (found.scores[:, 0] < exact.scores[:, 0] - 1e-5).any(), "the exact stop finds no better"


def test_the_early_stop_stops():
    toy = ToyDecoder(seed=3, eos_bias=3.0)
    calls = []

    def step(tokens, position, state):
        jax.debug.callback(lambda position: calls.append(int(position)), position)
        return toy.step(tokens, position, state)

    longest = jnp.full(4, 200, jnp.int32)
    limits = Limits(longest, longest, jax.random.key(0), 200)
    jax.block_until_ready(Beam(beam_size=2).search(step, toy.state(range(4), 2), limits))
    jax.effects_barrier()
    assert 2 <= len(calls) < 40


def test_beam_one_is_greedy():
    toy = ToyDecoder(seed=6)
    of_one, greedy = (
        decode(method, toy, range(16), range(1, 17), max_length=16)
        for method in (Beam(beam_size=1), Greedy())
    )
    jax.tree.map(np.testing.assert_array_equal, of_one, greedy)
