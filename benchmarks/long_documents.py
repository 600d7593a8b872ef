"""Which mixer finds what decides a word, from how far, at which learning rate.

    python benchmarks/long_documents.py --jobs=2           # trains and tests what is missing
    python benchmarks/long_documents.py --only=full,ssd    # rows whose name has one of these
    python benchmarks/long_documents.py --list             # the rows by now, and which are there

Each row is one small model (2 + 2 layers of width 128) in which one part is not full attention.
It is trained on `grammar_documents` with documents of up to about 512 tokens, and tested on marked
words whose deciding word is 16 to 8,000 tokens away. `d_ff` of each model is chosen so that all
have as many parameters, within 5 %.

Each model is trained at every rate with one seed. The rate with the most right answers on the
validation items, at distances as in training, is the model's, and two more seeds are trained with
it: by the machinery of `compare --grid`. The test items have no part in the choice. A row and seed
is one line of `benchmarks/results/long_documents_rates.jsonl` (see `rows.py`).

A marked word is right if the model, which reads the right document up to it, finds its piece more
probable than that of each wrong word: one pass for a document. The chance of a guess is in the row.
A kind whose answers at a distance beyond those in training are not shown to be better than guesses
(p > 0.01) is not tested farther. `known` is recall of 4 at 64 tokens with pairs of word and meaning
that were in training: what a model of these has learned, if it fails on new ones.
"""

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Mapping
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.stats
from rows import Key, Rows, main, run_folder

import transformer_jax as tj
from transformer_jax.commands.compare.jobs import due
from transformer_jax.commands.compare.results import Meter, gflops_per_step, peak_gb, with_seed
from transformer_jax.commands.compare.rows import Row, make_grid, split_grid
from transformer_jax.commands.prepare.shards import (
    Preparation,
    begin,
    learn_tokenizers,
    make_shard,
    merge,
)
from transformer_jax.data.contrast import BETWEEN, Item
from transformer_jax.data.sources.base import BOUNDARY, Split
from transformer_jax.data.sources.grammar_documents.contrast import contrast_items
from transformer_jax.data.sources.grammar_documents.kinds import KINDS
from transformer_jax.data.splits import read_documents, resolve
from transformer_jax.models import api
from transformer_jax.ops.padding import pad
from transformer_jax.paths import as_path, one_at_a_time
from transformer_jax.vocabulary import EOS_ID

NAME = "long_documents_rates"
TEXT = Path("runs/long_documents/text")
STEPS = 3400
TRAINED = 512  # pieces of the longest documents in training
LONGEST = 8192 + 512  # and in the tests
RATES = ("1.3e-3", "4e-3", "1.2e-2")
SEEDS = 3
#: Tokens between the deciding word and the marked one -> documents that are tested.
DISTANCES = {16: 100, 64: 100, 256: 100, 448: 100, 1024: 40, 2048: 40, 4096: 20, 8000: 10}
VALIDATION = {distance: count for distance, count in DISTANCES.items() if distance < TRAINED}
DOCUMENTS = 100  #: of the validation set, translated whole
#: What is tested: kind, and facts before the distance begins.
TESTS = (("agreement", 1), ("recall", 4), ("recall", 16), ("consistency", 1), ("order", 4))
ENCODER, DECODER = "model.encoder.mixers", "model.decoder.mixers"
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

