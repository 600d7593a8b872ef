"""Parameters by path, such as `encoder/blocks_0/mixer/heads/query/kernel`."""

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flax import traverse_util

from transformer_jax.errors import UserError


def by_path(params: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of nested dicts, by path; `from_paths` is the inverse."""
    return dict(traverse_util.flatten_dict(params, sep="/"))


def from_paths(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts with these leaves."""
    return dict(traverse_util.unflatten_dict(leaves, sep="/"))


def matching(patterns: Sequence[str], paths: Iterable[str], key: str) -> list[str]:
    """The paths that at least one pattern matches, sorted.

    Args:
        patterns: `*` stands for any text, `/` included, as in `fnmatch`.
        paths: of parameters.
        key: the key of the config that holds the patterns, for the message.

    Raises:
        UserError: a pattern matches no path; names the nearest ones.
    """
    known = sorted(paths)
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            # The same parameter of other layers is no news.
            kinds = list(dict.fromkeys(re.sub(r"_\d+", "_*", path) for path in known))
            nearest = difflib.get_close_matches(pattern, kinds, n=3, cutoff=0)
            raise UserError(
                f"{key}: {pattern!r} matches no parameter; the nearest are {', '.join(nearest)}"
            )
    return [path for path in known if any(fnmatch.fnmatchcase(path, one) for one in patterns)]


def overlaid(params: dict[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """`params` with the leaves of `part` in place of its own."""
    return from_paths(by_path(params) | by_path(part))
