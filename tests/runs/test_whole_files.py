"""Files and folders that appear whole, though others write the same name at the same time."""

from pathlib import Path

import pytest

from transformer_jax.errors import UserError
from transformer_jax.formats.export import write
from transformer_jax.paths import as_path, write_whole


def test_writers_with_the_same_process_number_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in two containers that share a disk: one writes while the other is about to rename."""
    path = as_path(tmp_path / "totals.json")
    write_bytes = type(path).write_bytes

    def interrupted(temporary: Path, content: bytes) -> int:
        written = write_bytes(temporary, content)
        if content == b"first":
            write_whole(path, b"second")
            assert path.read_bytes() == b"second"
        return written

    monkeypatch.setattr(type(path), "write_bytes", interrupted)
    write_whole(path, b"first")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [tmp_path / "totals.json"]


def test_of_two_exports_into_one_folder_the_first_that_is_complete_stays(tmp_path: Path) -> None:
    folder = as_path(tmp_path / "out")

    class Exporter:
        def __init__(self, content: str, meanwhile: "Exporter | None" = None) -> None:
            self.content, self.meanwhile = content, meanwhile

        def write(self, _: object, temporary: Path) -> None:
            (temporary / "model").write_text(self.content)
            if self.meanwhile:
                write(self.meanwhile, None, folder)  # type: ignore[arg-type]

    with pytest.raises(UserError, match="out already exists"):
        write(Exporter("late", Exporter("early")), None, folder)  # type: ignore[arg-type]
    assert (folder / "model").read_text() == "early"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
