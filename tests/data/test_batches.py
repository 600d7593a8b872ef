from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from transformer_jax.data.batches import BatchPlan, Share, Stream, make_batch
from transformer_jax.data.config import BatchConfig, TokenizerConfig
from transformer_jax.data.ids import ids_of_pairs
from transformer_jax.data.sampling import SubwordSampler
from transformer_jax.data.sentences import IdCorpus
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.data.tokenizer_training import train_tokenizer
from transformer_jax.errors import UserError
from transformer_jax.vocabulary import EOS_ID

CONFIG = BatchConfig(tokens=256, max_length=30, num_buckets=5, seed=3)


def lengths(pairs=700, seed=0):
    rng = np.random.default_rng(seed)
    source = np.clip(rng.gamma(6.0, 2.0, pairs), 1, 45).astype(int)
    target = np.clip(source * rng.normal(1.0, 0.2, pairs), 1, 45).astype(int)
    return source, target


def corpus_of(source, target):
    """The ids of pair i are all i + 4."""
    return IdCorpus.from_lists(
        [[i + 4] * (n - 1) for i, n in enumerate(source)],
        [[i + 4] * (n - 1) for i, n in enumerate(target)],
    )


@pytest.fixture(scope="module")
def plan():
    return BatchPlan(*lengths(), CONFIG)


def epoch_rows(plan, epoch):
    n = plan.batches_per_epoch
    return [plan.rows(p)[1].tolist() for p in range(epoch * n, (epoch + 1) * n)]


def test_documents_of_8192_tokens_leave_fine_steps_to_sentences():
    """As many tokens in sentences of 6 to 30 as in blocks of up to 8,192."""
    rng = np.random.default_rng(0)
    source = np.append(rng.integers(6, 31, 60_000), rng.integers(4000, 8193, 180))
    target = np.clip(source * rng.normal(1.0, 0.1, len(source)), 4, 8192).astype(int)
    plan = BatchPlan(source, target, BatchConfig(tokens=16_384, max_length=8192))
    assert plan.num_pairs == len(source) and plan.shapes[0][1] < 20
    assert plan.padding_fraction() < 0.15


def test_every_shape_has_an_example():
    lengths = np.random.default_rng(3).integers(2, 30, (2, 500))
    plan = BatchPlan(*lengths, BatchConfig(tokens=128, max_length=32))
    examples = plan.examples()
    assert len(plan.shapes) > 2
    assert sorted(plan.rows(position)[0] for position, _ in examples) == sorted(plan.shapes)
    assert sum(count for _, count in examples) == plan.batches_per_epoch
    for position, count in examples:
        shape = plan.rows(position)[0]
        of_epoch = [plan.rows(each)[0] for each in range(plan.batches_per_epoch)]
        assert of_epoch.count(shape) == count and of_epoch.index(shape) == position


def test_an_epoch_has_each_pair_once_and_long_pairs_are_counted(plan):
    source, target = lengths()
    short = np.flatnonzero((source <= 30) & (target <= 30))
    assert plan.num_skipped == len(source) - len(short) > 0
    assert plan.num_pairs == len(short)
    for epoch in (0, 1, 5):
        assert sorted(sum(epoch_rows(plan, epoch), [])) == short.tolist()


def test_shapes_are_few_hold_their_rows_and_keep_the_budget(plan):
    source, target = lengths()
    assert 1 < len(plan.shapes) <= CONFIG.num_buckets
    seen = Counter()
    for position in range(plan.batches_per_epoch):
        shape, rows = plan.rows(position)
        seen[shape] += 1
        b, s, t = shape
        assert 0 < len(rows) <= b and b % 8 == 0 and b * max(s, t) <= CONFIG.tokens
        assert source[rows].max() <= s and target[rows].max() <= t
    assert set(seen) <= set(plan.shapes)


def test_epochs_are_a_pure_function_of_seed_and_epoch(plan):
    again = BatchPlan(*lengths(), CONFIG)
    assert epoch_rows(again, 4) == epoch_rows(plan, 4)  # without visiting 0 to 3
    assert epoch_rows(again, 0) == epoch_rows(plan, 0)
    batches_of = [set(map(frozenset, epoch_rows(plan, epoch))) for epoch in (0, 1)]
    assert batches_of[0] != batches_of[1]
    n = plan.batches_per_epoch
    orders = [[plan.rows(p)[0] for p in range(e * n, (e + 1) * n)] for e in (0, 1)]
    assert orders[0] != orders[1]
    assert again.fingerprint == plan.fingerprint
    other = BatchPlan(*lengths(), replace(CONFIG, seed=4))
    assert epoch_rows(other, 0) != epoch_rows(plan, 0)
    assert other.fingerprint != plan.fingerprint
    assert BatchPlan(*lengths(seed=1), CONFIG).fingerprint != plan.fingerprint


def test_padding_fraction_is_what_the_batches_hold(plan):
    corpus = corpus_of(*lengths())
    for epoch in (0, 3):
        real = slots = 0
        for p in range(plan.batches_per_epoch):
            batch = make_batch(Stream(corpus, plan), epoch * plan.batches_per_epoch + p)
            for side in ("source_mask", "target_mask"):
                real += batch[side].sum()
                slots += batch[side].size
        assert plan.padding_fraction() == pytest.approx(1 - real / slots, abs=1e-12)


