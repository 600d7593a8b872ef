"""Exceptions for mistakes of the user, not of the program."""

import os
import re


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


def first_line(error: BaseException) -> str:
    """The system's own words if the error holds them, else its first line."""
    text = str(error)
    system = re.search(r"os_error_code='(\d+)'", text)  # TensorStore's
    if system:
        return os.strerror(int(system[1]))
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = text.strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:300]
