"""The report after training: translations of a few sentences, and pictures."""

import itertools
from collections.abc import Iterator

import numpy as np
from etils import epath

from transformer_jax.data.splits import has_split, read_pairs
from transformer_jax.runs.folder import Run
from transformer_jax.translation.translator import Translation, Translator
from transformer_jax.viewing.attention import attention_weights
from transformer_jax.viewing.plots import plot_attention, plot_training
from transformer_jax.vocabulary import EOS_ID


def report(run: Run, *, samples: int = 4) -> Iterator[str]:
    """Translates validation sentences and draws the pictures of a run.

    The heat map shows the sentence, among the first 40 of the validation set, whose word order
    changes most.

    Yields:
        Texts for the user: the translations, and the path of each picture under `plots/`.
    """
    data = run.config.data
    pictures = [plot_training(run)]
    if has_split(data, "validation", data.languages):
        translator = run.translator()
        pairs = list(itertools.islice(read_pairs(data, "validation"), 40))
        sources = [source for source, _ in pairs]
        translations = translator.n_best(sources, 1)
        examples = list(zip(pairs, translations, strict=True))[:samples]
        for (source, reference), (best, *_) in examples:
            yield (
                f"  {data.source_language}: {source}\n"
                f"  {data.target_language}: {best.text}\n"
                f"  reference: {reference}\n"
            )
        pictures.append(_draw_cross_attention(run, translator, sources, translations))
    for path in filter(None, pictures):
        yield f"drew {path}"


def _draw_cross_attention(
    run: Run,
    translator: Translator,
    sources: list[str],
    translations: list[list[Translation]],
) -> epath.Path | None:
    """One sentence's map, the mean over the heads of the layer with the sharpest weights."""
    tokenizers = translator.tokenizers
    candidates = []
    for source, (best, *_) in zip(sources, translations, strict=True):
        ids = [*tokenizers.source.encode(source), EOS_ID]
        if not 1 < len(ids) <= 25 or len(best.tokens) > 24:
            continue
        weights = attention_weights(run.model, translator.params, ids, list(best.tokens))
        cross = {
            f"{name}, mean of {len(w_HTS)} heads": w_HTS.mean(axis=0)
            for name, w_HTS in weights.items()
            if name.startswith("cross.")
        }
        if cross:
            sharpest = min(cross, key=lambda name: _entropy(cross[name]))
            panel = {sharpest: cross[sharpest][None]}
            candidates.append((_crossings(cross[sharpest]), panel, ids, best.tokens))
    if not candidates:
        return None
    _, panel, source_ids, target_ids = max(candidates, key=lambda candidate: candidate[0])
    return plot_attention(
        panel,
        tokenizers.source.pieces(source_ids),
        tokenizers.target.pieces(target_ids),
        run.path / "plots" / "cross_attention.png",
    )


def _entropy(weights_TS: np.ndarray) -> float:
    """Mean entropy of the rows, in nats."""
    return float(-(weights_TS * np.log(weights_TS + 1e-9)).sum(-1).mean())


def _crossings(weights_TS: np.ndarray) -> int:
    """Pairs of target pieces whose most attended source pieces are in the opposite order."""
    looks_at = weights_TS[:-1].argmax(axis=-1)
    return int(np.triu(looks_at[:, None] > looks_at[None, :]).sum())
