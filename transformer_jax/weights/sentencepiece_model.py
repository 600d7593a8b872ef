"""SentencePiece's own files."""

from typing import Any

from transformer_jax.errors import UserError


def load_processor(model: bytes, name: str) -> Any:
    """The `SentencePieceProcessor` of a model file's bytes; UserError if they are not one."""
    import sentencepiece

    processor: Any = sentencepiece.SentencePieceProcessor()
    try:
        if not model:
            raise RuntimeError("empty file")
        processor.LoadFromSerializedProto(model)
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(
            f"{name} is not a SentencePiece model or is damaged; "
            "give a .model file written by spm_train, or train a new one"
        ) from error
    return processor
