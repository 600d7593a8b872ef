"""Which published models can be fine-tuned on which devices, by compiling for them.

    python benchmarks/finetune_plans.py --topologies=v5e:1x1,v5e:2x4     # where libtpu is installed
    python benchmarks/finetune_plans.py --topologies=a100:1,h100:1       # or XLA's CUDA compiler

For each model and device, it compiles the training step of the recipe `finetune` with sentences of
64 pieces on both sides, and looks for the largest batch, by factors of four. All parameters are
trained; where that does not fit, with remat, then with the parameters split over the devices
(`mesh.fsdp=-1`) where there are several, then adapters of rank 16. A row is one line of
`benchmarks/results/finetune_plans.jsonl`; what is there is not compiled again, and `--table`
prints all. No weights are needed: a model is what the importer makes of the keys of its published
`config.json`.

The layers run as a loop (`model.scan_layers=true`): 24 layers a side would take hours to compile.
A card of 24 GB cannot be described. Its row is the A100's program against 24 GB, of which JAX's
allocator takes 75 %.
"""

import argparse
import bisect
import dataclasses
import json
from pathlib import Path
from typing import Any

import transformer_jax as tj
from transformer_jax.config import Config
from transformer_jax.formats.transformers import m2m100, marian
from transformer_jax.models import api
from transformer_jax.plan.devices import GIB, Target
from transformer_jax.plan.programs import Compiler, Program, bytes_per_device
from transformer_jax.plan.topologies import described
from transformer_jax.weights.settings import Settings

RESULTS = Path(__file__).parent / "results" / "finetune_plans.jsonl"
LENGTH = 64  # pieces of a sentence, on each side
ROWS = [8, 32, 128, 512]  # pairs for each device
CARD = 24 * 10**9  # bytes of the card that cannot be described


def _sizes(d_model: int, layers: int, ffn: int, heads: int) -> dict[str, int]:
    sides = {
        f"{side}_{key}": value
        for side in ("encoder", "decoder")
        for key, value in (("layers", layers), ("ffn_dim", ffn), ("attention_heads", heads))
    }
    return {"d_model": d_model, **sides}


_NLLB = {"activation_function": "relu", "scale_embedding": True, "max_position_embeddings": 1024}
_OPUS = {"activation_function": "swish", "scale_embedding": True, "max_position_embeddings": 512}
#: The layout, the vocabulary, and the keys of the published `config.json` that give the shapes.
MODELS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "opus-mt-en-de": (marian.LAYOUT, 58_101, _OPUS | _sizes(512, 6, 2048, 8)),
    "nllb-200-distilled-600M": (m2m100.LAYOUT, 256_206, _NLLB | _sizes(1024, 12, 4096, 16)),
    "nllb-200-1.3B": (m2m100.LAYOUT, 256_206, _NLLB | _sizes(1024, 24, 8192, 16)),
    "nllb-200-3.3B": (m2m100.LAYOUT, 256_206, _NLLB | _sizes(2048, 24, 8192, 16)),
}

#: What is trained, from the most memory to the least: name -> changes of the model.
TRAINED: dict[str, dict[str, Any]] = {
    "all": {},
    "all, remat": {"remat": True},
    "all, remat, fsdp": {"remat": True},
    "lora": {"adapter": tj.Lora(rank=16)},
    "lora, remat": {"adapter": tj.Lora(rank=16), "remat": True},
}


def make_config(name: str, trained: str) -> Config:
    """The recipe `finetune` for a model."""
    layout, vocabulary, keys = MODELS[name]
    model = layout.model(
        Settings(name, keys),
        source_vocab_size=vocabulary,
        target_vocab_size=vocabulary,
        tie_embeddings="all",
        start_id=0,
    )
    recipe = tj.load_recipe("finetune")
    changes = {"dtype": "auto", "matmul_dtype": "auto", "scan_layers": True} | TRAINED[trained]
    return dataclasses.replace(
        recipe,
        tokenizer=tj.TokenizerConfig(vocab_size=vocabulary),
        model=dataclasses.replace(model, **changes),
        mesh=tj.MeshConfig(**{"data": 1, "fsdp": -1} if trained.endswith("fsdp") else {}),
        train=dataclasses.replace(recipe.train, init_from=None),
    )


