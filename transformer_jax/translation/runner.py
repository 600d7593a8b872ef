"""A model with its parameters on devices, and the batches that run there."""

import os
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
from jax.sharding import Mesh

from transformer_jax.ops.matrices import holds_int8
from transformer_jax.parallel.mesh import (
    batch_sharding,
    decoding_rows,
    lay_out,
    num_processes,
    replicated,
)
from transformer_jax.translation.model import Model
from transformer_jax.translation.run_batches import Timing, Work, run_batches
from transformer_jax.translation.text_batches import Row, batches

#: Most hypotheses of a batch in int8 on a CPU. With more a step takes longer, by as much or more.
_INT8_HYPOTHESES = 16

#: Most batches that run on a CPU at the same time; each has its own decoder state.
_MOST_THREADS = 8


@dataclass(frozen=True)
class Runner:
    """What runs batches.

    Attributes:
        model: of the parameters.
        params: as decoding holds them; None where nothing is run.
        mesh: the devices that share the rows of a batch; None: one device, that of `params`.
        compiled: the programs that earlier work has compiled.
    """

    model: Model
    params: Any
    mesh: Mesh | None
    compiled: set[Hashable] = field(default_factory=set)

    def num_rows(self, wanted: int) -> int:
        """The number of rows of a batch, which is a multiple of the number of devices."""
        return max(1, wanted) if self.mesh is None else decoding_rows(wanted, self.mesh)

    def search_rows(self, wanted: int, num_hypotheses: int) -> int:
        """The most rows of a search: in int8 on a CPU, few."""
        few = max(1, _INT8_HYPOTHESES // num_hypotheses)
        return min(wanted, few) if self._takes_few else wanted

    @cached_property
    def _takes_few(self) -> bool:
        return holds_int8(self.params) and _on_cpu(self.params)

    @cached_property
    def threads(self) -> int:
        """How many batches run at the same time.

        A CPU takes one for each core: that is faster than many cores for one batch, whose
        operations are small. An accelerator runs one after the other; the host is then one batch
        ahead. Several devices must all run their programs in the same order.
        """
        is_one = len(jax.tree.leaves(self.params)[0].devices()) == 1
        return min(os.cpu_count() or 1, _MOST_THREADS) if is_one and _on_cpu(self.params) else 1

    def call(self, function: Any, arrays: Any, **options: Any) -> Any:
        """Calls a compiled function. Every process can read the whole result."""
        if self.mesh is not None and self.mesh.size > 1:  # on one, a call copies them in less time
            sharding = batch_sharding(self.mesh)
            arrays = jax.tree.map(lambda array: lay_out(array, sharding), arrays)
        results = function(self.params, arrays, model=self.model, mesh=self.mesh, **options)
        if self.mesh is not None and num_processes(self.mesh) > 1:
            results = jax.device_put(results, replicated(self.mesh))
        return results

    def run(self, rows: list[Row], work: Work[Any]) -> Timing:
        """Does the work on all rows."""
        return run_batches(self.compiled, self.threads, batches(rows, work.num_rows), work)


def row_choices(most: int) -> list[int]:
    """The numbers of rows of the programs for few sentences and for many, ascending.

    Few sentences need not wait for the rows of a full batch.
    """
    return sorted({1, *(-(-most * part // 8) for part in (1, 4, 6, 8))})


def _on_cpu(arrays: Any) -> bool:
    return next(iter(jax.tree.leaves(arrays)[0].devices())).platform == "cpu"
