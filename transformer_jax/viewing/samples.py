"""Translations of a few sentences by a run, and pictures of its training and attention."""

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

#: Translations that are shown.
_SHOWN = 4


def report(run: Run, translator: Translator) -> Iterator[str]:
    """Translates validation sentences and draws the pictures of a run.

    The heat map shows the sentence, among the first 40 of the validation set, whose word order
    changes most.

    Args:
        run: whose folder gets the pictures.
        translator: of the run.

    Yields:
        Texts for the user: the translations, and the path of each picture under `plots/`.
    """
    data, records = run.config.data, run.metrics()
    pictures = [plot_training(run, records)]
    if has_split(data, "validation", data.languages):
        pairs = list(itertools.islice(read_pairs(data, "validation"), 40))
        sources = [source for source, _ in pairs]
        translations = [best for (best,) in translator.decode(sources, num_best=1).translations]
        for (source, reference), translation in zip(pairs[:_SHOWN], translations, strict=False):
            yield (
                f"  {data.source_language}: {source}\n"
                f"  {data.target_language}: {translation.text}\n"
                f"  reference: {reference}\n"
            )
        pictures.append(_draw_cross_attention(run, translator, sources, translations))
    for path in filter(None, pictures):
        yield f"drew {path}"


def _draw_cross_attention(
    run: Run, translator: Translator, sources: list[str], translations: list[Translation]
) -> epath.Path | None:
    """One sentence's map, the mean over the heads of the layer with the sharpest weights."""
    tokenizers = translator.tokenizers
    candidates = []
    for source, translation in zip(sources, translations, strict=True):
        pair = [*tokenizers.source.encode(source), EOS_ID], list(translation.tokens)
        if not 1 < len(pair[0]) <= 25 or len(pair[1]) > 24:
            continue
        weights = attention_weights(run.model, translator.params, *pair)
        cross = {
            f"{name}, mean of {len(w_HTS)} heads": w_HTS.mean(axis=0)
            for name, w_HTS in weights.items()
            if name.startswith("cross.")
        }
        if cross:
            name = min(cross, key=lambda name: _entropy(cross[name]))
            title = f"{source}\n{translation.text}"
            candidates.append((_crossings(cross[name]), name, cross[name], pair, title))
    if not candidates:
        return None
    _, name, weights_TS, (source_ids, target_ids), title = max(candidates, key=lambda each: each[0])
    source_words = words_of(tokenizers.source.pieces(source_ids))
    target_words = words_of(tokenizers.target.pieces(target_ids))
    maps = {name: by_word(weights_TS, target_words, source_words)[None]}
    labels = [word for word, _ in source_words], [word for word, _ in target_words]
    return plot_attention(maps, *labels, run.path / "plots" / "cross_attention.png", title)


#: A word, or a punctuation mark, and how many pieces it has.
Words = list[tuple[str, int]]


def words_of(pieces: list[str]) -> Words:
    """The words that pieces make. U+2581 begins one, and so do punctuation and EOS."""
    words: Words = []
    for piece in pieces:
        text = piece.removeprefix("\u2581")
        word, count = words[-1] if words else ("", 0)
        follows = text == piece and text.isalnum() and word.isalnum()
        if count and (follows or not word):  # not word: U+2581 was a piece of its own
            words[-1] = (word + text, count + 1)
        else:
            words.append((text, 1))
    return words


def by_word(weights_TS: np.ndarray, target: Words, source: Words) -> np.ndarray:
    """Attention between words: the sum over a source word's pieces, the mean over a target word's.

    The rows still sum to 1.
    """
    starts_T, starts_S = (
        np.cumsum([0, *(count for _, count in words)])[:-1] for words in (target, source)
    )
    summed = np.add.reduceat(np.add.reduceat(weights_TS, starts_S, axis=1), starts_T, axis=0)
    return summed / np.array([count for _, count in target])[:, None]


def _entropy(weights_TS: np.ndarray) -> float:
    """Mean entropy of the rows, in nats."""
    return float(-(weights_TS * np.log(weights_TS + 1e-9)).sum(-1).mean())


def _crossings(weights_TS: np.ndarray) -> int:
    """Pairs of target pieces whose most attended source pieces are in the opposite order."""
    looks_at = weights_TS[:-1].argmax(axis=-1)
    return int(np.triu(looks_at[:, None] > looks_at[None, :]).sum())
