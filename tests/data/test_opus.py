"""Corpora of OPUS by name, through the real OpusTools from a local stand-in of its server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data import opus_server
from tests.data.listed import failure
from tests.oracles import need
from transformer_jax.data.sources.base import Pair
from transformer_jax.data.sources.opus import Opus
from transformer_jax.errors import UserError

need("opustools")

PAIRS = [(f"a dog {i}", f"ein Hund {i}") for i in range(500)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[opus_server.Server]:
    with opus_server.serve(monkeypatch) as server:
        server.add("Tatoeba-v2023-04-12", PAIRS)
        server.add("ELRC-2736-vaccination-v1", PAIRS[:3])
        yield server


@pytest.fixture
def source(tmp_path: Path) -> Opus:
    return Opus(corpora=("Tatoeba-v2023-04-12",), data_dir=str(tmp_path))


def read(source: Opus, languages: tuple[str, str] = ("en", "de")) -> list[Pair]:
    return list(source.pairs("train", languages))


def test_corpora_are_read_in_their_order_and_downloaded_once(server, tmp_path: Path) -> None:
    source = Opus(
        corpora=("ELRC-2736-vaccination-v1", "Tatoeba-v2023-04-12"), data_dir=str(tmp_path)
    )
    assert read(source) == PAIRS[:3] + PAIRS
    asked = len(server.requests)
    assert asked == 4  # for each, its place and its archive
    assert read(source, ("de", "en")) == [pair[::-1] for pair in PAIRS[:3] + PAIRS]
    assert source.fingerprint("train", ("en", "de")) != source.fingerprint("train", ("de", "en"))
    assert len(server.requests) == asked
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".zst", ".json"}


def test_a_corpus_that_opus_lacks_is_named_with_the_nearest(server, tmp_path: Path) -> None:
    del server
    source = Opus(corpora=("Tatoeba-v2023-04-21",), data_dir=str(tmp_path))
    assert failure(source) == (
        "data.source: OPUS has no Tatoeba-v2023-04-21 for de and en "
        "(did you mean Tatoeba-v2023-04-12?)"
    )


@pytest.mark.parametrize("name", ["Tatoeba", "../Tatoeba-v1"])
def test_a_name_without_a_version_asks_for_one(name: str) -> None:
    for split in ("train", "validation"):
        source = Opus(corpora=(name,), validation=(name,))
        with pytest.raises(UserError, match=r"is no corpus of OPUS with its version, such as"):
            source.has(split)


@pytest.mark.parametrize("cut", [1, 5000])
def test_what_ends_early_is_one_line_and_not_kept(server, source, cut: int, capfd) -> None:
    server.cut = cut
    message = failure(source)
    expected = (
        "data.source: Tatoeba-v2023-04-12 for de and en could not be downloaded from OPUS to "
    )
    assert message.startswith(expected) and "got only" in message
    assert capfd.readouterr().out == ""
    server.cut = 0
    assert read(source) == PAIRS


def test_a_server_that_does_not_answer_is_one_line(source, monkeypatch) -> None:
    with opus_server.serve(monkeypatch):
        pass
    assert "could not be downloaded from OPUS" in failure(source)


def test_an_archive_without_the_language_is_one_line(server, source, tmp_path: Path) -> None:
    (name, *_) = server.archives
    server.archives[name] = server.archives[name].replace(b"a.de-en.de", b"a.de-en.fr")
    assert "its archive has 0 files of de-en in de" in failure(source)
    assert not list(tmp_path.rglob("*.zst"))
