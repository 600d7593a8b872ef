"""For each registered source: how the suite makes one that has a given text."""

import functools
import json
from pathlib import Path

import pytest

from tests.data.listed import write
from transformer_jax.commands.prepare.shards import (
    Preparation,
    begin,
    learn_tokenizers,
    make_shard,
    merge,
)
from transformer_jax.data.config import DataConfig, TokenizerConfig
from transformer_jax.data.sources.base import BOUNDARY, Source
from transformer_jax.data.sources.files import Files
from transformer_jax.data.sources.grammar import Grammar
from transformer_jax.data.sources.grammar_documents import GrammarDocuments
from transformer_jax.data.sources.huggingface import HuggingFaceSet
from transformer_jax.data.sources.opus import Opus
from transformer_jax.data.sources.prepared import Prepared
from transformer_jax.data.sources.tfds import Tfds
from transformer_jax.data.splits import resolve
from transformer_jax.testing.sources import SPLITS, Maker, Text


def files(folder: Path, text: Text) -> tuple[Source, Text]:
    """Plain files, and for the test set JSONL, which knows its languages."""
    names: dict[str, tuple[str, ...]] = {}
    for split, pairs in text.items():
        if split == "test":
            lines = [json.dumps({"en": en, "de": de}) + "\n" for en, de in pairs]
            (folder / "test.jsonl").write_text("".join(lines))
            names["test_source"] = (f"{folder}/test.jsonl",)
            continue
        made = write(folder, pairs, name=split)
        names |= {f"{split}_source": made.train_source, f"{split}_target": made.train_target}
    return Files(**names), text


def tfds(folder: Path, text: Text) -> tuple[Source, Text]:
    """A folder of text files that TFDS reads."""
    for split, pairs in text.items():
        for side, language in enumerate(("en", "de")):
            lines = "".join(pair[side] + "\n" for pair in pairs)
            (folder / f"{language}.{split}.txt").write_text(lines)
    return Tfds("TranslateFolder", str(folder)), text


def huggingface(folder: Path, text: Text) -> tuple[Source, Text]:
    """A folder of Parquet files with a `translation`."""
    from pyarrow import Table, parquet

    for split, pairs in text.items():
        rows = [{"id": i, "translation": {"en": en, "de": de}} for i, (en, de) in enumerate(pairs)]
        parquet.write_table(Table.from_pylist(rows), folder / f"{split}.parquet")
    return HuggingFaceSet(str(folder)), text


def opus(folder: Path, text: Text) -> tuple[Source, Text]:
    """A corpus for each split, from a local stand-in of OPUS's server; it is read there once."""
    from tests.data import opus_server

    names = {split: (f"{split}-v1",) for split in text}
    with pytest.MonkeyPatch.context() as patch, opus_server.serve(patch) as server:
        for split, pairs in text.items():
            server.add(f"{split}-v1", pairs)
        source = Opus(corpora=names.pop("train"), **names, data_dir=str(folder))
        for split in text:
            source.fingerprint(split, ("en", "de"))
    return source, text


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


def prepared(folder: Path, text: Text) -> tuple[Source, Text]:
    """Text files in parts."""
    source, _ = files(folder, text)
    return prepare(folder, source), text


def prepare(folder: Path, source: Source) -> Prepared:
    """What `prepare` makes of a source."""
    data = resolve(DataConfig(source, source_language="en", target_language="de"))
    tokenizer = TokenizerConfig(vocab_size=300)
    preparation = Preparation(folder / "prepared", data, tokenizer, part_pairs=500)
    begin(preparation)
    learn_tokenizers(preparation)
    make_shard(preparation, 0, 1)
    merge(preparation)
    return Prepared(str(preparation.folder))


EXAMPLES: dict[str, Maker] = {
    "files": files,
    "tfds": tfds,
    "huggingface": huggingface,
    "opus": opus,
    "grammar": grammar,
    "grammar_documents": grammar_documents,
    "prepared": prepared,
}


def with_boundaries(text: Text) -> Text:
    """The text cut into documents of one, two, three, one, ... pairs."""
    made: Text = {}
    for split, pairs in text.items():
        made[split] = rest = []
        for number, pair in enumerate(pairs):
            rest.append(pair)
            if number % 6 in (0, 2, 5) or pair is pairs[-1]:
                rest.append(BOUNDARY)
    return made


def documents(folder: Path, text: Text, ending: str) -> tuple[Source, Text]:
    """Files of documents: plain, with an empty line between two, or with the document in each row.

    For the test set JSONL, which knows its languages.
    """
    text = with_boundaries(text)
    names: dict[str, tuple[str, ...]] = {}
    for split, pairs in text.items():
        kind = "jsonl" if split == "test" else ending
        number, lines, plain = 0, "", ["", ""]
        for en, de in pairs[:-1]:
            plain = [plain[0] + f"{en}\n", plain[1] + f"{de}\n"]
            row = json.dumps({"document": number % 2, "de": de, "en": en})
            if (en, de) == BOUNDARY:
                number += 1  # the ids may come again: only a change counts
            else:
                lines += f"{row}\n" if kind == "jsonl" else f"{en}\t{de}\t{number % 2}\n"
        contents = {"source": plain[0], "target": plain[1]} if kind == "txt" else {"source": lines}
        for side, content in contents.items():
            path = folder / f"{split}.{side}.{kind}"
            path.write_text(content)
            names[f"{split}_{side}"] = (str(path),)
    return Files(**names, documents=True), text


def prepared_documents(folder: Path, text: Text) -> tuple[Source, Text]:
    """Files of documents in parts, which end within documents."""
    source, made = documents(folder, text, "txt")
    return prepare(folder, source), made


#: The same with documents: the pairs that a maker returns have boundaries.
WITH_DOCUMENTS: dict[str, Maker] = {
    ending: functools.partial(documents, ending=ending) for ending in ("txt", "tsv", "jsonl")
}
WITH_DOCUMENTS["prepared"] = prepared_documents
