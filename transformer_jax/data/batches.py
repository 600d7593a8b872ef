"""Batches as a pure function of (lengths, config, seed, position).

A few static shapes [B, S] + [B, T] are chosen from the lengths (see `boxes`); every pair
belongs to the cheapest shape that holds it. Each epoch shuffles the pairs of every shape and
then the order of the batches, from (seed, epoch) alone; every pair occurs exactly once per
epoch.

Of several corpora, each pair of corpus c occurs rate_c times per epoch on average. In each shape,
corpus c has a fixed number of rows per epoch, which are the next ones of an endless sequence: its
pairs of that shape in one random order after the other. So all its pairs are seen equally often
(their visits differ by one at most), and one corpus at rate 1 is the case above.

Rows left over when a shape's pairs do not divide into whole batches move to a larger
shape if that wastes less than filling up a batch, so nearly all batches are full. The number of
batches of each shape depends only on the lengths: `position // batches_per_epoch` is the epoch,
and any position is reached directly.
"""

import functools
import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from transformer_jax.data.batch_shapes import Shape, Visits, pack
from transformer_jax.data.config import BatchConfig
from transformer_jax.data.sentences import IdCorpus, Sentences
from transformer_jax.data.tokenizer import SIDES, Side
from transformer_jax.errors import UserError
from transformer_jax.ops.padding import pad
from transformer_jax.vocabulary import EOS_ID

Batch = dict[str, np.ndarray]
#: (side, texts of sentences, their numbers, epoch) -> ids of each, no EOS.
Sampler = Callable[[Side, Sequence[str], np.ndarray, int], Sequence[Sequence[int]]]


class Share(NamedTuple):
    """The rows of each batch that one process makes: a contiguous slice of it."""

    host: int = 0  #: which slice, from 0
    num_hosts: int = 1  #: number of equal slices
    #: Padding rows are added to a whole batch up to a multiple of it: a run may continue with more
    #: devices than its plan was made for.
    row_multiple: int = 1


WHOLE = Share()


