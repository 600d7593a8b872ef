import sys

import pytest

from transformer_jax.errors import UserError
from transformer_jax.metrics.document_scores import document_scores
from transformer_jax.metrics.scores import compare, corpus_scores, make_metrics

HYPOTHESIS = "a b c d e"
REFERENCE = "a b c d f"


def test_scores_worked_out_by_hand_and_how_they_were_made():
    scores = corpus_scores([HYPOTHESIS], [REFERENCE], also=["ter"])
    # Precisions 4/5, 3/4, 2/3 and 1/2, and no brevity penalty.
    assert scores["bleu"].score == pytest.approx(100 * (0.8 * 0.75 * 2 / 3 * 0.5) ** 0.25)
    assert scores["ter"].score == pytest.approx(100 / 5)
    assert [score.name for score in scores.values()] == ["BLEU", "chrF2++", "TER"]
    assert "case:mixed" in scores["bleu"].signature and "nw:2" in scores["chrf"].signature
    assert "version:" in scores["chrf"].signature


def test_an_empty_translation_is_scored_with_the_rest():
    same = ["Das ist ein Satz .", "Noch ein Satz hier ."]
    assert corpus_scores(same, same)["bleu"].score == pytest.approx(100)
    assert corpus_scores([same[0], ""], same)["bleu"].score < 60


def test_lower_cased_bleu_is_beside_the_cased_one():
    hypotheses, references = ["das IST ein satz .", "Noch Ein satz"], ["Das ist ein Satz .", "Noch"]
    cased = corpus_scores(hypotheses, references)
    scores = corpus_scores(hypotheses, references, also=["bleu_lc"])
    assert list(scores) == ["bleu", "bleu_lc", "chrf"]
    assert {key: scores[key] for key in cased} == cased
    lower = [[text.lower() for text in texts] for texts in (hypotheses, references)]
    assert scores["bleu_lc"].score == corpus_scores(*lower)["bleu"].score > scores["bleu"].score
    assert scores["bleu_lc"].name == "BLEU-lc" and "case:lc" in scores["bleu_lc"].signature
    both = compare(hypotheses, references, references, also=["bleu_lc"], num_samples=20)
    assert both["bleu_lc"].score == scores["bleu_lc"].score != both["bleu"].score
    assert both["bleu"] == compare(hypotheses, references, references, num_samples=20)["bleu"]


TOKENIZERS = {
    "zh": ("zh", "zh_CN", "zh-TW", "ZH_hk", "cmn", "zho", "chi"),
    "ja": ("ja_JP", "jpn"),
    "ko": ("ko-KR", "kor"),
    "13a": ("de_DE", "kok", ""),
}


@pytest.mark.parametrize(
    ("code", "tokenizer"), [(code, name) for name, codes in TOKENIZERS.items() for code in codes]
)
def test_the_tokenizer_follows_the_language_not_the_region(monkeypatch, code, tokenizer):
    for package in ("MeCab", "mecab_ko"):  # as where the extras are not installed
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(sys.modules, f"sacrebleu.tokenizers.tokenizer_{tokenizer}_mecab", False)
    if tokenizer in ("ja", "ko"):
        with pytest.raises(UserError, match=rf"{code} needs .* 'sacrebleu\[{tokenizer}\]'"):
            make_metrics(target_language=code)
    else:
        scores = corpus_scores(["一二三四五"], ["一二三四五"], target_language=code)
        assert f"tok:{tokenizer}|" in scores["bleu"].signature


def test_unequal_and_empty_input():
    with pytest.raises(UserError, match="1 translations and 2 references"):
        corpus_scores(["a"], ["a", "b"])
    with pytest.raises(UserError, match="3 baseline translations and 1 references"):
        compare(["a"], ["a"] * 3, ["a"])
    with pytest.raises(UserError, match="no sentences"):
        corpus_scores([], [])


def test_paired_bootstrap_tells_a_better_system():
    references = [f"the {n} dogs and {n} cats run home fast today" for n in range(60)]
    good = [text if n % 4 else text.replace("cats", "birds") for n, text in enumerate(references)]
    bad = [text.replace("dogs", "cows").replace("fast", "slow") for text in references]
    compared = compare(good, bad, references, num_samples=200)
    assert set(compared) == {"bleu", "chrf"}
    for key, score in corpus_scores(good, references).items():
        assert compared[key].score == pytest.approx(score.score)
        assert compared[key].baseline_score < score.score
        assert compared[key].p_value < 0.05
        assert compared[key].confidence > 0
    assert "bs:200" in compared["bleu"].signature
    equal = compare(good[::-1], good[::-1], references, num_samples=50)
    assert equal["bleu"].score == equal["bleu"].baseline_score
    assert {each.p_value for each in equal.values()} == {1.0}
    upper = compare([text.upper() for text in good], good, references, also=["bleu_lc"])
    assert upper["bleu_lc"].p_value == 1.0 and upper["bleu"].p_value < 0.05
    one = [*good[:-1], good[-1] + " again"]
    assert 0.05 < compare(one, good, references)["bleu"].p_value < 1


def test_parts_of_documents_have_the_scores_of_their_own_sentences():
    """Documents of one, two and four sentences; only the longest has mistakes, and not first."""
    lengths = [1, 2, 4, 1]
    references = [f"the dog sees a small boat {i}" for i in range(8)]
    hypotheses = references.copy()
    hypotheses[4] = hypotheses[6] = "nobody knows this at all"
    found = document_scores(hypotheses, references, lengths)

    def bleu(numbers):
        both = ([side[i] for i in numbers] for side in (hypotheses, references))
        return corpus_scores(*both)["bleu"].score

    for rows, expected in (
        (found.by_place, {(1, 1): [0, 1, 3, 7], (2, 3): [2, 4, 5], (4, 7): [6]}),
        (found.by_length, {(1, 1): [0, 7], (2, 3): [1, 2], (4, 7): [3, 4, 5, 6]}),
    ):
        assert [(each.first, each.last, each.sentences, each.bleu) for each in rows] == [
            (*places, len(numbers), bleu(numbers)) for places, numbers in expected.items()
        ]
    assert found.by_length[0].bleu > 99 > found.by_length[2].bleu > found.by_place[2].bleu
    whole = [
        " ".join(side[i:j])
        for side in (hypotheses, references)
        for i, j in ((0, 1), (1, 3), (3, 7), (7, 8))
    ]
    assert found.scores["bleu"] == corpus_scores(whole[:4], whole[4:])["bleu"]
