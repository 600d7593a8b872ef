"""Broken variants, for the tests that the suites reject them."""

from typing import Any


def changed(cls: type, name: str, change: Any) -> Any:
    """A subclass whose method gives `change(self, what it gave, *arguments)`, or with a value."""

    def method(self, *arguments):
        return change(self, getattr(cls, name)(self, *arguments), *arguments)

    return type(cls.__name__, (cls,), {name: method if callable(change) else change})
