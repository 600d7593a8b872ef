"""What every decoding method must satisfy, as functions that raise AssertionError.

Each takes a method, so that the suite itself can be tried on broken ones.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.decoding.base import Hypotheses, Limits, Method
from transformer_jax.errors import UserError
from transformer_jax.testing.toy_decoder import ToyDecoder
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID


def decode(
    method: Method,
    toy: ToyDecoder,
    sentences: Any,
    limits: Any,
    *,
    max_length: int,
    num_best: Any = None,
) -> Hypotheses:
    """The hypotheses of the toy's sentences, which are numbered as themselves."""
    asked = Limits(
        jnp.asarray(limits, jnp.int32),
        jnp.asarray(sentences, jnp.int32),
        jax.random.key(0),
        max_length,
        None if num_best is None else jnp.asarray(num_best, jnp.int32),
    )
    state = toy.state(sentences, method.num_hypotheses)
    return jax.jit(functools.partial(method.search, toy.step))(state, asked)


def check_batch_mates_and_padding(method: Method) -> None:
    """A translation does not depend on the other rows of its batch, nor on the padding."""
    toy = ToyDecoder(seed=4, scale=0.5)
    sentences, limits = np.arange(12), np.arange(12) % 7 + 1
    together = decode(method, toy, sentences, limits, max_length=8)
    order = np.random.default_rng(0).permutation(12)
    shuffled = decode(method, toy, sentences[order], limits[order], max_length=8)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[order], b), together, shuffled)
    # In a smaller batch with a row of padding, and in a longer result.
    for row in (3, 6, 11):
        alone = decode(method, toy, [sentences[row], 0], [limits[row], 0], max_length=11)
        for place in range(method.num_hypotheses):
            assert toy.tokens_of(alone, 0, place) == toy.tokens_of(together, row, place)
        np.testing.assert_allclose(alone.scores[0], together.scores[row], rtol=1e-6)
        assert (alone.lengths[1] == 0).all(), "a row of padding has a translation"
        assert np.isneginf(alone.scores[1]).all()


def check_ends(method: Method) -> None:
    """Every hypothesis ends with EOS, at the latest at its sentence's limit, and then has PAD."""
    toy = ToyDecoder(seed=2, eos_bias=-4.0)
    limits = [3, 6, 9, 12]
    found = decode(method, toy, range(4), limits, max_length=12)
    num_at_limit = 0
    for row, limit in enumerate(limits):
        for place in range(method.num_hypotheses):
            tokens = toy.tokens_of(found, row, place)
            assert tokens, "a place is empty although there are hypotheses to fill it"
            assert len(tokens) <= limit
            assert tokens[-1] == EOS_ID
            assert not {PAD_ID, BOS_ID, EOS_ID} & set(tokens[:-1])
            num_at_limit += len(tokens) == limit
    assert num_at_limit > 0, "the limits were not reached, so they were not tested"


def check_log_probs_and_scores(method: Method) -> None:
    """Log-probabilities equal a rescoring by the model; scores divide them by the penalty."""
    for seed, eos_bias in ((1, 0.0), (2, -4.0)):
        toy = ToyDecoder(seed=seed, eos_bias=eos_bias)
        found = decode(method, toy, range(6), [2, 4, 6, 8, 10, 12], max_length=12)
        assert found.scores.dtype == found.log_probs.dtype == jnp.float32
        assert (np.diff(found.scores, axis=1) <= 0).all(), "not sorted by score"
        for row in range(6):
            for place in range(method.num_hypotheses):
                tokens = toy.tokens_of(found, row, place)
                if not tokens:
                    assert np.isneginf(found.scores[row, place])
                    continue
                want = toy.log_prob(row, tokens)
                np.testing.assert_allclose(found.log_probs[row, place], want, rtol=1e-5, atol=1e-5)
                base = (5 + len(tokens)) / 6
                if method.length_penalty_form == "power":
                    base = len(tokens)
                penalty = base**method.length_penalty
                np.testing.assert_allclose(found.scores[row, place], want / penalty, rtol=1e-5)


def check_compiles_once(method: Method) -> None:
    """One program serves all sentences, limits and seeds; its step is traced for one position."""
    toy = ToyDecoder(seed=7)
    traces: list[Any] = []
    steps: list[Any] = []

    @functools.partial(jax.jit, static_argnums=0)
    def run(static: Method, state: Any, limits: Limits) -> Hypotheses:
        traces.append(static)

        def step(tokens_BZ: Array, position: Array, state: Any) -> Any:
            steps.append(position)
            return toy.step(tokens_BZ, position, state)

        return static.search(step, state, limits)

    for number in range(3):
        other: Any = method
        if "seed" in {field.name for field in dataclasses.fields(other)}:
            other = dataclasses.replace(other, seed=number)
        state = toy.state([number], method.num_hypotheses)
        longest, ids = jnp.asarray([10 * number + 1]), jnp.asarray([number])
        run(other.static, state, Limits(longest, ids, jax.random.key(other.seed), max_length=30))
    assert len(traces) == 1, f"compiled {len(traces)} times"
    assert len(steps) <= 2, "the step is not inside a loop"  # while_loop may trace its body twice


def check_num_hypotheses(method: Method) -> None:
    """Results are [B, num_hypotheses]; `with_hypotheses` gives at least as many as asked for."""
    toy = ToyDecoder(seed=8)
    found = decode(method, toy, [1, 2], [3, 5], max_length=5)
    assert found.tokens.shape == (2, method.num_hypotheses, 5)
    for leaf in (found.lengths, found.scores, found.log_probs):
        assert leaf.shape == (2, method.num_hypotheses)
    assert method.with_hypotheses(1) == method, "the method changed although it has enough"
    for n in (2, method.num_hypotheses + 3):
        try:
            wider = method.with_hypotheses(n)
        except UserError:
            assert n > method.num_hypotheses
            continue
        assert wider.num_hypotheses >= max(n, method.num_hypotheses)
        assert type(wider) is type(method)


def check_num_best(method: Method) -> None:
    """A search for the n best returns the first n of a search for all, and nothing else."""
    toy = ToyDecoder(seed=9, eos_bias=0.5)
    sentences, limits = np.arange(60), np.arange(60) % 9 + 1
    all_of_them = decode(method, toy, sentences, limits, max_length=9)
    num_best = np.arange(60) % method.num_hypotheses + 1
    found = decode(method, toy, sentences, limits, max_length=9, num_best=num_best)
    asked_BZ = np.arange(method.num_hypotheses) < num_best[:, None]
    for leaf, whole, nothing in zip(found, all_of_them, (PAD_ID, 0, -np.inf, -np.inf), strict=True):
        kept = asked_BZ.reshape(asked_BZ.shape + (1,) * (leaf.ndim - 2))
        np.testing.assert_array_equal(leaf, np.where(kept, whole, nothing))


CHECKS = [check for name, check in list(globals().items()) if name.startswith("check_")]


def check_method(method: Method) -> None:
    """Runs every check on a decoding method."""
    for check in CHECKS:
        check(method)
