"""Values out of lines of JSON, with refusals that name the line."""

import json
from typing import Any

from transformer_jax.errors import UserError, as_user_error


def read_json(text: str, place: str) -> Any:
    """What a text in JSON holds.

    Raises:
        UserError: it is not JSON; begins with the place.
    """
    with as_user_error(f"{place}: not JSON", ValueError, RecursionError):
        return json.loads(text)


def json_field(record: Any, key: str, place: str, types: Any = str, advice: str = "") -> Any:
    """A value of a JSON object.

    Raises:
        UserError: it is no object, or has no such key, which ends with the advice, or a value of
            another type.
    """
    if not isinstance(record, dict):
        raise UserError(f"{place}: expected a JSON object, got {str(record)[:40]}")
    if key not in record:
        have = ", ".join(map(str, record)) or "none"
        raise UserError(f'{place}: no key "{key}" (keys there: {have}){advice}')
    if not isinstance(record[key], types):
        wanted, found = getattr(types, "__name__", types), type(record[key]).__name__
        raise UserError(f'{place}: "{key}" must be of type {wanted}, got {found}')
    return record[key]


def refuse_half_characters(text: str, what: str) -> None:
    """Checks a text out of JSON, which can spell what no UTF-8 text can hold.

    Raises:
        UserError: the text holds half of a character; begins with `what`, its name.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what} holds \\u{ord(text[error.start]):04x}, half of a character "
            "(a lone surrogate); correct it or leave it out"
        ) from None
