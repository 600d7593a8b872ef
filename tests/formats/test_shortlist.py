"""Lexical shortlists: which pieces they list, and the file. The engine is in other tests."""

from pathlib import Path

import numpy as np
import pytest

import transformer_jax as tj
from transformer_jax.data.alignments import words
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.formats.marian.shortlist import (
    count_links,
    most_linked,
    shortlist_of,
    to_bytes,
)
from transformer_jax.weights.arrangement import Arrangement

PAIRS = generate(5, 200)


@pytest.fixture(scope="module", params=[True, False], ids=["joint", "apart"])
def tokenizers(request):
    size = 700 if request.param else 500
    return tj.train_tokenizers(tj.TokenizerConfig(vocab_size=size, joint=request.param), PAIRS)


def test_the_most_linked_pieces_are_listed(tokenizers):
    draw = np.random.default_rng(0)
    links = [
        np.argwhere(draw.random([len(text.split()) for text in pair]) < 0.2).tolist()
        for pair in PAIRS
    ]
    sizes = tokenizers.source.vocab_size, tokenizers.target.vocab_size
    linked, occurrences = np.zeros(sizes, int), np.zeros(sizes[1], int)
    for pair, each in zip(PAIRS, links, strict=True):
        both = tokenizers.source, tokenizers.target
        ids = [np.array(side.encode(text)) for side, text in zip(both, pair, strict=True)]
        parts = [words(side, of.tolist()) for side, of in zip(both, ids, strict=True)]
        np.add.at(occurrences, ids[1], 1)
        places = {
            (i, j)
            for s, t in each
            for i in np.flatnonzero(parts[0][s])
            for j in np.flatnonzero(parts[1][t])
        }
        for i, j in places:
            linked[ids[0][i], ids[1][j]] += 1
    lines = [(" ".join(f"{s}-{t}" for s, t in each), "f:1") for each in links]
    made = most_linked(count_links(PAIRS, lines, tokenizers), sizes[0], best=4, frequent=7)
    for piece in set(range(sizes[0])) - {2}:
        own = linked[piece]
        best = sorted(np.flatnonzero(own).tolist(), key=lambda t: (-own[t], t))[:4]
        assert made[piece].tolist() == sorted(best)
    most = sorted(range(sizes[1]), key=lambda t: (-occurrences[t], t))[:7]
    assert made[2].tolist() == sorted({2, *most})
    # A piece that never occurs is not frequent.
    every = most_linked(count_links(PAIRS, lines, tokenizers), sizes[0], frequent=sizes[1])
    assert every[2].tolist() == sorted({2, *np.flatnonzero(occurrences)})
    assert len(every[2]) < sizes[1]


def test_the_file_has_the_ids_of_its_vocabularies():
    lists = [np.array([], int), np.array([0]), np.array([0, 1, 2, 3]), np.array([2, 4])]
    # They have no PAD and no BOS.
    source = Arrangement(np.array([-1, -1, 0, 1]))
    target = Arrangement(np.array([-1, -1, 2, 0, 1]))
    content = to_bytes(lists, source, target)
    magic, checksum, first, best, offsets, ids, *more = np.frombuffer(content[:72], "<u8").tolist()
    assert (magic, first, best, offsets, ids) == (0xF11A48D5013417F5, 0, 2, 3, 4)
    assert more == [0, 2, 4]
    assert np.frombuffer(content[72:], "<u4").tolist() == [0, 2, 1, 2]
    hashed = 0
    for word in np.frombuffer(content[16:], "<u8").tolist():
        hashed ^= (word + 0x9E3779B9 + (hashed << 6) + (hashed >> 2)) % 2**64
    assert checksum == hashed


def test_what_does_not_go_together_is_one_line(tokenizers, tmp_path):
    files = [str(tmp_path / name) for name in ("in.en", "in.de", "in.align")]
    for name, lines in zip(files, (["A dog."] * 3, ["Ein Hund."] * 3, ["0-0"] * 2), strict=True):
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    with pytest.raises(tj.UserError, match="in.en has 3 lines and .*in.align has 2"):
        shortlist_of(files, tokenizers)
    Path(files[2]).write_text("0-0\n1-7\n0-0\n", encoding="utf-8")
    with pytest.raises(tj.UserError, match="in.align:2: the link 1-7 is to a target word"):
        shortlist_of(files, tokenizers)
    with pytest.raises(tj.UserError, match=r"none.align: cannot be read"):
        shortlist_of([*files[:2], str(tmp_path / "none.align")], tokenizers)
