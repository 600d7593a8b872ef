"""Time and memory of the models of `long_documents.py` by length: its table of costs.

    python benchmarks/long_documents_costs.py           # measures what is missing
    python benchmarks/long_documents_costs.py --list    # the rows, and which are there

For each row and length, with weights that are drawn: a training step for one document of so many
pieces on both sides, the memory that its program needs, and a greedy search that reads a document
and writes as many pieces. Run it alone: rows that are measured beside others are not comparable.
A row is one line of `benchmarks/results/long_documents_costs.jsonl` (see `rows.py`).
"""

import dataclasses
from typing import Any

import long_documents
from rows import Key, main

from transformer_jax.commands.check.speed import measure
from transformer_jax.config import Config
from transformer_jax.data.config import BatchConfig
from transformer_jax.plan.programs import Compiler
from transformer_jax.plan.topologies import this_machine

LENGTHS = (64, 512, 2048, 8192)
VOCABULARY = 2000


def make(name: str, _: int) -> dict[str, Any]:
    """The costs of a row at each length that its model can have."""
    row = long_documents.row(name)
    return {
        "parameters": row.parameters,
        "costs": {
            str(length): costs(row.config, length)
            for length in LENGTHS
            if length <= row.config.model.max_length
        },
    }


def costs(config: Config, length: int) -> dict[str, float]:
    """Milliseconds and MiB of a training step, and pieces a second of a search."""
    config = dataclasses.replace(
        config,
        data=dataclasses.replace(config.data, blocks=()),
        model=dataclasses.replace(
            config.model, source_vocab_size=VOCABULARY, target_vocab_size=VOCABULARY
        ),
        batch=BatchConfig(tokens=length, max_length=length),
        decode=dataclasses.replace(config.decode, batch_size=1),
    )
    target = this_machine()
    found = {row.name.partition(" ")[0]: row for row in measure(config, target, "", seconds=2.0)}
    step, search = found["training"].value, found["search"].value
    assert isinstance(step, float) and isinstance(search, float)
    written = float(found["search"].beside.partition(" ")[0])
    program = Compiler(config, target).train_step(1, length)
    return {
        "step_ms": round(step, 1),
        "step_mib": round(program.bytes / 2**20, 1),
        "pieces_written": written,  # fewer than `length` where the model ends early
        "pieces_per_second": round(1e3 * written / search, 1),
    }


def keys() -> list[Key]:
    """Every row once."""
    return [(name, 0) for name in long_documents.changes()]


if __name__ == "__main__":
    main("long_documents_costs", keys(), make, __doc__)
