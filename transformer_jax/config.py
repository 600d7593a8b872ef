"""The config of a run: its parts, their validation, the flags that change it, config.json."""

import contextlib
import dataclasses
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Ge, Gt, Lt
from pydantic import PositiveInt, ValidationError
from pydantic_core import PydanticSerializationError

from transformer_jax.data.config import BatchConfig, DataConfig, TokenizerConfig
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError, as_user_error, first_error, hint
from transformer_jax.metrics.base import Criterion
from transformer_jax.metrics.criteria import CRITERIA, Bleu
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.teachers import TEACHERS, NoTeacher, Teacher
from transformer_jax.optimizers.optimizers import OPTIMIZERS, Adam, Optimizer
from transformer_jax.optimizers.schedules import SCHEDULES, RsqrtSchedule, Schedule
from transformer_jax.parallel.mesh import MeshConfig
from transformer_jax.settings.keys import Key, adapter, keys_of
from transformer_jax.settings.types import (
    MAY_CHANGE,
    USUAL,
    FileName,
    Mark,
    Positive,
    Rate,
    Strings,
)
from transformer_jax.settings.variants import FAMILIES, ManyOf, OneOf, mark_of
from transformer_jax.trackers.base import Tracker
from transformer_jax.trackers.registry import TRACKERS


@dataclass(frozen=True)
class TrainConfig:
    """How long to train, and what to do on the way."""

    steps: Annotated[PositiveInt, USUAL] = 100_000  #: updates of the parameters
    minutes: Annotated[Positive, USUAL] | None = None
    #: how long the training may take on the machine of its first start, preparation included:
    #: lowers steps to what fits, with a warm-up of a tenth of them at most to the same peak; none =
    #: all steps
    optimizer: Annotated[Optimizer, OneOf(OPTIMIZERS)] = Adam()  #: turns gradients into updates
    schedule: Annotated[Schedule, OneOf(SCHEDULES)] = RsqrtSchedule()  #: of the learning rate
    clip_norm: Positive | None = None  #: largest global norm of a gradient; none = no limit
    label_smoothing: Rate = 0.1  #: share of the target distribution that is spread over all pieces
    alignment_weight: Positive | None = None
    #: of the loss of model.cross's alignment_head by data.source.train_alignment; none = no such
    #: loss
    teacher: Annotated[Teacher, OneOf(TEACHERS)] = NoTeacher()
    #: a trained model whose predictions have a share in each label (docs/students.md)
    accumulate: PositiveInt = 1  #: cut each batch into this many parts and add their gradients
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    #: of the gradients that devices add up, if mesh.data alone is more than 1; bfloat16 is faster
    ema_decay: Annotated[float, Gt(0), Lt(1)] | None = None
    #: decay of a moving average of the parameters, which evaluation uses; none = no average
    init_from: Annotated[FileName, USUAL] | None = None
    #: a run folder: begin with the parameters of its best checkpoint; none = random ones
    frozen: Strings | None = None
    #: patterns of the paths of parameters that keep their values, such as encoder/*;
    #: none = none of them, or with model.adapter=lora all but the adapters
    seed: Annotated[int, Ge(0), Lt(2**32)] = 0  #: of the initial parameters and of dropout
    log_every: Annotated[PositiveInt, MAY_CHANGE] = 50  #: steps between lines of metrics
    trackers: Annotated[tuple[Tracker, ...], ManyOf(TRACKERS, least=0), MAY_CHANGE] = ()
    #: services that show the metrics, too, such as wandb(project=mine)
    evaluate_every: Annotated[PositiveInt, MAY_CHANGE] = 1000
    #: steps between greedy translations of validation text
    evaluate_sentences: Annotated[PositiveInt, MAY_CHANGE] = 500
    #: at most, of the validation set of a direction
    best_by: Annotated[Criterion, OneOf(CRITERIA)] = Bleu()  #: what selects the best checkpoint
    early_stopping: Annotated[PositiveInt, MAY_CHANGE] | None = None
    #: stop after this many evaluations without a better score; none = never
    max_bad_steps: PositiveInt = 10
    #: stop after this many steps in a row whose loss or gradient is not finite
    checkpoint_every: Annotated[PositiveInt, MAY_CHANGE] = 1000  #: steps between checkpoints
    keep_checkpoints: Annotated[PositiveInt, MAY_CHANGE] = 5  #: the newest N are kept, and the best


