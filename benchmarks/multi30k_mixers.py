"""BLEU of every mixer in the encoder, in the decoder and as cross-attention, on Multi30k.

    python benchmarks/multi30k_mixers.py --jobs=2      # trains and scores what is missing
    python benchmarks/multi30k_mixers.py --list        # the rows, and which are there

The text is in the folder that MULTI30K names (default: ../shared/data/multi30k): train, val and
test_2016_flickr, each as .en.gz and .de.gz. Each row is the model of `from_files` for 29,000 pairs,
in which one part is not full attention, trained for as many steps on one core. `d_ff` of each row
is chosen so that all have as many parameters, within 5 %. A row is one line of
`benchmarks/results/multi30k_mixers.jsonl` (see `rows.py`).
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
from rows import Key, main, run_folder

from transformer_jax.commands.compare.results import run_training, with_seed
from transformer_jax.commands.compare.rows import Row, make_rows
from transformer_jax.config import Config, override
from transformer_jax.paths import as_path
from transformer_jax.recipes import open_recipe
from transformer_jax.runs.start import for_its_text

TEXT = Path(os.environ.get("MULTI30K", "../shared/data/multi30k"))
STEPS = 3000
#: Options for sentences of ten to twenty pieces. With the defaults, which are for long texts, these
#: mixers would attend to every token of such a sentence, as full attention does.
SHORT = {
    "window": "window(window=4)",
    "longformer": "longformer(window=4)",
    "bigbird": "bigbird(block_size=2, global_blocks=1, random_blocks=1)",
    "linformer": "linformer(rank=16)",
    "reformer": "reformer(chunk=8)",
    "mlp_mixer": "mlp_mixer(hidden=64)",
}
BOTH = ["window", "linear", "ssd", "mamba", "rwkv", "s4d", "s4", "h3", "ssru", "performer"]
BOTH = [*BOTH, "reformer", "bigbird", "strided", "gated_deltanet", "gla"]
ONE_PASS = "ssd(combine=one_pass)"  # beside the two scans of "encoder ssd"
SEEDS = {"full": 3, "encoder ssd": 2, f"encoder {ONE_PASS}": 2}  # to see what chance does


def changes() -> dict[str, dict[str, str]]:
    """What differs from the recipe in each row; the first is full attention everywhere."""
    found = {"full": {"model.encoder.mixers": "full"}}
    encoders = [*BOTH, "longformer", "linformer", "mlp_mixer", ONE_PASS]
    for role, mixers in (("encoder", encoders), ("decoder", BOTH)):
        for mixer in mixers:
            found[f"{role} {mixer}"] = {f"model.{role}.mixers": SHORT.get(mixer, mixer)}
    found["decoder mlp_mixer"] = {"model.decoder.mixers": "mlp_mixer"}
    for mixer in ("linear", "performer", "linformer"):
        found[f"cross {mixer}"] = {"model.cross": SHORT.get(mixer, mixer)}
    return found


def base() -> Config:
    """The recipe for this text, with what all rows have in common."""
    recipe = open_recipe("from_files")
    files = {
        f"data.source.{split}_{side}": str((TEXT / f"{name}.{ending}.gz").absolute())
        for split, name in (("train", "train"), ("validation", "val"), ("test", "test_2016_flickr"))
        for side, ending in (("source", "en"), ("target", "de"))
    }
    config = for_its_text(override(recipe.config, files), recipe.by_pairs, jax.devices())
    return override(
        config,
        {
            "train.steps": STEPS,
            "train.evaluate_every": STEPS,
            "train.schedule.warmup_steps": 600,
            "model.dropout_rate": 0.1,
        },
    )


def row(name: str) -> Row:
    """The model of a row, with as many parameters as full attention."""
    varied = changes()
    pair = [varied["full"], varied[name]] if name != "full" else [varied["full"]]
    return make_rows(base(), pair, equal_parameters=True)[-1]


def make(name: str, seed: int) -> dict[str, Any]:
    """Trains and scores a row with one seed."""
    of_row = row(name)
    folder = as_path(run_folder("multi30k_mixers", name, seed))
    config = with_seed(of_row.config, seed)
    result = run_training(config, folder, should_stop=lambda: False, progress=False)
    assert result is not None, "nothing stops it"
    sizes = {"parameters": of_row.parameters, "d_ff": of_row.config.model.d_ff}
    return sizes | dataclasses.asdict(result)


def keys() -> list[Key]:
    """Row and seed of every model; the first seed of all rows comes first."""
    return [(name, seed) for seed in range(3) for name in changes() if seed < SEEDS.get(name, 1)]


if __name__ == "__main__":
    main("multi30k_mixers", keys(), make, __doc__)
