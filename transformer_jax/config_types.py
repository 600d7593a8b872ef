"""Field types for config dataclasses that can be given on a command line."""

from typing import Annotated, Any

from pydantic import BeforeValidator


def _split_commas(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part for part in (piece.strip() for piece in value.split(",")) if part)
    return value


#: A tuple of strings; on the command line one string with commas: `a.txt,b.txt`.
Strings = Annotated[tuple[str, ...], BeforeValidator(_split_commas)]
