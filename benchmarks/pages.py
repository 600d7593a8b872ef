"""Sentences, blocks, and blocks with context, on real pages at equal minutes.

    python benchmarks/pages.py --jobs=2      # trains and scores what is missing
    python benchmarks/pages.py --list        # the rows, and which are there

The text is in the folder that PAGES names (default: ../shared/data/pages.en-de): train, valid and
test, each as .en.gz and .de.gz, with an empty line between two pages. Each row is the model of
`from_files` for 85,000 pairs, trained for the same time on one core: on sentences, or on blocks of
up to 256 pieces and sentences in equal parts. Its test pages are translated one sentence at a time;
those of a model of blocks also block by block, and in blocks that know the end of what was
translated before. A row is one line of `benchmarks/results/pages.jsonl` (see `rows.py`).
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax
from rows import Key, main, run_folder

import transformer_jax as tj
from transformer_jax.config import override
from transformer_jax.data.splits import read_documents
from transformer_jax.metrics.document_scores import document_scores
from transformer_jax.recipes import open_recipe
from transformer_jax.runs.evaluation import Report, evaluate
from transformer_jax.runs.start import for_its_text

TEXT = Path(os.environ.get("PAGES", "../shared/data/pages.en-de"))
MINUTES = 30
BLOCK = 256  # pieces
MIXERS = {"full": "full", "ssd, full": "ssd,full", "linear, window": "linear,window(window=64)"}
ROWS = [f"{text}: {name}" for name in MIXERS for text in ("sentences", "blocks")]


def config_of(name: str, seed: int) -> tj.Config:
    """The recipe of a row."""
    text, _, mixers = name.partition(": ")
    recipe = open_recipe("from_files")
    files = {
        f"data.source.{split}_{side}": str((TEXT / f"{of}.{ending}.gz").absolute())
        for split, of in (("train", "train"), ("validation", "valid"), ("test", "test"))
        for side, ending in (("source", "en"), ("target", "de"))
    }
    documents = {"data.source.documents": "true"}
    config = override(recipe.config, files | documents)
    config = for_its_text(config, recipe.by_pairs, jax.devices())
    mixers = MIXERS[mixers]
    changes = {
        "model.encoder.mixers": mixers,
        "model.decoder.mixers": mixers,
        "model.max_length": str(2 * BLOCK),
        "batch.max_length": str(BLOCK),
        "decode.max_source_length": str(2 * BLOCK),
        "decode.method": "greedy",
        "train.minutes": str(MINUTES),
        "train.seed": str(seed),
    }
    if text == "blocks":
        changes["data.blocks"] = f"blocks(tokens={BLOCK}),blocks(sentences=[1])"
    return override(config, changes)


def make(name: str, seed: int) -> dict[str, Any]:
    """Trains a row, and scores each of its ways to translate."""
    run = tj.train(config_of(name, seed), run_folder("pages", name, seed))
    documents = list(read_documents(run.config.data, "test"))
    lengths = [len(pairs) for pairs in documents]
    references = [german for pairs in documents for _, german in pairs]
    ways: dict[str, dict[str, Any]] = {"sentences": {"documents": False}}
    if name.startswith("blocks"):
        ways["blocks"] = {"documents": True, "context_tokens": 0}
        ways["context"] = {"documents": True}
    made = {}
    for way, options in ways.items():
        report = evaluate(run, name=way, **options)
        assert report is not None, "one process"
        texts = Path(report.translations).read_text(encoding="utf-8").split("\n")[:-1]
        made[way] = scores(report, texts, references, lengths)
    last = [each for each in run.metrics() if "loss" in each][-1]
    return {"steps": last["step"], "minutes": MINUTES, "ways": made}


def scores(
    report: Report, texts: list[str], references: list[str], lengths: list[int]
) -> dict[str, Any]:
    """s-BLEU, d-BLEU and BLEU by the place of a sentence in its page."""
    of_documents = document_scores(texts, references, lengths)
    return {
        "bleu": report.scores["bleu"].score,
        "chrf++": report.scores["chrf++"].score,
        "d_bleu": of_documents.scores["bleu"].score,
        "by_place": [dataclasses.asdict(part) for part in of_documents.by_place],
        "blocks": report.documents.blocks if report.documents else 0,
        "divided": report.documents.divided if report.documents else 0,
        "sentences_per_second": report.sentences_per_second,
        "signature": report.scores["bleu"].signature,
    }


def keys() -> list[Key]:
    """Every row once."""
    return [(name, 0) for name in ROWS]


if __name__ == "__main__":
    main("pages", keys(), make, __doc__)
