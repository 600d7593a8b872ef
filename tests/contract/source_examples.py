"""For each registered source: how the suite makes one that has a given text."""

import json
from pathlib import Path

from tests.contract.source_suite import Maker, Text
from transformer_jax.data.sources.base import Source
from transformer_jax.data.sources.files import Files
from transformer_jax.data.sources.grammar import Grammar
from transformer_jax.data.sources.tfds import Tfds


def files(folder: Path, text: Text) -> tuple[Source, Text]:
    """Plain files, and for the test set JSONL, which knows its languages."""
    names: dict[str, tuple[str, ...]] = {}
    for split, pairs in text.items():
        if split == "test":
            lines = [json.dumps({"en": en, "de": de}) + "\n" for en, de in pairs]
            (folder / "test.jsonl").write_text("".join(lines))
            names["test_source"] = (f"{folder}/test.jsonl",)
            continue
        for side, language in enumerate(("en", "de")):
            path = folder / f"{split}.{language}"
            path.write_text("".join(pair[side] + "\n" for pair in pairs))
            names[f"{split}_{('source', 'target')[side]}"] = (str(path),)
    return Files(**names), text


def tfds(folder: Path, text: Text) -> tuple[Source, Text]:
    """A folder of text files that TFDS reads."""
    for split, pairs in text.items():
        for side, language in enumerate(("en", "de")):
            lines = "".join(pair[side] + "\n" for pair in pairs)
            (folder / f"{language}.{split}.txt").write_text(lines)
    return Tfds("TranslateFolder", str(folder)), text


def grammar(folder: Path, text: Text) -> tuple[Source, Text]:
    """The embedded text."""
    del folder, text
    from transformer_jax.data.sources.grammar.sentences import split_pairs

    return Grammar(), {name: split_pairs(name) for name in ("train", "validation", "test")}


EXAMPLES: dict[str, Maker] = {
    "files": files,
    "tfds": tfds,
    "grammar": grammar,
}
