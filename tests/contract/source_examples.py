"""For each registered source: how the suite makes one that has a given text."""

import json
from pathlib import Path

from tests.contract.source_suite import SPLITS, Maker, Text
from transformer_jax.data.sources.base import BOUNDARY, Source
from transformer_jax.data.sources.files import Files
from transformer_jax.data.sources.grammar import Grammar
from transformer_jax.data.sources.grammar_documents import GrammarDocuments
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


def grammar_documents(folder: Path, text: Text) -> tuple[Source, Text]:
    """A few embedded documents, with a boundary after each."""
    del folder, text
    source = GrammarDocuments(documents=40, held_out=5, most=20)
    made: Text = {}
    for split in SPLITS:
        count = 40 if split == "train" else 5
        documents = ([line.pair for line in source.lines(split, i)] for i in range(count))
        made[split] = [pair for document in documents for pair in (*document, BOUNDARY)]
    return source, made


EXAMPLES: dict[str, Maker] = {
    "files": files,
    "tfds": tfds,
    "grammar": grammar,
    "grammar_documents": grammar_documents,
}
