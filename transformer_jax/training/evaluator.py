"""BLEU on the validation sets, between the steps of a training."""

import dataclasses
from typing import Any

from jax.sharding import Mesh

from transformer_jax.config import Config
from transformer_jax.data.language_tags import in_languages
from transformer_jax.data.sources.base import Languages, Pair
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.decoding.config import while_training
from transformer_jax.models.lora import NoAdapter
from transformer_jax.training.loop import Evaluate
from transformer_jax.translation.scores import corpus_scores
from transformer_jax.translation.translator import Translator


def make_evaluator(
    config: Config, tokenizers: Tokenizers, validation: dict[Languages, list[Pair]], mesh: Mesh
) -> Evaluate | None:
    """Greedy BLEU on the validation sentences; None if there are none.

    Of several directions it is the mean of their BLEU.

    The parameters stay on the devices where training has them, and all devices translate: no
    process needs more of the parameters than its own part.
    """
    if not validation:
        return None
    model = dataclasses.replace(config.model, adapter=NoAdapter())
    decode = while_training(config.decode)
    translators = {
        direction: Translator(
            model, None, in_languages(config.data, tokenizers, direction), decode, mesh=mesh
        )
        for direction in validation
    }

    def evaluate(params: Any, step: int) -> dict[str, float]:
        del step
        merged = config.model.adapter.merge(params)
        bleu = {}
        for direction, pairs in validation.items():
            sources, references = ([pair[side] for pair in pairs] for side in (0, 1))
            hypotheses = translators[direction].with_params(merged).translate(sources)
            scores = corpus_scores(hypotheses, references, target_language=direction[1])
            bleu["-".join(direction)] = scores["bleu"].score
        mean = {"bleu": sum(bleu.values()) / len(bleu)}
        return mean | (
            {f"bleu.{name}": score for name, score in bleu.items()} if len(bleu) > 1 else {}
        )

    return evaluate
