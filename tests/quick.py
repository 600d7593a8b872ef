"""Which rows of a table the quick suite runs."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest


def quick(rows: Iterable[Any], *kept: Any) -> Iterator[Any]:
    """The rows, of which those that are not kept are slow tests.

    For a table whose rows compile whole programs and differ little in what they can find.
    """
    rows = list(rows)
    assert set(kept) <= set(rows), set(kept) - set(rows)
    return (row if row in kept else pytest.param(row, marks=pytest.mark.slow) for row in rows)
