"""BLEU and a learned metric on the validation sets, between the steps of a training."""

import dataclasses
from itertools import chain
from typing import Any

from jax.sharding import Mesh

from transformer_jax.data.language_tags import in_languages
from transformer_jax.decoding.config import while_training
from transformer_jax.metrics.base import Judge, Metric
from transformer_jax.metrics.registry import METRICS
from transformer_jax.metrics.scores import corpus_scores
from transformer_jax.models.lora import NoAdapter
from transformer_jax.settings.variants import kind_of
from transformer_jax.training.data import TrainingData
from transformer_jax.training.loop import Evaluate
from transformer_jax.translation.translator import Translator


def make_evaluator(data: TrainingData, mesh: Mesh) -> Evaluate | None:
    """Scores of greedy translations of the validation sentences; None if there are none.

    A model that is trained on blocks translates the documents, any other one each sentence alone.

    The scores are BLEU and, if it is another, what `train.best_by` names. Of several directions it
    is the mean of their scores.

    The parameters stay on the devices where training has them, and all devices translate: no
    process needs more of the parameters than its own part.
    """
    config, validation = data.config, data.validation
    if not validation:
        return None
    model = dataclasses.replace(config.model, adapter=NoAdapter())
    decode = while_training(config.decode)
    translators = {
        direction: Translator(
            model, None, in_languages(config.data, data.tokenizers, direction), decode, mesh=mesh
        )
        for direction in validation
    }

    criterion = config.train.best_by
    judges: dict[str, Judge] = {}
    if isinstance(criterion, Metric):
        judges[kind_of(criterion, METRICS)] = criterion.open()

    def evaluate(params: Any, step: int) -> dict[str, float]:
        merged = config.model.adapter.merge(params)
        found: dict[str, dict[str, float]] = {"bleu": {}, **{name: {} for name in judges}}
        for direction, documents in validation.items():
            translator, key = translators[direction].with_params(merged), "-".join(direction)
            sources = [source for source, _ in chain.from_iterable(documents)]
            references = [target for _, target in chain.from_iterable(documents)]
            if config.data.blocks:
                texts = [[source for source, _ in document] for document in documents]
                hypotheses = list(chain.from_iterable(translator.translate_documents(texts)))
            else:
                hypotheses = translator.translate(sources)
            scores = corpus_scores(hypotheses, references, target_language=direction[1])
            found["bleu"][key] = scores["bleu"].score
            for name, judge in judges.items():
                found[name][key] = float(judge(sources, hypotheses, references).mean())
        means = {name: sum(of.values()) / len(of) for name, of in found.items()}
        each = {f"{name}.{key}": score for name, of in found.items() for key, score in of.items()}
        return means | (each if len(validation) > 1 else {})

    return evaluate