def row(name: str, trained: str, place: str, target: Target) -> dict[str, Any]:
    """Compiles the training step for batches of growing size: the largest that fits."""
    compiler = Compiler(make_config(name, trained), target)
    sizes = [size * compiler.row_multiple for size in ROWS]
    programs: dict[int, Program] = {}

    def too_large(rows: int) -> bool:
        programs[rows] = compiler.train_step(rows, LENGTH)
        return not programs[rows].fits

    state = bytes_per_device(compiler.state)
    holds_state = target.memory is not None and state < target.memory
    most = bisect.bisect_left(sizes, True, key=too_large) if holds_state else 0
    return {
        "model": name,
        "trained": trained,
        "topology": place,
        "parameters": api.num_params(compiler.config.model),
        "state_bytes": state,
        "tokens": sizes[most - 1] * LENGTH if most else 0,
        "is_most_tried": most == len(sizes),
        "bytes_by_rows": {str(rows): program.bytes for rows, program in sorted(programs.items())},
    }


def ways(target: Target) -> list[str]:
    """The names in `TRAINED` that differ on so many devices."""
    return [name for name in TRAINED if len(target.devices) > 1 or not name.endswith("fsdp")]


def target_of(topology: str) -> tuple[str, Target]:
    """The name and the devices of a topology; an A100 stands for a card of 24 GB."""
    target = described(topology)
    if topology == "a100:1":
        return "24 GB", dataclasses.replace(target, memory=int(0.75 * CARD))
    return topology, target


def main() -> None:
    """Compiles what is missing, or prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    topologies = "such as h100:1; a100:1 stands for a card of 24 GB (default: %(default)s)"
    add("--topologies", default="v5e:1x1,v5e:2x4", metavar="A,B", help=topologies)
    add("--models", default=",".join(MODELS), metavar="A,B", help="some of %(default)s")
    add("--table", action="store_true", help="print what is there, and compile nothing")
    args = parser.parse_args()
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    rows = [json.loads(line) for line in lines]
    if args.table:
        print_table(rows)
        return
    RESULTS.parent.mkdir(exist_ok=True)
    done = {(each["model"], each["trained"], each["topology"]): each["tokens"] for each in rows}
    for name in args.models.split(","):
        for topology in args.topologies.split(","):
            place, target = target_of(topology)
            for trained in ways(target):
                key = name, trained, place
                if key not in done:
                    found = row(*key, target)
                    done[key] = found["tokens"]
                    print(json.dumps(found), flush=True)
                    with RESULTS.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(found) + "\n")
                if done[key]:
                    break


def print_table(rows: list[dict[str, Any]]) -> None:
    """One line for each model, one column for each device: the most that can be trained there."""
    places = {"24 GB": "24 GB", "h100:1": "H100", "v5e:1x1": "v5e-1", "v5e:2x4": "v5e-8"}
    print("| model | state |", " | ".join(places.values()), "|")
    print("| --- | ---: |", " | ".join("---:" for _ in places), "|")
    for name in MODELS:
        own = {(each["trained"], each["topology"]): each for each in rows if each["model"] == name}
        if own:
            size = max(each["state_bytes"] for each in own.values()) / GIB
            cells = (
                cell([own[t, place] for t in TRAINED if (t, place) in own]) for place in places
            )
            print(f"| {name} | {size:.1f} GiB |", " | ".join(cells), "|")


def cell(tried: list[dict[str, Any]]) -> str:
    """The first way of training that fits, and its largest batch."""
    for way in tried:
        if way["tokens"]:
            kind = "" if way["trained"] == "all" else f" ({way['trained'].removeprefix('all, ')})"
            return f"{way['tokens']:,}{'+' * way['is_most_tried']}{kind}"
    return "no" if tried and tried[-1]["trained"] == [*TRAINED][-1] else "–"


if __name__ == "__main__":
    main()
