"""The report after training: translations of a few sentences, and pictures."""

import itertools
from collections.abc import Iterator

import numpy as np
from etils import epath

from transformer_jax.data.text import has_split, read_pairs
from transformer_jax.runs.folder import Run
from transformer_jax.translation.translator import Translation, Translator
from transformer_jax.viewing.attention import attention_weights
from transformer_jax.viewing.plots import plot_cross_attention, plot_training
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
    if has_split(data, "validation"):
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
    tokenizers = translator.tokenizers
    most, chosen = -1, None
    for source, (best, *_) in zip(sources, translations, strict=True):
        ids = tokenizers.source.encode(source)
        if not ids or len(ids) > 24 or len(best.tokens) > 24:
            continue
        weights = attention_weights(
            run.config.model, translator.params, [*ids, EOS_ID], list(best.tokens)
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
        run.path / "plots" / "cross_attention.png",
    )
