"""Sets of the `datasets` library in folders: each format, and one clear line for each mistake."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import hub_server
from tests.data.listed import failure
from tests.oracles import need
from transformer_jax.data.sources.base import Pair
from transformer_jax.data.sources.huggingface import HuggingFaceSet
from transformer_jax.errors import UserError

need("datasets")

ODD = [
    ("a dog", "ein Hund"),
    ("None", "042"),  # what pandas would take for nothing, and for a number
    ("null", ""),
    ('a "b", c', "ü\u2028ß"),
]


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's own files are not the user's, and nothing is asked of the hub."""
    import datasets

    home = tmp_path_factory.mktemp("home")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(home))


def write(folder: Path, kind: str, pairs: list[Pair], names: tuple[str, str] = ("en", "de")) -> str:
    """A folder with a train set in one file of a kind."""
    folder.mkdir(exist_ok=True)
    rows = [dict(zip(names, pair, strict=True)) for pair in pairs]
    path = folder / f"train.{kind}"
    if kind == "parquet":
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist(rows), path)
    elif kind == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(rows)
    elif kind == "translation.jsonl":
        path.write_text("".join(json.dumps({"translation": row}) + "\n" for row in rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder)


def read(source: HuggingFaceSet) -> list[Pair]:
    return list(source.pairs("train", ("en", "de")))


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "translation.jsonl", "csv"])
def test_each_format_gives_the_same_pairs(kind: str, tmp_path: Path) -> None:
    assert read(HuggingFaceSet(write(tmp_path, kind, ODD))) == ODD


def test_a_column_of_numbers_in_csv_is_text(tmp_path: Path) -> None:
    pairs = [*[("007", "7.0")] * 30_000, ("x", "y")]  # several of the library's parts
    assert read(HuggingFaceSet(write(tmp_path, "csv", pairs))) == pairs


def test_columns_of_other_names(tmp_path: Path) -> None:
    folder = write(tmp_path, "jsonl", ODD, ("english", "german"))
    source = HuggingFaceSet(folder, columns=("en=english", "de=german"))
    assert read(source) == ODD
    assert failure(HuggingFaceSet(folder)).startswith(
        f"data.source.path={folder}: no column en; it has english, german: data.source.columns="
    )
    assert "write the column of each language" in failure(HuggingFaceSet(folder, columns=("en",)))
    other = HuggingFaceSet(folder, columns=("en=german", "de=english"))
    assert source.fingerprint("train", ("en", "de")) != other.fingerprint("train", ("en", "de"))


@pytest.mark.parametrize("nothing", [0, 1, 2])
@pytest.mark.parametrize("form", ["columns", "translation", "no translation"])
def test_rows_without_a_text_are_left_out_of_a_training_and_refused_elsewhere(
    nothing: int, form: str, tmp_path: Path, logged
) -> None:
    rows: list[Any] = [{"en": f"a\n{i}\r\n", "de": f"A{i}"} for i in range(3)]
    want = [(f"a {i} ", f"A{i}") for i in range(3) if i != nothing]
    rows[nothing] = None if form == "no translation" else rows[nothing] | {"de": None}
    if form != "columns":
        rows = [{"translation": row} for row in rows]
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = HuggingFaceSet(str(tmp_path))
    assert read(source) == read(source) == want
    (line,) = logged()  # once
    assert line.endswith("1 of 3 rows of its split train have null in place of a text: left out")
    with pytest.raises(UserError, match=f"row {nothing + 1} of its split test has null in place"):
        list(source.pairs("test", ("en", "de")))


def test_what_cannot_be_read_is_one_line_that_names_it(tmp_path: Path) -> None:
    nothing = failure(HuggingFaceSet(str(tmp_path)))
    assert nothing.startswith(f"data.source.path={tmp_path}: cannot be opened (")
    french = write(tmp_path / "french", "translation.jsonl", ODD, ("en", "fr"))
    assert ": no column de; it has en, fr" in failure(HuggingFaceSet(french))
    damaged = write(tmp_path / "damaged", "parquet", ODD)
    path = tmp_path / "damaged" / "train.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    words = f"data.source.path={damaged}: cannot read its split train ("
    assert words in failure(HuggingFaceSet(damaged))
    numbers = write(tmp_path / "numbers", "jsonl", [("a", 3)])  # type: ignore[list-item]
    assert "the column de holds 3, which is int and not text" in failure(HuggingFaceSet(numbers))


def test_splits_of_other_names(tmp_path: Path) -> None:
    folder = write(tmp_path, "jsonl", ODD)
    (tmp_path / "train.jsonl").rename(tmp_path / "test.jsonl")
    assert read(HuggingFaceSet(folder, train_split="test")) == ODD
    assert not HuggingFaceSet(folder).has("validation")
    with pytest.raises(UserError, match=f"path={folder} has no split dev; it has test$"):
        HuggingFaceSet(folder, validation_split="dev").has("validation")


def test_a_folder_that_changes_is_read_again(tmp_path: Path) -> None:
    source = HuggingFaceSet(write(tmp_path, "jsonl", ODD))
    before = source.fingerprint("train", ("en", "de"))
    write(tmp_path, "jsonl", ODD[::-1])
    assert read(source) == ODD[::-1]
    assert source.fingerprint("train", ("en", "de")) != before


def test_a_set_of_the_hub_is_known_by_its_files(tmp_path: Path) -> None:
    """From a local stand-in, and in processes of their own, as what a name means is asked once."""

    def ask(server: hub_server.Server, revision: str = "main") -> str:
        code = (
            "from transformer_jax.errors import UserError\n"
            "from transformer_jax.data.sources.huggingface import HuggingFaceSet\n"
            f"source = HuggingFaceSet('some/set', name='de-en', revision={revision!r})\n"
            "try:\n"
            "    print(list(source.pairs('train', ('en', 'de'))), end=' ')\n"
            "    print(source.fingerprint('train', ('en', 'de')))\n"
            "except UserError as error: print(error)\n"
        )
        places = {"HF_ENDPOINT": server.address, "HF_HOME": str(tmp_path), "HF_TOKEN": ""}
        command = [sys.executable, "-c", code]
        return subprocess.check_output(command, text=True, env=os.environ | places).strip()

    about = (
        "---\nconfigs:\n- config_name: de-en\n  data_files:\n"
        "  - split: train\n    path: de-en/train.jsonl\n---\n"
    )
    rows = [json.dumps({"translation": {"en": en, "de": de}}) + "\n" for en, de in ODD]

    def files(text: str, rows: list[str]) -> dict[str, bytes]:
        return {"README.md": text.encode(), "de-en/train.jsonl": "".join(rows).encode()}

    with hub_server.serve() as server:
        server.models["some/set"] = {
            "main": files(about, rows),
            "reworded": files(f"{about}More words.\n", rows),
            "shorter": files(about, rows[:2]),
        }
        first = ask(server)
        assert first.startswith(repr(ODD))
        assert ask(server, "reworded") == first
        shorter = ask(server, "shorter")
        assert shorter.startswith(repr(ODD[:2]))
        assert shorter.split()[-1] != first.split()[-1]
        server.models.clear()
        missing = ask(server, "other")
        assert missing.startswith("data.source.path=some/set: cannot be opened (")
        assert "\n" not in missing