CONFIG = tj.Config(
    data=tj.DataConfig(
        source=tj.GrammarDocuments(
            # With one definition nothing must be looked up, so there are two or more; with the
            # usual share of recall a pilot learned all kinds but this one.
            kinds=("agreement", "recall", "recall", "recall", "consistency", "order"),
            definitions=(2, 4, 16, 64),
            documents=100_000,
            held_out=200,
            most=80,
        ),
        blocks=(tj.Blocks(tokens=TRAINED),),
        source_language="en",
        target_language="de",
    ),
    # Every word is one piece, so what a distance of so many pieces means is the same everywhere.
    tokenizer=tj.TokenizerConfig(kind="bpe", vocab_size=2000),
    batch=tj.BatchConfig(tokens=2048, max_length=TRAINED, num_buckets=6),
    model=tj.ModelConfig(
        d_model=128,
        d_ff=512,
        num_heads=4,
        encoder=tj.StackConfig(num_layers=2),
        decoder=tj.StackConfig(num_layers=2),
        dropout_rate=0.0,  # each document is seen a few times at most
        matmul_dtype="auto",
        max_length=LONGEST,
    ),
    train=tj.TrainConfig(
        steps=STEPS,
        label_smoothing=0.0,
        schedule=tj.CosineSchedule(learning_rate=4e-3, warmup_steps=300),
        evaluate_every=2 * STEPS,  # never: `translate` scores the documents
        checkpoint_every=500,
        log_every=50,
    ),
    decode=tj.DecodeConfig(method=tj.Greedy(), max_source_length=LONGEST),
)


@cache
def rows() -> dict[str, dict[str, Row]]:
    """Each model at each rate, with as many parameters as full attention."""
    grid = split_grid([f"train.schedule.learning_rate={','.join(RATES)}"])
    made = make_grid(CONFIG, list(MODELS.values()), grid, equal_parameters=True)
    return {
        name: {f"{name} at {row.point}": row for row in points}
        for name, points in zip(MODELS, made, strict=True)
    }


