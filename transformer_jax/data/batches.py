"""Batches as a pure function of (lengths, config, seed, position).

A few static shapes [B, S] + [B, T] are chosen from the lengths (see `boxes`); every pair
belongs to the cheapest shape that holds it. Each epoch shuffles the pairs of every shape and
then the order of the batches, from (seed, epoch) alone; every pair occurs exactly once per
epoch. Rows left over when a shape's pairs do not divide into whole batches move to a larger
shape if that wastes less than filling up a batch, so nearly all batches are full. The number of
batches of each shape depends only on the lengths: `position // batches_per_epoch` is the epoch,
and any position is reached directly.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from transformer_jax.data.boxes import (
    Shape,
    assign_boxes,
    choose_rows,
    count_slots,
    fewest_boxes,
    given_boxes,
    row_choices,
)
from transformer_jax.data.config import BatchConfig
from transformer_jax.data.corpus import IdCorpus
from transformer_jax.errors import UserError
from transformer_jax.vocabulary import EOS_ID, PAD_ID

Batch = dict[str, np.ndarray]
#: (corpus, pair indices, epoch) -> source ids and target ids of each pair, no EOS.
Sampler = Callable[[IdCorpus, np.ndarray, int], tuple[list[Sequence[int]], list[Sequence[int]]]]


@dataclass(frozen=True)
class _Epoch:
    number: int
    rows: np.ndarray  # pair indices, batch after batch
    shape: np.ndarray  # [batches] index into plan.shapes
    start: np.ndarray  # [batches] into rows
    count: np.ndarray  # [batches] number of real rows


class BatchPlan:
    """Which pairs make up the batch at each position.

    Args:
        source_lengths: [pairs] int, EOS included.
        target_lengths: [pairs] int, EOS included.
        config: token budget, longest length, number of shapes.
        seed: of the shuffle; None: `config.seed`.
        row_multiple: B is a multiple of it (number of data-parallel devices of all hosts).
        shuffle: False: always the same order, pairs of like length together (evaluation).
        shapes: use these shapes (of another plan) as far as they hold the pairs.

    Attributes:
        shapes: [(B, S, T)], ascending; B * max(S, T) <= config.tokens.
        batches_per_epoch: constant over epochs.
        num_pairs: pairs in an epoch.
        num_skipped: pairs longer than config.max_length on either side.

    Raises:
        UserError: no pair is left, or the token budget cannot hold `row_multiple` rows.
    """

    def __init__(
        self,
        source_lengths: np.ndarray,
        target_lengths: np.ndarray,
        config: BatchConfig,
        seed: int | None = None,
        *,
        row_multiple: int = 1,
        shuffle: bool = True,
        shapes: Sequence[Shape] | None = None,
    ):
        source = np.asarray(source_lengths)
        target = np.asarray(target_lengths)
        if source.shape != target.shape or source.ndim != 1:
            raise ValueError(
                f"expected two vectors of equal length, got {source.shape} and {target.shape}"
            )
        self.config = config
        self.seed = config.seed if seed is None else seed
        self.row_multiple = row_multiple
        self.shuffle = shuffle
        kept = np.flatnonzero((source <= config.max_length) & (target <= config.max_length))
        self.num_pairs = len(kept)
        self.num_skipped = len(source) - len(kept)
        if not len(kept):
            raise UserError(
                f"no sentence pair to batch: the corpus has {len(source)} pairs, of which "
                f"{self.num_skipped} are longer than batch.max_length={config.max_length}"
            )
        source, target = source[kept], target[kept]
        if shapes is None:
            boxes = fewest_boxes(source, target, config, row_multiple)
            choices = [row_choices(box, config, row_multiple) for box in boxes]
        else:
            boxes, choices = given_boxes(source, target, shapes, config, row_multiple)
        shape_of = assign_boxes(boxes, source, target)
        if shuffle:
            order = np.argsort(shape_of, kind="stable")
        else:
            order = np.lexsort((target, source + target, shape_of))
        counts = np.bincount(shape_of, minlength=len(boxes))
        self._members = np.split(kept[order], np.cumsum(counts)[:-1])
        self.shapes, self._moves, self._batch_counts = choose_rows(boxes, choices, counts)
        self._tokens = int(source.sum(dtype=np.int64)), int(target.sum(dtype=np.int64))
        self.batches_per_epoch = sum(self._batch_counts)
        self._epochs: dict[int, _Epoch] = {}
        self._lock = threading.Lock()  # pipelines ask from several threads

    def sequential(self, source_lengths: np.ndarray, target_lengths: np.ndarray) -> "BatchPlan":
        """A plan for other pairs (validation), unshuffled, in this plan's shapes.

        One pass is `range(plan.batches_per_epoch)`. Pairs that no shape holds, but that are
        within `config.max_length`, get one more shape.
        """
        return BatchPlan(
            source_lengths,
            target_lengths,
            self.config,
            self.seed,
            row_multiple=self.row_multiple,
            shuffle=False,
            shapes=self.shapes,
        )

    def rows(self, position: int) -> tuple[Shape, np.ndarray]:
        """The shape (B, S, T) and the pair indices, at most B, of the batch at `position`."""
        epoch, batch = self._locate(position)
        start = epoch.start[batch]
        return self.shapes[epoch.shape[batch]], epoch.rows[start : start + epoch.count[batch]]

    def padding_fraction(self) -> float:
        """Share of source and target slots of an epoch that hold no token.

        It is computed from the plan's lengths. With subword sampling those leave room for samples,
        and more of the slots are empty (Multi30k: 12 % at alpha 0.5, 22 % at 0.2).
        """
        slots = count_slots(self.shapes, self._batch_counts)
        return 1.0 - sum(self._tokens) / slots

    @property
    def target_tokens_per_epoch(self) -> int:
        """Real target tokens of an epoch, EOS included."""
        return self._tokens[1]

    @property
    def fingerprint(self) -> str:
        """Hash of which pairs are in which batch; the corpus's own hash covers their text."""
        content = hashlib.sha256(repr((self.seed, self.shapes, self._moves, self.shuffle)).encode())
        for members in self._members:
            content.update(np.ascontiguousarray(members, dtype="<i8").tobytes())
        return content.hexdigest()[:32]

    def _locate(self, position: int) -> tuple[_Epoch, int]:
        if position < 0:
            raise ValueError(f"position must be >= 0, got {position}")
        number, batch = divmod(int(position), self.batches_per_epoch)
        if not self.shuffle:
            number = 0
        with self._lock:
            if number not in self._epochs:
                if len(self._epochs) >= 2:  # this epoch and, near its end, the next
                    del self._epochs[min(self._epochs)]
                self._epochs[number] = self._make_epoch(number)
            return self._epochs[number], batch

    def _make_epoch(self, number: int) -> _Epoch:
        # NumPy guarantees that raw Philox words and a stable sort never change, but not
        # Generator.permutation. A run may be resumed under another NumPy.
        words = np.random.Philox(np.random.SeedSequence([self.seed, number]))
        pools: list[list[np.ndarray]] = [[members] for members in self._members]
        rows, shape, count = [], [], []
        for i, (size, _, _) in enumerate(self.shapes):
            pool = np.concatenate(pools[i])
            if self.shuffle:
                pool = pool[np.argsort(words.random_raw(len(pool)), kind="stable")]
            whole = len(pool) // size * size
            parent = self._moves[i]
            if parent is not None:
                pools[parent].append(pool[whole:])
                pool = pool[:whole]
            rows.append(pool)
            batches = -(-len(pool) // size)
            shape += [i] * batches
            count += [size] * (len(pool) // size)
            count += [len(pool) - whole] if len(pool) > whole else []
        counts, shapes = np.asarray(count, np.int64), np.asarray(shape, np.int64)
        starts = np.cumsum(counts) - counts
        if self.shuffle:
            order = np.argsort(words.random_raw(len(counts)), kind="stable")
            counts, shapes, starts = counts[order], shapes[order], starts[order]
        return _Epoch(number, np.concatenate(rows), shapes, starts, counts)


def local_rows(
    plan: BatchPlan, position: int, host: int = 0, num_hosts: int = 1, row_multiple: int = 1
) -> tuple[Shape, np.ndarray]:
    """This host's contiguous slice of `plan.rows(position)`: (B, S, T), and at most B rows.

    Args:
        plan: the plan of the whole batches.
        position: number of batches before this one.
        host: which slice, from 0.
        num_hosts: number of equal slices; the whole B must divide by it.
        row_multiple: padding rows are added up to a multiple of it: a run may continue with
            more devices than its plan was made for.
    """
    (size, source_length, target_length), rows = plan.rows(position)
    size = -(-size // row_multiple) * row_multiple
    if size % num_hosts:
        raise ValueError(
            f"{size} rows do not divide over {num_hosts} hosts: "
            "make the plan with row_multiple = number of devices"
        )
    size //= num_hosts
    return (size, source_length, target_length), rows[host * size : (host + 1) * size]


def make_batch(
    corpus: IdCorpus,
    plan: BatchPlan,
    position: int,
    host: int = 0,
    num_hosts: int = 1,
    sampler: Sampler | None = None,
    row_multiple: int = 1,
) -> Batch:
    """The batch at a position, or this host's slice of its rows.

    Args:
        corpus: the ids.
        plan: made from the corpus's lengths.
        position, host, num_hosts, row_multiple: see `local_rows`.
        sampler: gives other ids for the pairs at each visit (subword regularisation).

    Returns:
        source [B, S] int32, source_mask [B, S] bool, target [B, T] int32, target_mask
        [B, T] bool, with B the plan's rows / num_hosts. Both sides end with EOS; padding rows
        have all-False masks.
    """
    (size, *lengths), rows = local_rows(plan, position, host, num_hosts, row_multiple)
    samples = sampler(corpus, rows, position // plan.batches_per_epoch) if sampler else (None, None)
    batch: Batch = {}
    for side, length, sampled in zip(("source", "target"), lengths, samples, strict=True):
        ids = np.asarray(getattr(corpus, f"{side}_ids"))  # slices of a memmap are slow to make
        offsets = getattr(corpus, f"{side}_offsets")
        ends = zip(offsets[rows].tolist(), offsets[rows + 1].tolist(), strict=True)
        stored = [ids[start:end] for start, end in ends]
        if sampled is not None:  # a sample that is too long for the shape is not used
            stored = [
                np.asarray(sample) if len(sample) < length else own
                for sample, own in zip(sampled, stored, strict=True)
            ]
        batch[side], batch[f"{side}_mask"] = pad(stored, size, length)
    return batch


def pad(sentences: Sequence[np.ndarray], rows: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Sentences with EOS, padded to [rows, length] int32, and the mask of real tokens (bool).

    Args:
        sentences: at most `rows` arrays of fewer than `length` ids, without EOS.
        rows: B; rows after the sentences are padding.
        length: L, EOS included.
    """
    ends_B1 = np.full((rows, 1), -1)
    ends_B1[: len(sentences), 0] = [len(sentence) for sentence in sentences]
    column_L = np.arange(length)
    ids_BL = np.full((rows, length), PAD_ID, np.int32)
    if sentences:
        ids_BL[column_L < ends_B1] = np.concatenate(sentences)
    ids_BL[column_L == ends_B1] = EOS_ID
    return ids_BL, column_L <= ends_B1
