"""Items with right and wrong targets are read from each form; what is wrong there is named."""

import gzip
import json
import re

import pytest

from tests.data.listed import write
from transformer_jax.commands.contrast.sets import read_set
from transformer_jax.data.contrast import Item, read_items
from transformer_jax.errors import UserError

ITEMS = [
    Item("Here is the lamp. <sep> It is new.", "Hier. <sep> Sie.", ("Hier. <sep> Er.",), "it"),
    Item("a", "b", ("c",)),
]


@pytest.mark.parametrize("name", ["items.tsv", "items.tsv.gz", "items.jsonl", "items.jsonl.gz"])
def test_every_form_of_a_file_gives_the_same_items(name, tmp_path) -> None:
    lines = []
    for item in ITEMS:
        fields = {"source": item.source, "right": item.right, "wrong": item.wrong[0]}
        fields |= {"category": item.category} if item.category else {}
        lines.append("\t".join(fields.values()) if ".tsv" in name else json.dumps(fields))
    text = "".join(line + "\n" for line in lines).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    assert list(read_items(tmp_path / name)) == ITEMS


def test_a_json_line_may_have_several_wrong_targets(tmp_path) -> None:
    record = {"source": "It", "right": "Es", "wrong": ["Er", "Sie"]}
    (tmp_path / "a.jsonl").write_text(json.dumps(record) + "\n")
    assert list(read_items(tmp_path / "a.jsonl")) == [Item("It", "Es", ("Er", "Sie"))]


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("a.tsv", "a\tb", ":2: expected source TAB right TAB wrong, and perhaps .* got 1 tabs"),
        ("a.tsv", "a\tb\tc\td\te", ":2: expected source TAB .* got 4 tabs"),
        ("a.tsv", "a\tb\tb", ":2: a wrong target is the right one"),
        ("a.tsv", "\tb\tc", ":2: an empty source"),
        ("a.tsv", "a\tb\t ", ":2: an empty target"),
        ("a.jsonl", '{"source": "", "right": ""}', r':2: no key "wrong" \(keys there: source'),
        ("a.jsonl", {"wrong": []}, ":2: a wrong target is missing"),
        ("a.jsonl", {"source": 1}, ':2: "source" must be of type str, got int'),
        ("a.jsonl", {"wrong": [1]}, ':2: "wrong" must be a text or'),
        ("a.jsonl", {"wrong": ["\udfff"]}, r":2: the target holds \\udfff, half of a character"),
        ("a.jsonl", {"category": "\ud83d"}, r":2: the category holds \\ud83d, half of a character"),
        ("a.txt", "", ": expected a name that ends in .tsv, .jsonl"),
    ],
)
def test_a_bad_line_is_named(name, line, message, tmp_path) -> None:
    record = {"source": "a", "right": "b", "wrong": "c"}
    good = "a\tb\tc" if name.endswith(".tsv") else json.dumps(record)
    line = line if isinstance(line, str) else json.dumps(record | line)
    (tmp_path / name).write_text(f"{good}\n{line}\n")
    with pytest.raises(UserError, match=re.escape(str(tmp_path / name)) + message) as error:
        list(read_items(tmp_path / name))
    assert "\n" not in str(error.value)


DOCUMENT = [
    ("Where is the lamp?", "Wo ist die Lampe?"),
    ("I sold it.", "Ich habe sie verkauft."),
    ("It was old.", "Sie war alt."),
]


def contrapro(number: int) -> dict[str, object]:
    """An item of the form of ContraPro: sentence `number` of `DOCUMENT`, made for this test."""
    english, german = DOCUMENT[number - 1]
    return {
        "src segment": english,
        "ref segment": german,
        "src pronoun": "It",
        "ref pronoun": "sie",
        "document id": "7_1_2.de",
        "segment id": number,
        "ante distance": 1,
        "errors": [{"contrastive": german.replace("ie", "")}, {"contrastive": "Es war alt."}],
    }


@pytest.fixture
def folder(tmp_path):
    """OpenSubtitles as ContraPro lays it out: one document."""
    place = tmp_path / "documents" / "7"
    place.mkdir(parents=True)
    write(place, DOCUMENT, name="7_1_2")
    return tmp_path


def test_contrapro_is_read_with_and_without_context(folder) -> None:
    (folder / "set.json").write_text(json.dumps([contrapro(3)], indent=2))
    (alone,) = read_set(folder / "set.json")
    assert alone == Item("It was old.", "Sie war alt.", ("S war alt.", "Es war alt."), "it:sie")
    (item,) = read_set(folder / "set.json", str(folder / "documents"), 1)
    assert item.source == "I sold it. <sep> It was old."
    assert item.right == "Ich habe sie verkauft. <sep> Sie war alt."
    assert item.wrong[1] == "Ich habe sie verkauft. <sep> Es war alt."
    (item,) = read_set(folder / "set.json", str(folder / "documents"), 9)
    assert item.source == "Where is the lamp? <sep> I sold it. <sep> It was old."


def test_what_is_wrong_in_a_set_is_named(folder) -> None:
    def refused(records: object, message: str, documents: str = "") -> None:
        text = records if isinstance(records, str) else json.dumps(records)
        (folder / "set.json").write_text(text)
        with pytest.raises(UserError, match=message) as error:
            read_set(folder / "set.json", str(folder / documents) if documents else None, 1)
        assert "\n" not in str(error.value)

    refused("{", r"set\.json: not JSON")
    refused([], r"set\.json: expected a list of items")
    refused([3], r"set\.json, item 1: expected a JSON object, got 3")
    without = contrapro(3)
    del without["errors"]
    refused([contrapro(3), without], 'item 2: no key "errors"')
    refused([contrapro(3) | {"errors": []}], "item 1: a wrong target is missing")
    half = contrapro(3) | {"ref segment": "Er \ud800"}
    refused([contrapro(3), half], r"set\.json, item 2: the target holds \\ud800, half of a")
    other = contrapro(3) | {"document id": "8.de"}
    refused([other], r"item 1: no document 8\.de in .*documents", "documents")
    elsewhere = contrapro(3) | {"segment id": 2}
    refused([elsewhere], "item 1: sentence 2 of 7_1_2.de is another one: 'I sold it.'", "documents")
