"""Minimum Bayes risk, against sacrebleu and against counts of n-grams by hand."""

import sys

import numpy as np
import pytest
from sacrebleu.metrics import CHRF

import transformer_jax as tj
from tests.oracles import need
from transformer_jax.decoding.config import while_training
from transformer_jax.decoding.mbr import UTILITIES, mbr_scores


def texts(seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    words = ["the", "dog", ",", "sees", "a", "big", "cat", ".", "über", "grün"]
    drawn = [" ".join(rng.choice(words, size=rng.integers(1, 9))) for _ in range(9)]
    return [*drawn, drawn[0], "a", ""]


def test_pairwise_is_the_mean_of_sacrebleus_chrf():
    need("fastchrf")
    sentences = [texts(0), texts(1)[:4]]
    metric = CHRF()
    for found, hypotheses in zip(
        mbr_scores(["", ""], sentences, tj.Pairwise()), sentences, strict=True
    ):
        expected = [
            np.mean([metric.sentence_score(one, [other]).score for other in hypotheses])
            for one in hypotheses
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_aggregate_compares_with_the_mean_counts():
    """Two texts have the counts a: 1, b: 1/2 and ab: 1/2 together; recall counts twice."""
    need("fastchrf")
    (found,) = mbr_scores([""], [["ab", "a"]], tj.Aggregate())
    expected = [5 * p * r / (4 * p + r) for p, r in (((3 / 4 + 1 / 2) / 2, 1), (1, 2 / 3))]
    np.testing.assert_allclose(found, np.multiply(expected, 100), rtol=1e-4)


@pytest.mark.parametrize("method", [tj.Beam(4), tj.Sample(8, temperature=1.5)])
@pytest.mark.parametrize("kind", ["pairwise", "aggregate"])
def test_translations_are_ranked_by_mbr(make_translator, method, kind):
    need("fastchrf")
    translator = make_translator(sharpness=2.0, method=method)
    sources = ["abcdefg", "", "hello there"]
    plain = translator.decode(sources).translations
    ranked = translator.decode(sources, mbr=kind).translations
    assert ranked[1] == plain[1]
    for before, after in zip(plain[::2], ranked[::2], strict=True):
        assert sorted(t.tokens for t in before) == sorted(t.tokens for t in after)
        (scores,) = mbr_scores([""], [[t.text for t in before]], UTILITIES[kind]())
        assert [t.score for t in after] == sorted(scores, reverse=True)
        by_text = dict(zip([t.text for t in before], scores, strict=True))
        assert all(t.score == by_text[t.text] for t in after)
    assert translator.translate(sources, mbr=kind) == [found[0].text for found in ranked]


def test_one_translation_is_refused(make_translator):
    with pytest.raises(tj.UserError, match="decode.mbr=pairwise compares several translations"):
        make_translator(method=tj.Greedy()).translate(["abc"], mbr="pairwise")
    config = make_translator(mbr="aggregate").decode_config
    assert while_training(config).mbr is None


def test_without_fastchrf_nothing_is_translated(make_translator, monkeypatch, traced_shapes):
    monkeypatch.setitem(sys.modules, "fastchrf", None)
    with pytest.raises(tj.UserError, match=r"pip install 'transformer-jax\[mbr\]'"):
        make_translator().translate(["abc"], mbr="aggregate")
    assert not traced_shapes
