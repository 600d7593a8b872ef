"""Parameters by path, such as `encoder/blocks_0/mixer/heads/query/kernel`."""

import difflib
import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from flax import traverse_util

from transformer_jax.errors import UserError

#: The entry of the parameters that is measured, not trained (`models/quantization.py`).
MEASURED = "alphas"


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


def trained_paths(frozen: Sequence[str] | None, params: Mapping[str, Any]) -> frozenset[str]:
    """The paths of the parameters that training changes.

    Args:
        frozen: `train.frozen`, patterns of those that keep their values.
        params: arrays, or what stands for them.

    Raises:
        UserError: a pattern matches nothing, or nothing is left to train.
    """
    paths = {path for path in by_path(params) if not path.startswith(f"{MEASURED}/")}
    if frozen is None:
        return frozenset(path for path in paths if path.startswith("lora/")) or frozenset(paths)
    trained = paths - set(matching(frozen, paths, "train.frozen"))
    if not trained:
        raise UserError(f"train.frozen={','.join(frozen)}: nothing is left to train")
    return frozenset(trained)


def subset(params: Mapping[str, Any], paths: Collection[str]) -> dict[str, Any]:
    """Nested dicts of the leaves of `params` at some paths."""
    return from_paths({path: leaf for path, leaf in by_path(params).items() if path in paths})


def overlaid(params: dict[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """`params` with the leaves of `part` in place of its own."""
    return from_paths(by_path(params) | by_path(part))