def test(
    run: tj.Run, split: Split = "test", distances: Mapping[int, int] = DISTANCES
) -> dict[str, Any]:
    """Accuracy by kind and distance: right answers and documents of each."""
    left = list(TESTS)
    params, tokenizers = run.params("latest"), run.tokenizers()
    forward = jax.jit(partial(_log_probs, run.model))
    length = _tokens_of(tokenizers.target)
    found: dict[str, Any] = {}
    for distance, count in distances.items():
        if distance + TRAINED > run.model.max_length:
            continue
        asked: dict[str, list[Question]] = {}
        for kind, facts in left:
            with contextlib.suppress(tj.UserError):  # the deciding words do not fit in between
                options = {"facts": facts, "seed": 1, "length": length, "split": split}
                items = contrast_items(kind, distance, count, **options)
                asked[f"{kind}-{facts}/{distance}"] = [_question(tokenizers, it) for it in items]
        if not asked:
            break
        # One size for all kinds: XLA compiles once for each distance.
        size = max(max(len(q.source), len(q.target)) for qs in asked.values() for q in qs)
        for name, questions in asked.items():
            rights = _answers(forward, params, questions, -(-size // 128) * 128)
            found[name] = [sum(rights), len(rights)]
            print(name, sum(rights) / len(rights), flush=True)
            kind, _, facts = name.partition("/")[0].rpartition("-")
            if distance > TRAINED and _guessed(sum(rights), len(rights), KINDS[kind].chance):
                left.remove((kind, int(facts)))
    return found


def test_known(run: tj.Run) -> list[int]:
    """Right answers and documents of recall where training had the pairs of word and meaning."""
    tokenizers = run.tokenizers()
    options = {"facts": 4, "seed": 1, "length": _tokens_of(tokenizers.target), "split": "train"}
    items = contrast_items("recall", 64, DISTANCES[64], **options)
    questions = [_question(tokenizers, item) for item in items]
    forward = jax.jit(partial(_log_probs, run.model))
    rights = _answers(forward, run.params("latest"), questions, 128)
    return [sum(rights), len(rights)]


def _guessed(right: int, total: int, chance: float) -> bool:
    """Whether guesses have as many right answers more often than once in a hundred times."""
    return scipy.stats.binom.sf(right - 1, total, chance) > 0.01


class Question(NamedTuple):
    """A document's pieces, and the wrong pieces that could stand at some places of its target."""

    source: list[int]
    target: list[int]
    places: list[int]
    wrong: list[int]


def _tokens_of(tokenizer: Any) -> Any:
    return lambda sentence: len(tokenizer.encode(sentence)) + 1


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = []
    for sentence in text.split(BETWEEN):
        ids += [*tokenizer.encode(sentence), tokenizer.separator]
    return [*ids[:-1], EOS_ID]


def _log_probs(model: Any, params: Any, source: Any, target: Any) -> jax.Array:
    logits = api.apply(model, params, *source, api.shift_right(target[0]), target[1])
    return jax.nn.log_softmax(logits)


def _question(tokenizers: Any, item: Item) -> Question:
    right, *wrong = [_ids(tokenizers.target, text) for text in item.targets]
    places = [_first_difference(right, each) for each in wrong]
    pieces = [each[place] for each, place in zip(wrong, places, strict=True)]
    return Question(_ids(tokenizers.source, item.source), right, places, pieces)


def _answers(forward: Any, params: Any, questions: list[Question], size: int) -> list[bool]:
    """Whether the right word of each question is the most probable one."""
    batch = max(1, min(len(questions), 4096 // size))
    rights = []
    for first in range(0, len(questions), batch):
        chunk = questions[first : first + batch]
        source = pad([each.source for each in chunk], batch, size)
        target = pad([each.target for each in chunk], batch, size)
        log_probs = np.asarray(forward(params, source, target))
        for row, each in enumerate(chunk):
            rights.append(
                all(
                    log_probs[row, i, each.target[i]] > log_probs[row, i, piece]
                    for i, piece in zip(each.places, each.wrong, strict=True)
                )
            )
    return rights


def _first_difference(one: list[int], other: list[int]) -> int:
    return next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)


def prepared() -> tj.DataConfig:
    """The text as ids, which the first row makes for all."""
    preparation = Preparation(
        TEXT.absolute(), resolve(CONFIG.data), CONFIG.tokenizer, part_pairs=100_000
    )
    TEXT.mkdir(parents=True, exist_ok=True)
    with one_at_a_time(as_path(TEXT / "merged.json")):
        begin(preparation)
        if not (preparation.folder / "merged.json").exists():
            learn_tokenizers(preparation)
            make_shard(preparation, 0, 1)
            merge(preparation)
    return tj.DataConfig(prepared=str(preparation.folder), blocks=CONFIG.data.blocks)


def translate(run: tj.Run) -> dict[str, Any]:
    """d-BLEU of whole documents, and how many blocks of them had another number of sentences."""
    documents = islice(read_documents(run.config.data, "validation"), DOCUMENTS)
    pairs = chain.from_iterable([*each, BOUNDARY] for each in documents)
    report = tj.evaluate(run, pairs, checkpoint="latest", documents=True)
    assert report is not None and report.documents is not None, "one process, and documents"
    scores = report.documents
    return {"d_bleu": scores.scores["bleu"].score, "divided": [scores.divided, scores.blocks]}


def measured(of_row: Row, seed: int, folder: Path) -> tuple[tj.Run, dict[str, Any]]:
    """Trains and tests a model with one seed."""
    config = dataclasses.replace(with_seed(of_row.config, seed), data=prepared())
    began, meter = time.perf_counter(), Meter(lambda: False, config.train.log_every)
    run = tj.train(config, folder, should_stop=meter)
    trained, peak = time.perf_counter() - began, peak_gb()
    losses = [each for each in run.metrics() if "loss" in each]
    speeds = [each["steps_per_second"] for each in losses if "steps_per_second" in each]
    return run, {
        "parameters": of_row.parameters,
        "d_ff": of_row.config.model.d_ff,
        "steps": config.train.steps,
        "loss": losses[-1]["loss"],
        "train_seconds": round(trained),
        "steps_per_second": round(statistics.median(speeds), 3),
        "cpu_seconds_per_step": meter.seconds_per_step,
        "peak_gb": peak,
        "gflops_per_step": gflops_per_step(run),
        "documents": translate(run),
        "accuracy": test(run),
        "known": test_known(run),
        "chance": {kind: KINDS[kind].chance for kind, _ in TESTS},
        "test_seconds": round(time.perf_counter() - began - trained),
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
