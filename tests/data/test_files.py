"""Reading text files: what ends a line, and one clear line for each mistake."""

import gzip
import json
import lzma
import os
from dataclasses import replace
from pathlib import Path

import pytest
from backports import zstd

from tests.data import listed
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources.base import BOUNDARY, Pair
from transformer_jax.data.sources.files import Files, read_lines
from transformer_jax.data.splits import count_pairs, fingerprint, read_documents, read_pairs
from transformer_jax.errors import UserError

PACK = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd.compress, "": bytes}


def write(path: Path, content: str | bytes) -> str:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(PACK.get(path.suffix, bytes)(data))
    return str(path)


def pairs(sources: list[str], targets: list[str] | tuple[str, ...] = ()) -> list[Pair]:
    files = Files(train_source=tuple(sources), train_target=tuple(targets))
    return list(files.pairs("train", ("en", "de")))


def failure(sources: list[str], targets: list[str] | tuple[str, ...] = ()) -> str:
    return listed.failure(Files(train_source=tuple(sources), train_target=tuple(targets)))


@pytest.mark.parametrize("suffix", PACK)
def test_only_newlines_end_a_line(tmp_path: Path, suffix: str) -> None:
    odd = "one\u2028two\x85three\x0bfour\x0cfive\x1csix\rseven"
    path = write(tmp_path / f"a.txt{suffix}", f"{odd}\r\n\n  last without end")
    assert list(read_lines(path)) == [odd, "", "  last without end"]


def test_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "\ufeffone\n\ufefftwo\n")
    assert list(read_lines(path)) == ["one", "\ufefftwo"]


def test_several_files_of_several_kinds_in_their_order(tmp_path: Path) -> None:
    first = write(tmp_path / "1.en", "a\nb\n"), write(tmp_path / "1.de.xz", "A\nB\n")
    table = write(tmp_path / "2.tsv.gz", "c\tC\n")
    record = json.dumps({"de": "D\nd", "en": "d", "id": 4})
    records = write(tmp_path / "3.jsonl", record + "\n")
    last = write(tmp_path / "4.en", "e"), write(tmp_path / "4.de", "E")
    read = pairs([first[0], table, records, last[0]], [first[1], last[1]])
    assert read == [("a", "A"), ("b", "B"), ("c", "C"), ("d", "D d"), ("e", "E")]


def test_each_file_ends_a_document_and_so_does_an_empty_line_on_both_sides(tmp_path: Path) -> None:
    plain = (
        write(tmp_path / "1.en", "a\n\n \nb\n\nc\n"),
        write(tmp_path / "1.de", "A\n\n\nB\nx\nC\r\n"),
    )
    table = write(tmp_path / "2.tsv", "d\tD\t1\n\t\t1\ne\tE\t1\nf\tF\t2\n")
    lines = [json.dumps({"en": w, "de": w.upper(), "document": n}) for w, n in ("g1", "h1", "i2")]
    records = write(tmp_path / "3.jsonl", "".join(f"{line}\n" for line in lines))
    files = Files(train_source=(plain[0], table, records), train_target=(plain[1],), documents=True)
    text = list(files.pairs("train", ("en", "de")))
    assert text == [
        *[("a", "A"), BOUNDARY, BOUNDARY, ("b", "B"), ("", "x"), ("c", "C"), BOUNDARY],
        *[("d", "D"), ("e", "E"), BOUNDARY, ("f", "F"), BOUNDARY],
        *[("g", "G"), ("h", "H"), BOUNDARY, ("i", "I"), BOUNDARY],
    ]
    data = DataConfig(files, "en", "de")
    assert ["".join(en for en, _ in pairs) for pairs in read_documents(data, "train")] == [
        *("a", "bc", "de", "f", "gh", "i")
    ]


def test_without_documents_an_empty_pair_is_a_pair_and_a_third_column_a_mistake(
    tmp_path: Path,
) -> None:
    plain = write(tmp_path / "1.en", "a\n\nb\n"), write(tmp_path / "1.de", "A\n\nB\n")
    assert pairs([plain[0]], [plain[1]]) == [("a", "A"), ("", ""), ("b", "B")]
    data = DataConfig(Files((plain[0],), (plain[1],)))
    assert list(read_pairs(data, "train"))[1] == ("", "")
    assert count_pairs(data, 99) == 3
    told = replace(data, source=replace(data.source, documents=True))
    assert count_pairs(told, 99) == 2
    assert fingerprint(told, "train") != fingerprint(data, "train")