@dataclass(frozen=True)
class Config:
    """A recipe. `--config.<part>.<key>=<value>` sets any key on the command line."""

    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)


C = TypeVar("C")


def register(name: str, cls: type) -> None:
    """Gives a class of one's own a name, by which recipes, flags and `config.json` choose it.

    The class extends what a mixer, a position scheme, a norm, a feed-forward network, a decoding
    method, a data source, a filter, a noise, an optimizer, a schedule or a tracker extends, and is
    a frozen dataclass of its options. Call it before a config or a run that uses the name is read.
    The entry points of an installed package in the group `transformer_jax` do the same:

        [project.entry-points.transformer_jax]
        moving_average = "my_package.mixers:MovingAverage"

    Args:
        name: letters, digits and underscores.
        cls: the class.

    Raises:
        UserError: the name is taken, or the class is none of these.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[^\s(),=]+", name) or name == "none":
        raise UserError(f"register: {name!r} is no name: use letters, digits and underscores")
    bases = [each for each in FAMILIES if isinstance(cls, type) and issubclass(cls, each.base)]
    if not bases:
        known = ", ".join(dict.fromkeys(family.base.__qualname__ for family in FAMILIES))
        raise UserError(f"register: {cls!r} extends none of {known}")
    for family in bases:
        family.add(name, cls)


def to_dict(config: Any) -> dict[str, Any]:
    """A config, or a part of one, as nested dicts; variants have their `kind` in it."""
    return adapter(type(config)).dump_python(config, warnings=False)


def from_dict(cls: type[C], values: Any, prefix: str = "") -> C:
    """The config that nested dicts spell. Keys that are missing have their defaults.

    Args:
        cls: `Config` or the class of one of its parts.
        values: nested dicts, or a config; a variant may have any of its spellings.
        prefix: put before each key in messages, such as `--config.`.

    Raises:
        UserError: an unknown key (names the nearest one) or a wrong value (says what is allowed).
    """
    try:
        return adapter(cls).validate_python(values)
    except ValidationError as error:
        raise UserError(_explained(cls, values, error, prefix)) from error


def validated(config: C, prefix: str = "") -> C:
    """The same config with every value checked and of its declared type.

    Raises:
        UserError: see `from_dict`.
    """
    return from_dict(type(config), config, prefix)


def override(config: C, changes: Mapping[str, Any], prefix: str = "--config.") -> C:
    """A validated copy of a config in which dotted keys have new values.

    A key may go into a variant: `train.schedule.learning_rate`. It then replaces that option of
    the variant that the config, or the key `train.schedule`, has chosen.

    Args:
        config: a config, or a part of one.
        changes: dotted key -> value, or its text in a flag; the text `none` is None.
        prefix: put before each key in messages.

    Raises:
        UserError: an unknown key (names the nearest one) or a wrong value (says what is allowed).
    """
    tree = to_dict(config)
    for key, value in sorted(changes.items(), key=lambda change: change[0].count(".")):
        _set(type(config), tree, key.split("."), value, prefix)
    return from_dict(type(config), tree, prefix)


def _set(cls: type, tree: dict[str, Any], path: list[str], value: Any, prefix: str) -> None:
    """Sets one value in the dict form of a config of class `cls`."""
    name, *rest = path
    key = keys_of(cls).get(name)
    while key and rest:
        child = tree[name]
        if isinstance(child, str) and mark_of(key.annotation):
            child = {"kind": child}
        if not isinstance(child, dict):
            raise UserError(f"{prefix}{name} is a value, it has no key {rest[0]}")
        tree[name] = child = dict(child)
        if not key.is_part:  # a variant's class has the keys
            child[".".join(rest)] = value
            return
        prefix += f"{name}."
        tree, (name, *rest) = child, rest
        key = keys_of(key.annotation).get(name)
    # Validation refuses an unknown key.
    tree[name] = key.parsed(value) if key else value


def _explained(cls: type, values: Any, error: ValidationError, prefix: str) -> str:
    """One line for the first thing that Pydantic found wrong."""
    first = first_error(error)
    path = [part for part in first["loc"] if isinstance(part, str)]
    kind, value = first["type"], first["input"]
    if not path:
        return f"expected a JSON object of keys, got {type(value).__name__}"
    key = prefix + ".".join(path)
    if kind == "unexpected_keyword_argument":
        group = cls()
        with contextlib.suppress(ValidationError):
            group = adapter(cls).validate_python(values, extra="ignore")
        for part in path[:-1]:
            group = getattr(group, part)
        return f"{key}: no such key{_advice(group, key, value)}"
    if kind == "dataclass_type":
        return f"{key} is a group of keys: set one of them, not all"
    if isinstance(value, str | int | float) and kind != "value_error":
        key += f"={value}"
    return f"{key}: {first['msg']}"


def _advice(group: Any, key: str, value: Any) -> str:
    """What to write in place of a key that the group of keys does not have."""
    place, dot, name = key.rpartition(".")
    place, keys, text = place + dot, keys_of(type(group)), shlex.quote(str(value))
    inside = [path for path, *_ in walk(group, prefix=place) if path.endswith(f".{name}")]
    if inside:
        return "; use " + " or ".join(f"{path}={text}" for path in inside)
    for option in keys.values():
        mark = mark_of(option.annotation)
        for kind, variant in mark.family.items() if mark else ():
            if name in keys_of(variant):
                spelling = f"{place}{option.name}='{kind}({name}={value})'"
                return f"; it is an option of a variant: {spelling}"
    return f"{hint(name, keys, place)}; use {', '.join(keys)}"


def to_json(config: Any) -> str:
    """A config, or what has one as a field, as JSON, every key written out.

    Raises:
        UserError: an option is a function.
    """
    what = "a config with a function as an option cannot be stored, give it where it is used"
    with as_user_error(what, PydanticSerializationError):
        tree = adapter(type(config)).dump_python(config, mode="json")
    return json.dumps(tree, indent=2) + "\n"


def from_json(text: str, origin: str) -> Config:
    """The config that `to_json` wrote.

    Raises:
        UserError: not JSON, an unknown key or a wrong value; the message begins with `origin`.
    """
    with as_user_error(f"{origin}: not valid JSON", ValueError, RecursionError):
        values = json.loads(text)
    try:
        return from_dict(Config, values)
    except UserError as error:
        raise UserError(
            f"{origin}: {error}. Repair it; or if another version of transformer_jax wrote it, "
            "use that version"
        ) from error


def walk(
    *configs: Any, prefix: str = "", variants: bool = True
) -> Iterator[tuple[str, Key, tuple[Any, ...]]]:
    """Walks over configs of one class together.

    Args:
        configs: configs, parts of one or variants.
        prefix: put before each dotted key.
        variants: whether to go into a variant, if it is of one class in all configs.

    Yields:
        The dotted key, its description, and its value in each config. A variant comes before its
        options. A part has no value: its keys come in its place.
    """
    for key in keys_of(type(configs[0])).values():
        path, values = f"{prefix}{key.name}", tuple(getattr(each, key.name) for each in configs)
        if not key.is_part:
            yield path, key, values
        if key.is_part or (variants and is_one_variant(*values)):
            yield from walk(*values, prefix=f"{path}.", variants=variants)


def marked(mark: Mark) -> tuple[str, ...]:
    """The dotted keys of a config that have a mark."""
    return tuple(path for path, key, _ in walk(Config(), variants=False) if key.has(mark))


def is_one_variant(*values: Any) -> bool:
    """Whether the values are variants of one class."""
    return dataclasses.is_dataclass(values[0]) and len(set(map(type, values))) == 1


def differences(old: Any, new: Any) -> list[str]:
    """`key: old -> new` for every key that differs; a change of kind is one difference."""
    return [
        f"{path}: {before} -> {after}"
        for path, _, (before, after) in walk(old, new)
        if before != after and not is_one_variant(before, after)
    ]
