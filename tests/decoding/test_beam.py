import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.decoding.beam import beam_search
from transformer_jax.decoding.greedy import greedy
from transformer_jax.decoding.hypotheses import length_penalties
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID

MAX_LENGTH = 4


def search(toy, sentences, max_lengths, *, beam_size, max_length=MAX_LENGTH, **settings):
    run = jax.jit(
        functools.partial(
            beam_search, toy.step, max_length=max_length, beam_size=beam_size, **settings
        )
    )
    return run(toy.state(sentences, beam_size), jnp.asarray(max_lengths, jnp.int32))


@pytest.mark.parametrize(
    ("alpha", "eos_bias"), [(0.0, -1.0), (0.6, 2.0), (0.6, -1.0), (2.0, -1.0), (-1.0, 1.0)]
)
def test_a_wide_beam_finds_the_exact_n_best(toy_decoder, alpha, eos_bias):
    toy = toy_decoder(seed=1, eos_bias=eos_bias)
    sentences = [5, 17, 300]
    found = search(
        toy, sentences, [MAX_LENGTH] * 3, beam_size=3 ** (MAX_LENGTH - 1), length_penalty=alpha
    )
    for row, sentence in enumerate(sentences):
        expected = toy.all_hypotheses(sentence, MAX_LENGTH, alpha)
        for place in range(3 ** (MAX_LENGTH - 1)):
            score, tokens = expected[place]
            assert toy.tokens_of(found, row, place) == tokens
            assert found.scores[row, place] == pytest.approx(score, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize(("alpha", "beam_size"), [(0.0, 2), (0.6, 4), (-1.0, 3)])
def test_scores_are_the_true_log_probabilities(toy_decoder, alpha, beam_size):
    """Also for hypotheses that the limit forced to end: with this bias most are."""
    toy = toy_decoder(seed=2, eos_bias=-4.0)
    limits = [3, 6, 9, 12]
    found = search(toy, range(4), limits, beam_size=beam_size, max_length=12, length_penalty=alpha)
    num_forced = 0
    for row in range(4):
        scores = np.asarray(found.scores[row])
        assert (np.diff(scores) <= 0).all()
        hypotheses = [toy.tokens_of(found, row, place) for place in range(beam_size)]
        assert len(set(hypotheses)) == beam_size
        for place, tokens in enumerate(hypotheses):
            assert tokens[-1] == EOS_ID
            assert not {PAD_ID, BOS_ID, EOS_ID} & set(tokens[:-1])
            assert len(tokens) <= limits[row]
            num_forced += len(tokens) == limits[row]
            log_prob = toy.log_prob(row, tokens)
            assert found.log_probs[row, place] == pytest.approx(log_prob, rel=1e-5, abs=1e-5)
            penalty = ((5 + len(tokens)) / 6) ** alpha
            assert scores[place] == pytest.approx(log_prob / penalty, rel=1e-5, abs=1e-5)
    assert num_forced > 0


@pytest.mark.parametrize("alpha", [0.6, 3.0, -2.0])
def test_the_early_stop_changes_nothing(toy_decoder, alpha):
    """Each sentence in a batch of its own: batch-mates would keep its search going.

    (vmap freezes a lane of the loop whose own condition has become false.)
    """
    toy = toy_decoder(seed=3, eos_bias=0.5)
    sentences, limits = jnp.arange(400), jnp.arange(400) % 12 + 1

    def run(early_stop):
        def alone(sentence, limit):
            return beam_search(
                toy.step,
                toy.state(sentence[None], 3),
                limit[None],
                max_length=12,
                beam_size=3,
                length_penalty=alpha,
                early_stop=early_stop,
            )

        return jax.jit(jax.vmap(alone))(sentences, limits)

    jax.tree.map(np.testing.assert_array_equal, run(True), run(False))


def test_the_early_stop_stops(toy_decoder):
    toy = toy_decoder(seed=3, eos_bias=3.0)
    calls = []

    def step(tokens, position, state):
        jax.debug.callback(lambda position: calls.append(int(position)), position)
        return toy.step(tokens, position, state)

    limits = jnp.full(4, 200, jnp.int32)
    jax.block_until_ready(
        beam_search(step, toy.state(range(4), 2), limits, max_length=200, beam_size=2)
    )
    jax.effects_barrier()
    assert 2 <= len(calls) < 40


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_translation_does_not_depend_on_its_batch_mates(toy_decoder, beam_size):
    toy = toy_decoder(seed=4)
    sentences, limits = np.arange(12), np.arange(12) % 7 + 1
    together = search(toy, sentences, limits, beam_size=beam_size, max_length=8)
    order = np.random.default_rng(0).permutation(12)
    shuffled = search(toy, sentences[order], limits[order], beam_size=beam_size, max_length=8)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[order], b), together, shuffled)
    # In a batch of its own size with rows that only fill it up, and a longer result.
    for row in (3, 11):
        alone = search(
            toy, [sentences[row], 0], [limits[row], 0], beam_size=beam_size, max_length=11
        )
        for place in range(beam_size):
            assert toy.tokens_of(alone, 0, place) == toy.tokens_of(together, row, place)
        np.testing.assert_allclose(alone.scores[0], together.scores[row], rtol=1e-6)
        assert (alone.lengths[1] == 0).all()
        assert np.isneginf(alone.scores[1]).all()


def test_fewer_hypotheses_than_places(toy_decoder):
    toy = toy_decoder(seed=5)
    found = search(toy, [1, 2], [1, 2], beam_size=6)
    # Of one token there is EOS alone; of two, EOS and three pieces with EOS.
    assert [int((row > 0).sum()) for row in found.lengths] == [1, 4]
    assert np.isneginf(found.scores[0, 1:]).all()
    assert (found.tokens[0, 1:] == PAD_ID).all()


def test_beam_one_is_greedy(toy_decoder):
    toy = toy_decoder(seed=6)
    limits = jnp.arange(1, 17, dtype=jnp.int32)
    greedy_found = greedy(toy.step, toy.state(range(16), 1), limits, max_length=16)
    beam_found = search(toy, range(16), limits, beam_size=1, max_length=16)
    jax.tree.map(np.testing.assert_array_equal, greedy_found, beam_found)


def test_one_search_compiles_one_step(toy_decoder):
    toy, traces = toy_decoder(seed=7), []

    def step(tokens, position, state):
        traces.append(1)
        return toy.step(tokens, position, state)

    run = jax.jit(
        lambda state, limits: beam_search(step, state, limits, max_length=30, beam_size=2)
    )
    for sentence in range(3):
        run(toy.state([sentence], 2), jnp.asarray([10 * sentence + 1]))
    assert len(traces) <= 2  # while_loop may trace its body twice


def test_length_penalty_is_the_one_of_the_paper():
    assert length_penalties(7, 0.6) == pytest.approx([((5 + n) / 6) ** 0.6 for n in range(8)])
    assert length_penalties(7, 0.0) == pytest.approx([1.0] * 8)