def test_batches_hold_the_right_tokens(plan):
    source, target = lengths()
    corpus = corpus_of(source, target)
    for position in range(plan.batches_per_epoch):
        (b, s, t), rows = plan.rows(position)
        batch = make_batch(Stream(corpus, plan), position)
        for side, all_lengths, width in (("source", source, s), ("target", target, t)):
            ids, mask = batch[side], batch[f"{side}_mask"]
            assert ids.shape == mask.shape == (b, width)
            assert ids.dtype == np.int32 and mask.dtype == np.bool_
            assert mask.sum(1).tolist() == all_lengths[rows].tolist() + [0] * (b - len(rows))
            assert (ids[~mask] == 0).all()
            for i, row in enumerate(rows):
                n = all_lengths[row]
                assert ids[i, :n].tolist() == [row + 4] * (n - 1) + [EOS_ID]
                assert mask[i, :n].all()


@pytest.mark.parametrize("multiple", [1, 3, 8])
def test_rows_and_lengths_are_a_multiple(multiple):
    config = replace(CONFIG, length_multiple=multiple, max_length=24)
    plan = BatchPlan(*lengths(), config, row_multiple=multiple)
    assert not (np.array(plan.shapes) % multiple).any()


def test_a_plan_can_be_used_with_more_devices(plan):
    corpus = corpus_of(*lengths())
    position = 1
    shape, rows = plan.rows(position)
    one = make_batch(Stream(corpus, plan), position)
    multiple = 3 * shape[0] // 2  # does not divide the plan's rows
    parts = [
        make_batch(Stream(corpus, plan, Share(host, 2, multiple)), position) for host in range(2)
    ]
    for key, whole in one.items():
        joined = np.concatenate([part[key] for part in parts])
        assert len(joined) == multiple
        np.testing.assert_array_equal(joined[: len(whole)], whole)
    assert not np.concatenate([part["target_mask"] for part in parts])[shape[0] :].any()


def test_fewer_shapes_where_fewer_suffice():
    fixed = np.full(100, 10)
    assert BatchPlan(fixed, fixed, BatchConfig(tokens=100, num_buckets=16)).shapes == [(8, 10, 10)]
    source, target = lengths(5000)
    config = BatchConfig(tokens=2048, num_buckets=16, max_padding=0.2)
    plan = BatchPlan(source, target, config)
    assert plan.padding_fraction() <= 0.2 and 1 < len(plan.shapes) < 12
    strict = BatchPlan(source, target, BatchConfig(tokens=2048, num_buckets=16, max_padding=0.0))
    assert len(strict.shapes) == 16 and strict.padding_fraction() < plan.padding_fraction()


def test_the_largest_shape_may_have_no_pair():
    """Both directions of a text: none has the longest source and the longest target."""
    source, target = np.repeat([[10, 2], [2, 10]], 400, axis=1)
    plan = BatchPlan(source, target, BatchConfig(tokens=80, max_padding=0.05))
    assert [shape for shape, _ in map(plan.rows, range(100))].count((8, 10, 10)) == 0
    assert sorted(sum(epoch_rows(plan, 0), [])) == list(range(800)) and len(plan.examples()) == 2


def test_mistakes_are_one_line():
    with pytest.raises(UserError, match="no sentence pair .* 2 pairs, of which 2 are longer"):
        BatchPlan(np.array([50, 9]), np.array([9, 50]), CONFIG)
    with pytest.raises(UserError, match="no sentence pair"):
        BatchPlan(np.zeros(0, int), np.zeros(0, int), CONFIG)
    with pytest.raises(UserError, match=r"batch\.tokens=10 .* at least"):
        BatchPlan(*lengths(), BatchConfig(tokens=10, max_length=30))
    with pytest.raises(UserError, match="at least 360"):
        BatchPlan(*lengths(), CONFIG, row_multiple=12)


def test_plans_scale():
    source, target = lengths(1_000_000)
    plan = BatchPlan(source, target, BatchConfig(tokens=16384))
    plan.rows(10**9)  # a far position costs one epoch's shuffle, not a walk
    assert plan.padding_fraction() < 0.11


def test_sampled_batches_keep_the_text_and_do_not_depend_on_earlier_batches():
    words = ["haus", "häuser", "hausbau", "bauen", "gebaut", "umbau"]
    rng = np.random.default_rng(0)
    pairs = [
        (" ".join(rng.choice(words, rng.integers(1, 9))), " ".join(rng.choice(words, 4)))
        for _ in range(120)
    ]
    joint = train_tokenizer(TokenizerConfig(vocab_size=276), [s for s, _ in pairs])
    tokenizers = Tokenizers(joint, joint)
    corpus = ids_of_pairs(pairs, tokenizers, SubwordSampler(tokenizers, 0.2))
    config = BatchConfig(tokens=512, num_buckets=3)
    plan = BatchPlan(corpus.source.lengths, corpus.target.lengths, config, row_multiple=2)
    sampler = SubwordSampler(tokenizers, 0.2, seed=1)
    n = plan.batches_per_epoch
    walked = [make_batch(Stream(corpus, plan, sampler=sampler), p) for p in range(2 * n)]
    for p in (0, n - 1, n + 1):
        anew = SubwordSampler(tokenizers, 0.2, seed=1)
        resumed = make_batch(Stream(corpus, plan, sampler=anew), p)
        halves = [make_batch(Stream(corpus, plan, Share(h, 2), sampler), p) for h in (0, 1)]
        for key in resumed:
            assert np.array_equal(resumed[key], walked[p][key])
            assert np.array_equal(np.concatenate([h[key] for h in halves]), walked[p][key])
    segmentations = {}
    for p, batch in enumerate(walked):
        for i, row in enumerate(plan.rows(p)[1]):
            ids = batch["source"][i][batch["source_mask"][i]]
            assert ids[-1] == EOS_ID and tokenizers.source.decode(ids) == pairs[row][0]
            segmentations.setdefault(row, set()).add(tuple(ids))
    assert sum(len(s) > 1 for s in segmentations.values()) > len(pairs) / 10
