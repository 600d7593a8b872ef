"""Scores of documents by their definition."""

from transformer_jax.metrics.document_scores import document_scores
from transformer_jax.metrics.scores import corpus_scores

RIGHT, WRONG = "the dog sees a small boat", "nobody knows this at all"


def test_parts_have_the_scores_of_their_own_sentences():
    """Documents of one, two and four sentences; only the longest has mistakes, and not first."""
    lengths = [1, 2, 4, 1]
    references = [f"{RIGHT} {i}" for i in range(8)]
    hypotheses = [*references[:4], WRONG, *references[5:6], WRONG, references[7]]
    found = document_scores(hypotheses, references, lengths)

    def bleu(numbers):
        return corpus_scores(*([side[i] for i in numbers] for side in (hypotheses, references)))[
            "bleu"
        ].score

    by_place = [(each.first, each.last, each.sentences, each.bleu) for each in found.by_place]
    assert by_place == [
        (1, 1, 4, bleu([0, 1, 3, 7])),
        (2, 3, 3, bleu([2, 4, 5])),
        (4, 7, 1, bleu([6])),
    ]
    by_length = [(each.first, each.last, each.sentences, each.bleu) for each in found.by_length]
    assert by_length == [
        (1, 1, 2, bleu([0, 7])),
        (2, 3, 2, bleu([1, 2])),
        (4, 7, 4, bleu([3, 4, 5, 6])),
    ]
    assert found.by_length[0].bleu > 99 > found.by_length[2].bleu > found.by_place[2].bleu
    whole = [
        " ".join(side[i:j])
        for side in (hypotheses, references)
        for i, j in ((0, 1), (1, 3), (3, 7), (7, 8))
    ]
    assert found.scores["bleu"] == corpus_scores(whole[:4], whole[4:])["bleu"]
