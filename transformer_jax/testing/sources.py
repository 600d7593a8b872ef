"""What every source of parallel text promises; each check takes a `Maker` and a folder.

`tests/contract/test_sources.py` runs the checks on every registered source, and
`test_source_suite_rejects.py` shows that they reject broken ones.
"""

import contextlib
import copy
import itertools
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from transformer_jax.data.config import Corpus, DataConfig
from transformer_jax.data.sources.base import BOUNDARY, SPLITS, Pair, Source, Split
from transformer_jax.data.splits import read_documents, read_pairs
from transformer_jax.errors import UserError

Text = dict[Split, list[Pair]]
#: (folder, text) -> a source, and the English-German text that it has. A source that can hold
#: any text writes the given one in the folder; any other returns its own text.
Maker = Callable[[Path, Text], tuple[Source, Text]]

EN_DE, DE_EN = ("en", "de"), ("de", "en")


def sentences(split: str, count: int) -> list[Pair]:
    """Pairs of different lengths, so that a wrong order or number of pairs is noticed."""
    return [(f"{split} {i}" + " dog" * i, f"{split} {i}" + " Hund" * i) for i in range(count)]


#: "train" is longer than a source reads at a time.
TEXT: Text = {
    "train": [(f"a dog {i}", f"ein Hund {i}") for i in range(1100)] + sentences("train", 9),
    "validation": sentences("validation", 5),
    "test": sentences("test", 4),
}


def read(source: Source, split: Split, languages: tuple[str, str] = EN_DE) -> list[Pair]:
    """All pairs of a split."""
    return list(source.pairs(split, languages))


def refusal(use: Callable[[], object]) -> str:
    """The message of the UserError that a call must end with."""
    try:
        use()
    except UserError as error:
        return str(error)
    raise AssertionError("no UserError")


def check_pairs_are_exact(make: Maker, folder: Path) -> None:
    """Every split has all of its pairs, once each, in order."""
    source, text = make(folder, TEXT)
    for split in SPLITS:
        assert source.has(split)
        assert read(source, split) == text[split]


def check_order_is_the_same_every_time(make: Maker, folder: Path) -> None:
    """Two readings agree, also of a run that is continued, or begun before the other has ended."""
    source, _ = make(folder, TEXT)
    both = zip(source.pairs("train", EN_DE), source.pairs("train", EN_DE), strict=True)
    assert all(one == other for one, other in both)
    for again in (copy.deepcopy(source), make(folder, TEXT)[0]):
        assert read(again, "train") == read(source, "train")


def check_direction(make: Maker, folder: Path) -> None:
    """The languages decide which side is the source."""
    source, text = make(folder, TEXT)
    assert read(source, "test", DE_EN) == [(german, english) for english, german in text["test"]]


def check_fingerprint_follows_content(make: Maker, folder: Path) -> None:
    """It differs exactly where the text does: in a word, a letter's place, or a pair."""
    pairs = TEXT["train"]
    changes = [
        [("another dog", pairs[0][1]), *pairs[1:]],
        [("a dog 1", pairs[0][1]), *pairs[1:]],  # as many bytes as before
        [pairs[1], pairs[0], *pairs[2:]],
        pairs[:-1],
    ]
    keys: dict[str, str] = {}
    for number, train in enumerate([pairs, pairs, *changes]):
        place = folder / str(number)
        place.mkdir()
        source, text = make(place, {**TEXT, "train": train})
        content = repr(text["train"])
        key = source.fingerprint("train", EN_DE)
        assert keys.setdefault(content, key) == key, "the same text has another fingerprint"
        assert source.fingerprint("train", EN_DE) == key
    assert len(set(keys.values())) == len(keys), "another text has the same fingerprint"


