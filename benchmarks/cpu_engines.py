"""Milliseconds of one sentence at a time, and sentences a second in batches, of engines on a CPU.

    python benchmarks/cpu_engines.py --text=test.en.gz --cores=0,1 \
        float:runs/enpt int8:runs/enpt fxtranslate:enpt-1693087644 \
        "ctranslate2(quantization=int8):runs/quickstart" onnx:runs/quickstart

Each contestant is an engine and a folder: `float` or `int8` (our decoder with these weights, and a
run folder), an export for CTranslate2 or onnxruntime with its options (a run folder), or
`fxtranslate` (Firefox's engine in Rust, and a published model's folder; it takes one sentence at a
time). With `fxtranslate+shortlist` the engine uses the folder's `lex*.bin`. All are greedy. They
take turns, `--rounds` times, on the cores that are named, and the least time of each counts. One
table on stdout.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

Translate = Callable[[Sequence[str]], Any]


def ours(folder: str, weights: str) -> Translate:
    """Our decoder."""
    import transformer_jax as tj

    return tj.open_run(folder).translator(method="greedy", weights=weights).translate


def in_fxtranslate(folder: str, *, shortlist: bool) -> Translate:
    """One sentence after the other."""
    import fxtranslate

    def content(pattern: str) -> bytes:
        (path,) = Path(folder).glob(pattern)
        return path.read_bytes()

    vocabulary = content("vocab*.spm")
    files = [content("model*.bin"), vocabulary, vocabulary, *[content("lex*.bin")] * shortlist]
    engine = fxtranslate.Translator(*files)
    return lambda texts: [engine.translate(text) for text in texts]


def in_ctranslate2(folder: str, format: str, cores: int) -> Translate:
    """CTranslate2 with a thread for each core."""
    import ctranslate2

    import transformer_jax as tj
    from transformer_jax.formats.export import export

    run = tj.open_run(folder)
    path = export(run, format, Path(tempfile.mkdtemp()) / "exported")
    model = ctranslate2.Translator(str(path), intra_threads=cores, inter_threads=1)
    source = run.tokenizers().source

    def translate(texts: Sequence[str]) -> Any:
        pieces = [source.pieces(source.encode(text)) + ["</s>"] for text in texts]
        return model.translate_batch(pieces, beam_size=1, max_batch_size=32)

    return translate


def in_onnxruntime(folder: str, format: str, cores: int) -> Translate:
    """onnxruntime: the search of docs/interop.md; each core has its own batches, as ours."""
    import numpy as np
    import onnxruntime

    import transformer_jax as tj
    from transformer_jax.formats.export import export

    run = tj.open_run(folder)
    path = Path(os.fspath(export(run, format, Path(tempfile.mkdtemp()) / "exported")))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    pool = ThreadPoolExecutor(cores)
    decoder, encoder = (
        onnxruntime.InferenceSession(str(each), options)
        for each in sorted((path / "onnx").glob("*.onnx"))
    )
    search = json.loads((path / "generation_config.json").read_text())
    pasts = [each for each in decoder.get_inputs() if each.name.startswith("past")]
    places = {each.name.replace("past_key_values", "present"): each.name for each in pasts}
    later = {made: place for made, place in places.items() if "encoder" not in made}
    source, target = run.tokenizers().source, run.tokenizers().target
    limit = run.config.decode.max_target_length
    value, end = onnxruntime.OrtValue.ortvalue_from_numpy, search["eos_token_id"]

    def batch(rows: Sequence[Sequence[int]]) -> list[list[int]]:
        widest = max(map(len, rows))
        ids = np.array([[*row, end] + [0] * (widest - len(row)) for row in rows])
        mask = value((np.arange(widest + 1) <= np.array([[len(row)] for row in rows])).astype(int))
        given = {
            each.name: value(
                np.zeros(
                    [n if type(n) is int else (n == "batch") * len(rows) for n in each.shape]
                ).astype("float32")
            )
            for each in pasts
        }
        asked = {"input_ids": value(ids), "attention_mask": mask}
        (states,) = encoder.run_with_ort_values(None, asked)
        given |= {"encoder_hidden_states": states, "encoder_attention_mask": mask}
        tokens = [np.full(len(rows), search["decoder_start_token_id"])]
        done = np.zeros(len(rows), bool)
        while not done.all() and len(tokens) <= limit(widest + 1):
            given["input_ids"] = value(tokens[-1][:, None])
            given["use_cache_branch"] = value(np.array([len(tokens) > 1]))
            wanted = later if len(tokens) > 1 else places
            logits, *kept = decoder.run_with_ort_values(["logits", *wanted], given)
            scores = logits.numpy()[:, 0]
            scores[:, search["suppress_tokens"]] = -np.inf
            tokens.append(scores.argmax(-1))
            done |= tokens[-1] == end
            given |= dict(zip(wanted.values(), kept, strict=True))
        return [[*row, end][: [*row, end].index(end)] for row in np.stack(tokens[1:], 1).tolist()]

    def translate(texts: Sequence[str]) -> list[str]:
        rows = source.encode_batch(list(texts))
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))  # short ones fill the end
        parts = [order[start : start + 32] for start in range(0, len(rows), 32)]
        found = [""] * len(rows)
        made = pool.map(batch, [[rows[i] for i in part] for part in parts])
        for i, ids in zip(order, chain.from_iterable(made), strict=True):
            found[i] = target.decode(ids)
        return found

    return translate


def contestant(name: str, cores: int) -> Translate:
    """Opens what a name on the command line stands for."""
    engine, _, folder = name.partition(":")
    if engine.startswith("fxtranslate"):
        return in_fxtranslate(folder, shortlist=engine.endswith("+shortlist"))
    if engine in ("float", "int8"):
        return ours(folder, engine)
    open_exported = in_onnxruntime if engine.startswith("onnx") else in_ctranslate2
    return open_exported(folder, engine, cores)


def seconds(translate: Translate, batches: Sequence[Sequence[str]]) -> float:
    """How long some calls take, one after the other."""
    began = time.perf_counter()
    for batch in batches:
        translate(batch)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("contestants", nargs="+", metavar="ENGINE:FOLDER")
    parser.add_argument("--text", required=True, help="source sentences, one a line")
    parser.add_argument("--cores", default="0,1", help="those to run on")
    parser.add_argument("--single", type=int, default=30, help="sentences that come alone")
    parser.add_argument("--batched", type=int, default=192, help="sentences in batches of 32")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    cores = [int(core) for core in args.cores.split(",")]
    os.sched_setaffinity(0, cores)  # before anything counts them
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from transformer_jax.data.sources.files import read_lines

    lines = list(read_lines(args.text))
    alone = [[line] for line in lines[: args.single]]
    text = lines[: args.batched]
    translators = {name: contestant(name, len(cores)) for name in args.contestants}
    least: dict[str, list[float]] = {name: [float("inf")] * 2 for name in translators}
    for translate in translators.values():  # what compiles, compiles now
        seconds(translate, [*alone, text])
    for _ in range(args.rounds):
        for name, translate in translators.items():
            for i, batches in enumerate((alone, [text])):
                least[name][i] = min(least[name][i], seconds(translate, batches))
    print(f"| {len(cores)} cores | ms a sentence, alone | sentences/s, batches of 32 |")
    print("|---|---|---|")
    for name, (single, batched) in least.items():
        shown = f"{1e3 * single / len(alone):.1f} | {len(text) / batched:.1f}"
        print(f"| {name.partition(':')[0]} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