def test_rows_without_a_document_are_named(tmp_path: Path) -> None:
    table = write(tmp_path / "a.tsv", "a\tb\t1\na\tb\n")
    records = write(tmp_path / "b.jsonl", '{"en": "a", "de": "b"}\n')
    for path, words in (
        (table, f"{table}:2: expected source TAB target TAB document, got 1 tabs"),
        (records, f'{records}:1: no key "document" (keys there: en, de), which data.source.docu'),
    ):
        assert listed.failure(Files(train_source=(path,), documents=True)).startswith(words)


@pytest.mark.parametrize(("sources", "targets"), [(3, 5), (5, 3), (4, 5), (5, 4)])
def test_unequal_lengths_give_both_counts(tmp_path: Path, sources: int, targets: int) -> None:
    en = write(tmp_path / "a.en", "x\n" * sources)
    de = write(tmp_path / "a.de", "y\n" * targets)
    message = failure([en], [de])
    assert f"{en} has {sources} lines" in message
    assert f"{de} has {targets}" in message


@pytest.mark.parametrize("suffix", PACK)
def test_not_utf8_names_file_and_line(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"a.en{suffix}", "ok\nähnlich\n".encode() + b"f\xfcr\n")
    target = write(tmp_path / "a.de", "1\n2\n3\n")
    message = failure([path], [target])
    assert message.startswith(f"{path}:3: not UTF-8")
    assert "0xfc at column 2" in message


def test_missing_empty_and_unreadable_files(tmp_path: Path) -> None:
    good = write(tmp_path / "a.de", "x\n")
    missing = str(tmp_path / "nope.en")
    assert failure([missing], [good]) == f"{missing}: no such file (data.source.train_source)"
    with pytest.raises(UserError, match="cannot be read .no such file or directory."):
        list(read_lines(missing))
    for suffix in PACK:
        empty = write(tmp_path / f"empty.en{suffix}", "")
        assert failure([empty], [good]).startswith(f"{empty}: the file is empty")
    assert "is a directory" in failure([str(tmp_path)], [good])


@pytest.mark.parametrize("name", ["gzip", "xz", "zstd"])
def test_a_damaged_packed_file(tmp_path: Path, name: str) -> None:
    suffix = {"gzip": ".gz", "xz": ".xz", "zstd": ".zst"}[name]
    lines = "".join(f"{i} {os.urandom(20).hex()}\n" for i in range(20_000))
    target = write(tmp_path / "a.de", lines)
    whole = PACK[suffix](lines.encode())
    cut = (whole[: len(whole) // 2], whole[:-1], b"plain\n", whole[:-9] + bytes([0, 1] * 5))
    for number, data in enumerate(cut):
        path = tmp_path / f"{number}.en{suffix}"
        path.write_bytes(data)
        assert failure([str(path)], [target]).startswith(f"{path}: damaged {name} file after line ")
    path.write_bytes(whole + whole)  # as `cat` joins them
    assert len(list(read_lines(path))) == 40_000


@pytest.mark.parametrize(
    ("name", "line", "expected"),
    [
        ("a.tsv", "no tab", "expected source TAB target, got 0 tabs"),
        ("a.tsv", "a\tb\tc", "expected source TAB target, got 2 tabs"),
        ("a.jsonl", "{broken", "not JSON"),
        ("a.jsonl", "", "not JSON"),
        ("a.jsonl", '["a", "b"]', "expected a JSON object"),
        ("a.jsonl", '{"en": "a", "fr": "b"}', 'no key "de" (keys there: en, fr)'),
        ("a.jsonl", '{"en": "a", "de": 3}', '"de" must be of type str, got int'),
        ("a.jsonl", '{"en": "a", "de": "b \\ud83d"}', '"de" holds \\ud83d, half of a character'),
        ("a.jsonl", "[" * 100_000, "not JSON (maximum recursion depth"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, name: str, line: str, expected: str) -> None:
    good = "a\tb" if name == "a.tsv" else '{"en": "a", "de": "b"}'
    path = write(tmp_path / name, f"{good}\n{line}\n")
    message = failure([path])
    assert message.startswith(f"{path}:2: ")
    assert expected in message