def check_fingerprint_knows_the_split(make: Maker, folder: Path) -> None:
    """The splits differ, and reading them changes no fingerprint."""
    source, _ = make(folder, TEXT)
    before = [source.fingerprint(split, EN_DE) for split in SPLITS]
    assert len(set(before)) == len(SPLITS)
    for split in SPLITS:
        read(source, split)
    assert [source.fingerprint(split, EN_DE) for split in SPLITS] == before


def check_fingerprint_is_the_same_in_another_process(make: Maker, folder: Path) -> None:
    """The next run finds the cache of the ids by it."""
    source, _ = make(folder, TEXT)
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        found = pool.submit(source.fingerprint, "train", EN_DE).result()
    assert found == source.fingerprint("train", EN_DE)


def check_texts_are_known_by_content(make: Maker, folder: Path) -> None:
    """In both directions and wherever they are; another text shares none of them."""
    texts = []
    for number, train in enumerate([TEXT["train"]] * 2 + [TEXT["train"][::-1]]):
        place = folder / str(number)
        place.mkdir()
        source, text = make(place, {**TEXT, "train": train})
        assert source.texts(EN_DE) == source.texts(DE_EN) != []
        texts.append((text["train"], source.texts(EN_DE)))
    for (pairs, one), (others, other) in itertools.combinations(texts, 2):
        assert (one == other) == (pairs == others)
        assert bool({key for key, _ in one} & {key for key, _ in other}) == (pairs == others)


def check_missing_split_is_named(make: Maker, folder: Path) -> None:
    """Reading a missing split is an error of one line with its name."""
    source, text = make(folder, {"train": TEXT["train"]})
    for split in SPLITS:
        assert source.has(split) == (split in text)
        if split not in text:
            for use in (read, lambda source, split: source.fingerprint(split, EN_DE)):
                message = refusal(partial(use, source, split))
                assert split in message and "\n" not in message


def check_documents(make: Maker, folder: Path) -> None:
    """Documents end with boundaries, which no reader takes for pairs; also backwards."""
    source, text = make(folder, TEXT)
    for split in SPLITS:
        documents = [text[split]]
        if source.has_documents:
            assert text[split][-1] == BOUNDARY
            parts = itertools.groupby(text[split], BOUNDARY.__eq__)
            documents = [list(pairs) for is_boundary, pairs in parts if not is_boundary]
            assert len(documents) > 1
        for reverse in (False, True):
            order = slice(None, None, -1 if reverse else 1)
            expected = [[pair[order] for pair in document] for document in documents]
            data = DataConfig(corpora=(Corpus(source, EN_DE, reverse=reverse),))
            assert list(read_pairs(data, split)) == list(itertools.chain(*expected))
            if source.has_documents:
                assert list(read_documents(data, split)) == expected
            else:
                message = refusal(partial(list, read_documents(data, split)))
                assert f"the documents of the {split} set: " in message


def check_absolute(make: Maker, folder: Path) -> None:
    """With absolute file names it is the same source, wherever the program then is."""
    source, text = make(folder, TEXT)
    absolute = source.absolute()
    assert type(absolute) is type(source)
    assert absolute.absolute() == absolute
    with contextlib.chdir("/"):
        assert read(absolute, "test") == text["test"]
        assert absolute.fingerprint("test", EN_DE) == source.fingerprint("test", EN_DE)


def check_examples_are_sentences(make: Maker, folder: Path) -> None:
    """A few different ones, each of one line; of another language there are none."""
    source, _ = make(folder, TEXT)
    for language in EN_DE:
        found = source.examples(language)
        assert len(set(found)) == len(found) <= 5
        assert all(each.strip() == each and len(each.splitlines()) == 1 for each in found)
    assert source.examples("xx") == []


CHECKS = [check for name, check in list(globals().items()) if name.startswith("check_")]


def check_source(make: Maker, folder: Path) -> None:
    """Runs every check on a source, each in a folder of its own.

    Args:
        make: makes the source; see `Maker`.
        folder: an empty one.
    """
    for check in CHECKS:
        place = folder / check.__name__
        place.mkdir()
        check(make, place)
