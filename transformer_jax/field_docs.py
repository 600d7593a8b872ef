"""The comments that document the fields of config classes, for `--help` and for the docs."""

import dataclasses
import functools
import inspect
import re


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """Name of a dataclass field -> its comment: `#: text` on its line or on the lines below."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            docs |= _comments(inspect.getsource(base))
    return docs


def _comments(source: str) -> dict[str, str]:
    docs: dict[str, list[str]] = {}
    name = None
    for line in source.splitlines():
        code, mark, comment = line.partition("#: ")
        if field := re.match(r"\s+(\w+): (?!ClassVar)", code):
            name = field[1]
        elif re.match(r" {0,4}[^\s)]", code):  # not a default that goes over several lines
            name = None
        if mark and name:
            docs.setdefault(name, []).append(comment.strip())
    # `None` is for Python; a flag spells it `none`.
    return {name: " ".join(lines).replace("None = ", "none = ") for name, lines in docs.items()}
