"""What a user sees of a trained run: translations of a few sentences, and pictures."""

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from transformer_jax.config import Config, load_config
from transformer_jax.data.text import has_split, read_pairs
from transformer_jax.paths import as_path
from transformer_jax.translation.translator import Translation, Translator, load
from transformer_jax.viewing.attention import attention_weights
from transformer_jax.viewing.plots import plot_cross_attention, plot_training
from transformer_jax.vocabulary import EOS_ID


def report(
    workdir: str | Path, *, samples: int = 4, say: Callable[[str], None] = print
) -> list[Path]:
    """Says translations of validation sentences and draws the run's pictures.

    The heat map shows the sentence, among the first of the validation set, whose words
    the model moves about most.

    Returns:
        Paths of the PNG files written under `plots/`.
    """
    workdir = as_path(workdir)
    config = load_config(workdir)
    drawn = [plot_training(workdir)]
    if has_split(config.data, "validation"):
        translator = load(workdir, "best")
        pairs = list(itertools.islice(read_pairs(config.data, "validation"), 40))
        sources = [source for source, _ in pairs]
        translations = translator.n_best(sources, 1)
        examples = list(zip(pairs, translations, strict=True))[:samples]
        for (source, reference), (best, *_) in examples:
            say(
                f"  {config.data.source_language}: {source}\n"
                f"  {config.data.target_language}: {best.text}\n"
                f"  reference: {reference}\n"
            )
        drawn.append(_draw_cross_attention(config, translator, sources, translations, workdir))
    return [path for path in drawn if path]


def _draw_cross_attention(
    config: Config,
    translator: Translator,
    sources: list[str],
    translations: list[list[Translation]],
    workdir: Path,
) -> Path | None:
    tokenizers = translator.tokenizers
    most, chosen = -1, None
    for source, (best, *_) in zip(sources, translations, strict=True):
        ids = tokenizers.source.encode(source)
        if not ids or len(ids) > 24 or len(best.tokens) > 24:
            continue
        weights = attention_weights(
            config.model, translator.params, [*ids, EOS_ID], list(best.tokens)
        )
        cross = [w.mean(axis=0) for name, w in weights.items() if name.startswith("cross.")]
        if not cross:
            return None
        sharpest_TS = min(cross, key=lambda w: float(-(w * np.log(w + 1e-9)).sum(-1).mean()))
        looks_at = sharpest_TS[:-1].argmax(axis=-1)
        pairs_of_rows = np.triu_indices(len(looks_at), 1)
        crossings = int((looks_at[:, None] > looks_at[None, :])[pairs_of_rows].sum())
        if crossings > most:
            most, chosen = crossings, (sharpest_TS, ids, best.tokens)
    if chosen is None:
        return None
    weights_TS, source_ids, target_ids = chosen
    return plot_cross_attention(
        weights_TS,
        [*tokenizers.source.pieces(source_ids), "</s>"],
        [*tokenizers.target.pieces(target_ids[:-1]), "</s>"],
        workdir / "plots" / "cross_attention.png",
    )
