"""SentencePiece's own files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import UserError, as_user_error


def load_processor(model: bytes, name: str) -> Any:
    """The `SentencePieceProcessor` of a model file's bytes; UserError if they are not one."""
    import sentencepiece

    processor: Any = sentencepiece.SentencePieceProcessor()
    advice = "; give a .model file written by spm_train, or train a new one"
    damaged = f"{name} is not a SentencePiece model or is damaged"
    with as_user_error(damaged, RuntimeError, ValueError, OSError, then=advice):
        if not model:
            raise RuntimeError("empty file")
        processor.LoadFromSerializedProto(model)
    return processor


def open_model(folder: Path, names: Sequence[str], what: str) -> tuple[bytes, Any]:
    """The content and the processor of the first of these files that a folder has.

    Raises:
        UserError: it has none, or it is damaged; `what` says what it is, or where it comes from.
    """
    path = next((folder / name for name in names if (folder / name).is_file()), None)
    if path is None:
        raise UserError(f"{folder}: {' or '.join(names)} is missing, {what}")
    with as_user_error(f"{path}: cannot be read", OSError):
        content = path.read_bytes()
    return content, load_processor(content, str(path))