class BatchPlan:
    """Which pairs make up the batch at each position.

    Args:
        source_lengths: [pairs] int, EOS included.
        target_lengths: [pairs] int, EOS included.
        config: token budget, longest length, number of shapes, seed of the shuffle.
        row_multiple: B is a multiple of it (number of data-parallel devices of all hosts).
        corpora: (pairs, rate) of each corpus, in the order of the pairs; default: one, at rate 1.

    Attributes:
        shapes: [(B, S, T)], ascending; B * max(S, T) <= config.budget.
        batches_per_epoch: constant over epochs.
        num_pairs: different pairs that are trained on.
        num_rows: pairs in an epoch, each visit counted.
        num_skipped: pairs longer than config.max_length on either side.

    Raises:
        UserError: no pair is left, or the token budget cannot hold `row_multiple` rows.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        config: BatchConfig,
        *,
        row_multiple: int = 1,
        corpora: Sequence[tuple[int, float]] = (),
    ):
        lengths, kept = _short_enough(source_lengths, target_lengths, config.max_length)
        self.num_pairs = len(kept)
        self.num_skipped = len(source_lengths) - len(kept)
        if not len(kept):
            raise UserError(
                f"no sentence pair to batch: the corpus has {self.num_skipped} pairs, of which "
                f"{self.num_skipped} are longer than batch.max_length={config.max_length}"
            )
        sizes, rates = zip(*corpora or [(len(source_lengths), 1.0)], strict=True)
        self._ends = np.cumsum(sizes)  # the first pair after each corpus
        visits = Visits(np.searchsorted(kept, self._ends), np.array(rates, np.float64))
        packing = self._packing = pack(lengths, config, row_multiple, visits)
        #: The pairs of each corpus in each shape, and how many of them an epoch has.
        self._cells: list[list[tuple[np.ndarray, int]]] = [[] for _ in packing.shapes]
        self._seed = config.seed
        tokens = 0.0
        parts = (visits.by_corpus(values) for values in (packing.shape_of, kept, lengths))
        for corpus, (shape_of, numbers, of_corpus) in enumerate(zip(*parts, strict=True)):
            for shape, quota in enumerate(packing.quotas[corpus].tolist()):
                if quota:
                    is_own = shape_of == shape
                    self._cells[shape].append((numbers[is_own], quota))
                    tokens += of_corpus[:, is_own].mean(axis=1).sum() * quota
        self._packing = packing._replace(shape_of=np.zeros(0, np.uint8))  # it is in the cells
        self._num_tokens = int(np.rint(tokens))
        self.shapes = packing.shapes
        self.num_rows = int(packing.quotas.sum())
        self.batches_per_epoch = sum(packing.batch_counts)
        # Two: near its end, an epoch and the next one are in use.
        self._epoch = functools.lru_cache(maxsize=2)(self._make_epoch)

    def rows(self, position: int, share: Share = WHOLE) -> tuple[Shape, np.ndarray]:
        """The shape (B, S, T) and the pair indices, at most B, of a share of the batch.

        Raises:
            ValueError: the position is negative, or the rows do not divide over the hosts.
        """
        if position < 0:
            raise ValueError(f"position must be >= 0, got {position}")
        epoch, batch = divmod(position, self.batches_per_epoch)
        (size, *lengths), rows = self._epoch(epoch)[batch]
        size = -(-size // share.row_multiple) * share.row_multiple
        if size % share.num_hosts:
            raise ValueError(
                f"{size} rows do not divide over {share.num_hosts} hosts: "
                "make the plan with row_multiple = number of devices"
            )
        size //= share.num_hosts
        of_share = rows[share.host * size : (share.host + 1) * size].astype(np.int64)
        return (size, lengths[0], lengths[1]), of_share

    def examples(self) -> list[tuple[int, int]]:
        """For each shape, the position of its first batch, and how many batches an epoch has."""
        positions: dict[Shape, list[int]] = {}
        for position, (shape, _) in enumerate(self._epoch(0)):
            positions.setdefault(shape, []).append(position)
        return [(each[0], len(each)) for each in positions.values()]

    def padding_fraction(self) -> float:
        """Share of source and target slots of an epoch that hold no token.

        It is computed from the plan's lengths. With subword sampling those leave room for samples,
        and more of the slots are empty (Multi30k: 12 % at alpha 0.5, 22 % at 0.2).
        """
        return 1.0 - self._num_tokens / self._packing.num_slots

    @property
    def fingerprint(self) -> str:
        """Hash of which pairs are in which batch; the corpus's own hash covers their text."""
        content = hashlib.sha256(repr((self._seed, self.shapes, self._packing.moves)).encode())
        for cells in self._cells:
            for members, quota in cells:
                if quota != len(members):
                    content.update(f"{quota} of {len(members)}".encode())
                content.update(np.ascontiguousarray(members, dtype="<i8").data)
        return content.hexdigest()[:32]

    def shares(self, positions: Iterable[int]) -> np.ndarray:
        """The share of each corpus in the pairs of these batches: [corpora] float64."""
        rows = np.concatenate([self.rows(position)[1] for position in positions])
        numbers = np.searchsorted(self._ends, rows, side="right")
        return np.bincount(numbers, minlength=len(self._ends)) / len(rows)

    def _make_epoch(self, number: int) -> list[tuple[Shape, np.ndarray]]:
        """The shape and the pair indices of each batch of an epoch."""
        # NumPy guarantees that raw Philox words and a stable sort never change, but not
        # Generator.permutation. A run may be resumed under another NumPy.
        words = np.random.Philox(np.random.SeedSequence([self._seed, number]))
        pools = [
            [self._visited(number, members, quota) for members, quota in cells]
            for cells in self._cells
        ]
        batches: list[tuple[Shape, np.ndarray]] = []
        for shape, larger, parts in zip(self.shapes, self._packing.moves, pools, strict=True):
            pool = np.concatenate([np.zeros(0, np.uint32), *parts])  # a shape may have no pair
            pool = pool[np.argsort(words.random_raw(len(pool)), kind="stable")]
            rows = shape[0]
            if larger is not None:
                pool, rest = np.split(pool, [len(pool) // rows * rows])
                pools[larger].append(rest)
            batches += [(shape, pool[i : i + rows]) for i in range(0, len(pool), rows)]
        order = np.argsort(words.random_raw(len(batches)), kind="stable")
        return [batches[i] for i in order]

    def _visited(self, epoch: int, members: np.ndarray, quota: int) -> np.ndarray:
        """The pairs of a corpus in a shape that this epoch has: [quota]."""
        count = len(members)
        if quota == count:
            return members
        begin, end = epoch * quota, (epoch + 1) * quota
        first, last = begin // count, -(-end // count)
        rounds = [self._round(members, number) for number in range(first, last)]
        return np.concatenate(rounds)[begin - first * count : end - first * count]

    def _round(self, members: np.ndarray, number: int) -> np.ndarray:
        """The pairs in the order of their visit number `number`."""
        key = np.random.SeedSequence([self._seed, number, int(members[0]), len(members)])
        return members[np.argsort(np.random.Philox(key).random_raw(len(members)), kind="stable")]


def _short_enough(
    source_lengths: np.ndarray, target_lengths: np.ndarray, longest: int
) -> tuple[np.ndarray, np.ndarray]:
    """The lengths [2, kept] and the numbers [kept] of the pairs that are not too long.

    Both are of the smallest types: they are most of what a plan of many pairs takes.
    """
    is_kept = (source_lengths <= longest) & (target_lengths <= longest)
    small, sides = np.min_scalar_type(longest), (source_lengths, target_lengths)
    lengths = np.stack([side[is_kept].astype(small) for side in sides])
    return lengths, np.arange(len(is_kept), dtype=np.min_scalar_type(len(is_kept)))[is_kept]


class Stream(NamedTuple):
    """What determines the batch at each position."""

    corpus: IdCorpus
    plan: BatchPlan  #: made from the corpus's lengths
    share: Share = WHOLE  #: which rows of each batch
    #: gives other ids for the sentences at each visit (subword regularisation); where they are too
    #: long for the shape, the stored ids replace them
    sampler: Sampler | None = None


def make_batch(stream: Stream, position: int) -> Batch:
    """The batch of a stream at a position, the number of batches before it.

    Returns:
        source [B, S] int32, source_mask [B, S] bool, target [B, T] int32, target_mask
        [B, T] bool, with B the rows of the share. Both sides end with EOS; padding rows
        have all-False masks. Of a text with word alignments also alignment [B, T, S] bool,
        which pieces are linked.
    """
    corpus, plan, share, sampler = stream
    (size, *widths), rows = plan.rows(position, share)
    epoch = position // plan.batches_per_epoch
    batch: Batch = {}
    for side, width in zip(SIDES, widths, strict=True):
        sentences: Sentences = getattr(corpus, side)
        if sampler is None:
            batch[side], batch[f"{side}_mask"] = sentences.padded(rows, size, width)
        else:
            members = list(map(sentences.members, rows.tolist()))
            numbers = np.concatenate([np.zeros(0, np.int64), *members])  # of all sentences
            drawn = iter(sampler(side, list(map(sentences.text, numbers)), numbers, epoch))
            sampled = [sentences.joined(each, list(islice(drawn, len(each)))) for each in members]
            chosen = [
                [*(sample if len(sample) < width else sentences[row]), EOS_ID]
                for sample, row in zip(sampled, rows, strict=True)
            ]
            batch[side], batch[f"{side}_mask"] = pad(chosen, size, width)
    if corpus.links:
        batch["alignment"] = corpus.links.padded(rows, (size, widths[0], widths[1]))
    return batch
