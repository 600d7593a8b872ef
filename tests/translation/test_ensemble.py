"""Ensembles, against averaged distributions of every sequence, and against their one model."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.quick import quick
from tests.translation.conftest import LetterTokenizer, assert_same, model, translator
from transformer_jax.models import api
from transformer_jax.parallel.mesh import decoding_mesh
from transformer_jax.translation.model import Model
from transformer_jax.vocabulary import EOS_ID

PIECES = range(3, 7)  # unknown and the letters a to c


def averaged(configs, params, source, targets, mean):
    """The distribution at each position of each target, in float64, from teacher-forced logits."""
    target_BT = np.asarray(targets)
    source_BS = np.tile([*source, EOS_ID], (len(targets), 1))
    arrays = source_BS, source_BS > 0, api.shift_right(jnp.asarray(target_BT)), target_BT > 0
    each = []
    for config, tree in zip(configs, params, strict=True):
        logits = jax.jit(api.apply, static_argnums=0)(config, tree, *arrays)
        logits = np.asarray(logits, np.float64)
        each.append(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
    if mean == "probs":
        return np.log(np.mean(np.exp(each), axis=0))
    total = np.mean(each, axis=0)
    return total - np.log(np.exp(total).sum(-1, keepdims=True))


@pytest.mark.parametrize("mean", quick(["log_probs", "probs"], "probs"))
def test_a_wide_beam_finds_the_best_of_the_averaged_distributions(members, mean):
    options = {"max_length_factor": 0.0, "max_length_offset": 4, "allow_unk": True}
    together = translator(*members, mean, method=tj.Beam(64, 0.0), **options)
    (found,) = together.decode(["abca"]).translations
    source = LetterTokenizer().encode("abca")
    expected = []
    for length in (1, 2, 3, 4):
        sequences = [(*pieces, EOS_ID) for pieces in itertools.product(PIECES, repeat=length - 1)]
        steps_BTV = averaged(*members, source, sequences, mean)
        for tokens, steps_TV in zip(sequences, steps_BTV, strict=True):
            expected.append((sum(steps_TV[range(length), tokens]), tokens))
    expected.sort(reverse=True)
    for translation, (log_prob, tokens) in zip(found[:20], expected, strict=False):
        assert translation.tokens == tokens
        assert translation.log_prob == pytest.approx(log_prob, abs=1e-4)
    # Scoring averages in the same way.
    scores = together.score(["abca"] * 20, [translation.tokens[:-1] for translation in found[:20]])
    np.testing.assert_allclose(scores, [t.log_prob for t in found[:20]], atol=1e-4)


MEANS = list(itertools.product(("log_probs", "probs"), (tj.Greedy(), tj.Beam(3), tj.Sample(2, 4))))


@pytest.mark.parametrize("how", quick(MEANS, MEANS[1], MEANS[3], MEANS[5]))
def test_copies_of_one_model_are_that_model(members, how):
    mean, method = how
    config, params = members[0][0], members[1][0]
    one = translator(config, params, method=method)
    three = translator([config] * 3, [params] * 3, mean, method=method)
    sources = ["abc", "a", "", "bcbcbc", "cab"]
    alone, together = (each.decode(sources).translations for each in (one, three))
    assert_same(alone, together, atol=1e-5)
    scores = (each.score(sources, sources) for each in (one, three))
    np.testing.assert_allclose(*scores, atol=1e-5)


def test_an_ensemble_on_a_mesh(members):
    mesh = decoding_mesh(tj.MeshConfig(), jax.local_devices()[:1])
    (configs, params), here = members, translator(*members)
    there = tj.Translator(Model(configs), params, here.tokenizers, here.decode_config, mesh=mesh)
    sources = ["abc", "ba", "ccc"]
    assert there.translate(sources) == here.translate(sources)


def test_the_shortest_limit_is_that_of_all(members):
    configs = (members[0][0], dataclasses.replace(members[0][1], max_length=16))
    assert Model(configs).max_length == 16
    assert translator(configs, members[1][:2]).decode(["a" * 30]).num_cut == 1


def test_vocabularies_must_be_of_one_size():
    with pytest.raises(tj.UserError, match=r"vocabularies of \[\(7, 7\), \(7, 9\)\] pieces"):
        Model((model(), model(target_vocab_size=9, tie_embeddings="none")))


def test_the_attention_of_an_ensemble_is_not_drawn(members, tmp_path):
    with pytest.raises(tj.UserError, match="attention is drawn of one model"):
        tj.draw_attention(translator(*members), "abc", None, tmp_path / "heat.png")
