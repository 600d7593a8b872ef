"""Exceptions for mistakes of the user, not of the program."""

import contextlib
import difflib
import importlib
import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

#: What to do when a training cannot write a file beside its checkpoints.
STILL_WHOLE = (
    "; stopped, the checkpoints are whole: make room there and start the same command again"
)


class UserError(Exception):
    """Bad input: a file, a line, a config key.

    The message is one line that names what is wrong, where, and what to do. The command line
    prints it as `error: ...` without a traceback and exits with status 2. Library callers can
    catch it.
    """


class CannotSave(UserError):
    """A checkpoint could not be written: a full disk, a quota, a missing folder.

    Threads of the writer may still run, and may never end: a program that has nothing else to do
    should not wait for them.
    """


class Diverged(UserError):
    """A training broke off because its loss was not finite in too many steps in a row."""


def optional(module: str, use: str, extra: str) -> Any:
    """A module of a package that is not always installed.

    Args:
        module: its name.
        use: what needs it, for the message.
        extra: of this package, that installs it.

    Raises:
        UserError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"{use} needs {module.partition('.')[0]}: pip install 'transformer-jax[{extra}]' (in a "
            f"clone ./run setup {extra})"
        ) from error


@contextlib.contextmanager
def as_user_error(
    what: str,
    *kinds: type[Exception],
    then: str = "",
    named: bool = False,
    become: type[UserError] = UserError,
) -> Iterator[None]:
    """Around calls of other libraries: their errors become `WHAT (the error's first line)THEN`.

    Args:
        what: went wrong, and where; after a colon at its end the error's line has no parentheses.
        kinds: of errors that become a `UserError`; others, and a `UserError`, stay what they are.
        then: what to do, after the error's own words.
        named: these begin with the error's type, where libraries raise many.
        become: the type that they get.
    """
    try:
        yield
    except UserError:
        raise
    except kinds as error:
        reason = f"{type(error).__name__}: " * named + first_line(error)
        reason = reason if what.endswith(":") else f"({reason})"
        raise become(f"{what} {reason}{then}") from error


@contextlib.contextmanager
def placed(where: str) -> Iterator[None]:
    """A `UserError` from inside gets its place, such as a key or a file, in front of it."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def first_line(error: BaseException) -> str:
    """The system's own words if the error holds them, else its first line."""
    text = str(error)
    system = re.search(r"os_error_code='(\d+)'", text)  # TensorStore's
    if system:
        return os.strerror(int(system[1]))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (text.strip() or type(error).__name__).splitlines()[0][:300]


def first_error(error: "ValidationError") -> "ErrorDetails":
    """The first mistake that Pydantic names, in our words: `must be greater than 0`.

    A value that fits no member of a union, such as `auto` or a number, has the reasons of all.
    """
    errors = error.errors(include_url=False)
    first = errors[0]
    place, reason = first["loc"], first["msg"]
    if place and str(place[-1]).endswith("]"):  # such as literal['auto'], a member of a union
        place = place[:-1]
        reason = " or ".join(each["msg"] for each in errors if each["loc"][:-1] == place)
    reason = reason.removeprefix("Value error, ").replace("Input should be", "must be")
    return {"type": first["type"], "loc": place, "msg": reason, "input": first["input"]}


def sentence(error: "ValidationError") -> str:
    """One line: the dotted key of the first mistake and what is wrong there."""
    first = first_error(error)
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def hint(name: Any, known: Iterable[str], prefix: str = "") -> str:
    """` (did you mean another?)` where a known name is similar, else nothing."""
    nearest = difflib.get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {prefix}{nearest[0]}?)" if nearest else ""
