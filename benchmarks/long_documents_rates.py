"""Long documents at three learning rates: the rows of `long_documents.py` whose answer holds.

    python benchmarks/long_documents_rates.py --jobs=2     # trains and tests what is missing
    python benchmarks/long_documents_rates.py --list       # the rows by now, and which are there

Each model is trained at every rate with one seed. The rate with the most right answers on the
validation items, at distances as in training, is the model's, and two more seeds are trained with
it: by the machinery of `compare --grid`. The test items have no part in the choice. A row is one
line of `benchmarks/results/long_documents_rates.jsonl` (see `rows.py`).
"""

from functools import cache
from typing import Any

from long_documents import CONFIG, DISTANCES, TRAINED, measured, test
from rows import Key, Rows, main, run_folder

from transformer_jax.commands.compare.jobs import due
from transformer_jax.commands.compare.rows import Row, make_grid, split_grid

NAME = "long_documents_rates"
RATES = ("1.3e-3", "4e-3", "1.2e-2")
SEEDS = 3

ENCODER, DECODER = "model.encoder.mixers", "model.decoder.mixers"
POSITIONS = "model.encoder.position", "model.decoder.position"
#: What differs from `CONFIG`; the first model is full attention everywhere.
MODELS: dict[str, dict[str, str]] = {
    "full": {DECODER: "full"},
    "full, convolution": dict.fromkeys((ENCODER, DECODER), "full(conv_width=4)"),
    "full, no positions": dict.fromkeys(
        ("model.encoder.position", "model.decoder.position"), "none"
    ),
    "decoder ssd": {DECODER: "ssd"},
    "decoder gated_deltanet": {DECODER: "gated_deltanet"},
    # Of four layers one has softmax attention: the decoder's last.
    "hybrid 3:1": {ENCODER: "gated_deltanet", DECODER: "gated_deltanet,full"},
}
VALIDATION = {distance: count for distance, count in DISTANCES.items() if distance < TRAINED}


@cache
def rows() -> dict[str, dict[str, Row]]:
    """Each model at each rate, with as many parameters as full attention."""
    grid = split_grid([f"train.schedule.learning_rate={','.join(RATES)}"])
    made = make_grid(CONFIG, list(MODELS.values()), grid, equal_parameters=True)
    return {
        name: {f"{name} at {row.point}": row for row in points}
        for name, points in zip(MODELS, made, strict=True)
    }


def keys(done: Rows) -> list[Key]:
    """Row and seed of the trainings that are known by now."""

    def scored(name: str, seed: int) -> float | None:
        return done[name, seed]["validation"] if (name, seed) in done else None

    return list(due([[f"{name} at {rate}" for rate in RATES] for name in MODELS], SEEDS, scored))


def make(name: str, seed: int) -> dict[str, Any]:
    """Trains and tests a model at a rate with one seed."""
    model, _, rate = name.rpartition(" at ")
    run, found = measured(rows()[model][name], seed, run_folder(NAME, name, seed))
    answers = test(run, "validation", VALIDATION)
    shares = [right / total for right, total in answers.values()]
    validation = {"validation": sum(shares) / len(shares), "validation_accuracy": answers}
    return {"model": model, "rate": float(rate)} | found | validation


if __name__ == "__main__":
    main(NAME, keys, make, __doc__)
