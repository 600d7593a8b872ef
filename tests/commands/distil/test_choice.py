"""Which of the teacher's translations are chosen."""

import math

from hypothesis import given, strategies as st
from sacrebleu.metrics import CHRF

from transformer_jax.commands.distil.choice import Candidate, Tally, choose, from_line, to_line
from transformer_jax.translation.translator import Translation

TEXTS = ["ein Haus", "ein Hund", "das Haus ist neu", "Häuser", ""]


def chosen(rows, least=None):
    tally = Tally()
    return list(choose(rows, least, tally)), tally


def test_a_line_has_the_log_probability_per_piece():
    line = to_line([Translation("a\tb", -9.0, -6.0, (5, 6, 2)), Translation("c", 0, -1, (2,))])
    assert from_line(line) == [Candidate(-2.0, "a\tb"), Candidate(-1.0, "c")]
    assert from_line(to_line([Translation("", 0.0, 0.0, ())])) == []


@given(st.lists(st.sampled_from(TEXTS), min_size=1), st.sampled_from([*TEXTS[:4], None]))
def test_the_nearest_to_the_reference_is_the_one_of_brute_force(texts, reference):
    candidates = [Candidate(-float(place), text) for place, text in enumerate(texts)]
    best = candidates[0]
    if reference is not None:
        for each in candidates:  # the first of equals
            near = [CHRF().sentence_score(one.text, [reference]).score for one in (each, best)]
            best = each if near[0] > near[1] else best
    found, tally = chosen([("x", reference, candidates)])
    assert found == ([("x", best.text)] if best.text else [])
    assert tally.chosen + tally.without == 1


@given(st.lists(st.floats(-9, 0), max_size=9), st.floats(-9, 0))
def test_a_translation_is_left_out_if_its_score_is_lower(scores, least):
    rows = [(str(place), None, [Candidate(score, "t")]) for place, score in enumerate(scores)]
    found, tally = chosen(rows, least)
    assert [int(source) for source, _ in found] == [
        place for place, score in enumerate(scores) if score >= least
    ]
    assert (tally.chosen, tally.improbable) == (len(found), len(scores) - len(found))


def test_the_tally_counts_each_source_once():
    rows = [("a", "r", [Candidate(-1.0, "t")]), ("b", None, []), ("c", None, [Candidate(-3, " ")])]
    _, tally = chosen([*rows, ("d", None, [Candidate(-2.0, "t")])], least=-1.5)
    assert (tally.chosen, tally.without, tally.improbable) == (1, 2, 1)
    assert str(tally).startswith("1 of 4 sources chosen; 1 improbable, 2 empty or longer")
    assert "median -2.000, 5 % below -2.900" in str(tally)
    assert "median" not in str(Tally(chosen=1, scores=[-1.0]))
    assert math.isclose(sum(tally.scores), -6.0)
