"""The rows of a comparison: a recipe, and what differs from it in each row."""

import dataclasses
import functools
import hashlib
import itertools
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import jax

from transformer_jax.config import Config, override
from transformer_jax.errors import UserError, as_user_error
from transformer_jax.models import api
from transformer_jax.parallel.mesh import MeshConfig
from transformer_jax.runs.start import begin_new
from transformer_jax.settings.variants import split

_LOGGER = logging.getLogger(__name__)

#: Sizes of the feed-forward networks that equal parameters are searched among are multiples of it.
MULTIPLE = 8
#: Up to this difference in parameters a row keeps its sizes; up to twice it, it is compared.
TOLERANCE = 0.025

#: Bytes of the longest name of a file on the usual file systems.
_LONGEST = 255

#: What --seeds counts, in each row alike.
SEEDS = ("train.seed", "batch.seed")


@dataclass(frozen=True)
class Row:
    """One model of a comparison, at a point of its grid.

    Attributes:
        name: what differs, as tables and plots show it.
        folder: a name for its runs.
        config: the recipe with what differs.
        parameters: of its model.
        changes: the overrides that make the config out of the recipe.
        point: its values of the grid; "" without one.
    """

    name: str
    folder: str
    config: Config
    parameters: int
    changes: Mapping[str, str]
    point: str = ""


def split_vary(text: str, flag: str = "--vary") -> list[dict[str, str]]:
    """The overrides of each row that `--vary=KEYS=VALUES` stands for.

    Several keys, by commas, all get the same value. Values are separated by commas outside of
    brackets; a value that has commas itself, such as a pattern of mixers, is in [ ].

    Raises:
        UserError: there is no key, or no value; a bracket is open; or the key is a seed.
    """
    keys, _, values = text.partition("=")
    with as_user_error(f"{flag}={text}:", ValueError):
        found = split(values)
    if not keys or not found:
        raise UserError(
            f"{flag}={text}: expected KEY=VALUE,VALUE, such as model.decoder.mixers=full,mamba"
        )
    # A key is the same with the flags' prefix.
    names = [key.strip().removeprefix("config.") for key in keys.split(",")]
    for name in set(names) & {*SEEDS}:
        raise UserError(f"{flag}={text}: --seeds=N trains each row with N values of {name}")
    return [
        dict.fromkeys(names, v[1:-1] if v.startswith("[") and v.endswith("]") else v) for v in found
    ]


def split_grid(texts: Sequence[str]) -> list[dict[str, str]]:
    """The overrides of each point of the grid that all `--grid=KEYS=VALUES` span together."""
    axes = [split_vary(text, "--grid") for text in texts]
    return [functools.reduce(dict.__or__, each, {}) for each in itertools.product(*axes)]


def make_grid(
    config: Config,
    varied: Sequence[Mapping[str, str]],
    grid: Sequence[Mapping[str, str]],
    *,
    equal_parameters: bool,
) -> list[list[Row]]:
    """Each row of `make_rows` at each point of a grid, which has one point if it changes nothing.

    Raises:
        UserError: as `make_rows`, or two points are one.
    """
    by_point = [make_rows(config, varied, at, equal_parameters=equal_parameters) for at in grid]
    rows = list(map(list, zip(*by_point, strict=True)))
    for one, other in itertools.combinations(rows[0], 2):
        if one.config == other.config:
            raise UserError(f"--grid: {one.point} and {other.point} are the same; leave one out")
    return rows


def make_rows(
    config: Config,
    varied: Sequence[Mapping[str, str]],
    point: Mapping[str, str] = MappingProxyType({}),
    *,
    equal_parameters: bool,
) -> list[Row]:
    """The rows in their order; the first one is what the others are compared with.

    Args:
        config: the recipe, with what all rows have in common.
        varied: the overrides of each row.
        point: further overrides of all rows.
        equal_parameters: whether `model.d_ff` of the later rows is chosen so that they have as many
            parameters as the first one, in steps of `MULTIPLE`.

    Raises:
        UserError: an override is not valid, two rows are one, or no `model.d_ff` gives a row as
            many parameters.
    """
    rows: list[Row] = []
    at = ", ".join(point.values())
    for own in varied:
        name, changes = ", ".join(dict.fromkeys(own.values())), {**own, **point}
        row_config = override(config, changes, prefix="--vary/--grid=" if point else "--vary=")
        parameters = num_params(row_config)
        adapts = equal_parameters and "model.d_ff" not in changes
        if rows and adapts and _difference(parameters, rows[0].parameters) > TOLERANCE:
            row_config = with_parameters(row_config, rows[0].parameters)
            changes["model.d_ff"] = str(row_config.model.d_ff)
            parameters = num_params(row_config)
            if _difference(parameters, rows[0].parameters) > 2 * TOLERANCE:
                raise UserError(
                    f"--vary: {name} has {parameters:,} parameters even with model.d_ff="
                    f"{row_config.model.d_ff}, and {rows[0].name} {rows[0].parameters:,}: "
                    "leave it out, or compare with --unequal"
                )
        folder = _file_name(re.sub(r"\W+", "_", name).strip("_"))
        if folder in [row.folder.partition("/")[0] for row in rows]:
            keys = ",".join(own)
            name = f"{name} ({keys})"
            folder = _file_name(re.sub(r"\W+", "_", f"{folder}_{keys}"))
        if row_config in [row.config for row in rows]:
            raise UserError(f"--vary: {name} is the same model as another row; leave one out")
        if point:
            folder += "/" + _file_name(re.sub(r"[^\w.+-]+", "_", at))
        rows.append(Row(name, folder, row_config, parameters, changes, at))
    return rows


def _file_name(text: str) -> str:
    """The text, or its beginning and a hash where a file system would not take it for a name."""
    if len(text.encode()) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 8]}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def num_params(config: Config) -> int:
    """The number of parameters of the model that a recipe trains; no text is read."""
    here = dataclasses.replace(config, mesh=MeshConfig())  # of other devices than this process's
    return _size(begin_new(here, None, jax.devices()).model)


_size = functools.cache(api.num_params)


def with_parameters(config: Config, parameters: int) -> Config:
    """The recipe with the `model.d_ff` whose number of parameters is nearest to a given one."""

    def sized(d_ff: int) -> Config:
        return dataclasses.replace(config, model=dataclasses.replace(config.model, d_ff=d_ff))

    one, two = (num_params(sized(count * MULTIPLE)) for count in (1, 2))
    steps = 1 + round((parameters - one) / (two - one))  # parameters are affine in d_ff
    return sized(MULTIPLE * max(1, steps))


def _difference(parameters: int, wanted: int) -> float:
    return abs(parameters / wanted - 1)
