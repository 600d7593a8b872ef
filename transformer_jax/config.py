"""The config of a run: its parts, their validation, the flags that change it, config.json."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

from annotated_types import Gt, Lt
from pydantic import ConfigDict, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from transformer_jax.config_types import Positive, Rate, Strings
from transformer_jax.data.config import BatchConfig, DataConfig, TokenizerConfig
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.models.config import ModelConfig
from transformer_jax.optimizers.optimizers import OPTIMIZERS, Adam, Optimizer
from transformer_jax.optimizers.schedules import SCHEDULES, RsqrtSchedule, Schedule
from transformer_jax.parallel.mesh import MeshConfig
from transformer_jax.variants import OneOf, adapter, hint, mark_of, reason, split_text


@dataclass(frozen=True)
class TrainConfig:
    """How long to train, and what to do on the way."""

    steps: PositiveInt = 100_000
    minutes: Positive | None = None
    #: how long the training may take on the machine of its first start, preparation included:
    #: lowers steps to what fits, with a warm-up of a tenth of them at most to the same peak; none =
    #: all steps
    optimizer: Annotated[Optimizer, OneOf(OPTIMIZERS)] = Adam()
    schedule: Annotated[Schedule, OneOf(SCHEDULES)] = RsqrtSchedule()  #: of the learning rate
    clip_norm: Positive | None = None  #: largest global norm of a gradient; none = no limit
    label_smoothing: Rate = 0.1
    accumulate: PositiveInt = 1  #: cut each batch into this many parts and add their gradients
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    #: of the gradients that devices add up, if mesh.data alone is more than 1; bfloat16 is faster
    ema_decay: Annotated[float, Gt(0), Lt(1)] | None = None
    #: decay of a moving average of the parameters, which evaluation uses; none = no average
    init_from: str | None = None
    #: a run folder: begin with the parameters of its best checkpoint; none = random ones
    frozen: Strings | None = None
    #: patterns of the paths of parameters that keep their values, such as encoder/*;
    #: none = none of them, or with model.adapter=lora all but the adapters
    seed: NonNegativeInt = 0
    log_every: PositiveInt = 50
    evaluate_every: PositiveInt = 1000  #: steps between greedy translations of validation text
    evaluate_sentences: PositiveInt = 500  #: at most, of the validation set of a direction
    early_stopping: PositiveInt | None = None
    #: stop after this many evaluations without a better BLEU; none = never
    max_bad_steps: PositiveInt = 10
    #: stop after this many steps in a row whose loss or gradient is not finite
    checkpoint_every: PositiveInt = 1000
    keep_checkpoints: PositiveInt = 5  #: the newest N are kept, and the best


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


def _adapter(cls: type[C]) -> TypeAdapter[C]:
    """Of a config class; unknown keys are errors there and in its parts."""
    if "__pydantic_config__" not in vars(cls):
        cls.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    return adapter(cls)


def to_dict(config: Any) -> dict[str, Any]:
    """A config, or a part of one, as nested dicts; variants have their `kind` in it."""
    return _adapter(type(config)).dump_python(config, warnings=False)


def from_dict(cls: type[C], values: Any, prefix: str = "") -> C:
    """The config that nested dicts spell. Keys that are missing have their defaults.

    Args:
        cls: `Config` or the class of one of its parts.
        values: nested dicts; a variant may have any of its spellings.
        prefix: put before each key in messages, such as `--config.`.

    Raises:
        UserError: an unknown key (names the nearest one) or a wrong value (says what is allowed).
    """
    try:
        return _adapter(cls).validate_python(values)
    except ValidationError as error:
        raise UserError(_explained(cls, error, prefix)) from error


def validated(config: C, prefix: str = "") -> C:
    """The same config with every value checked and of its declared type.

    Raises:
        UserError: see `from_dict`.
    """
    return from_dict(type(config), to_dict(config), prefix)


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
    annotation = get_type_hints(cls, include_extras=True).get(name)
    is_none = isinstance(value, str) and value.lower() == "none"
    if rest:
        child = tree.get(name, {})  # {}: an unknown key, which validation refuses
        if not isinstance(child, dict):
            raise UserError(f"{prefix}{name} is a value, it has no key {rest[0]}")
        tree[name] = child = dict(child)
        if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
            _set(annotation, child, rest, value, f"{prefix}{name}.")
        else:
            child[".".join(rest)] = None if is_none else value
    elif isinstance(mark_of(annotation), OneOf) and isinstance(value, str):
        try:
            kind, options = split_text(value)
        except ValueError as error:
            raise UserError(f"{prefix}{name}: {error}") from error
        tree[name] = {"kind": kind} | options
    else:
        is_none = is_none and type(None) in getattr(annotation, "__args__", ())
        tree[name] = None if is_none else value


def _explained(cls: type, error: ValidationError, prefix: str) -> str:
    """One line for the first thing that Pydantic found wrong."""
    first = error.errors()[0]
    if not first["loc"]:
        return f"expected a JSON object of keys, got {type(first['input']).__name__}"
    *groups, name = map(str, first["loc"])
    key, value = prefix + ".".join([*groups, name]), first["input"]
    if first["type"] == "unexpected_keyword_argument":
        for group in groups:
            cls = get_type_hints(cls)[group]
        place = key.removesuffix(name)
        for field_name, annotation in get_type_hints(cls, include_extras=True).items():
            mark = mark_of(annotation)
            for kind, variant in mark.family.items() if isinstance(mark, OneOf) else ():
                if name in {field.name for field in dataclasses.fields(variant)}:
                    spelled = f"{place}{field_name}='{kind}({name}={value})'"
                    return f"{key}: no such key; it is an option of a variant: {spelled}"
        names = [field.name for field in dataclasses.fields(cls)]
        return f"{key}: no such key{hint(name, names, place)}; use {', '.join(names)}"
    if first["type"] == "dataclass_type":
        return f"{key} is a group of keys: set one of them, not all"
    if isinstance(value, str | int | float):
        key += f"={value}"
    return f"{key}: {reason(first)}"


def to_json(config: Config) -> str:
    """The config as JSON, every key written out."""
    tree = _adapter(type(config)).dump_python(config, mode="json")
    return json.dumps(tree, indent=2) + "\n"


def from_json(text: str, origin: str) -> Config:
    """The config that `to_json` wrote.

    Raises:
        UserError: not JSON, an unknown key or a wrong value; the message begins with `origin`.
    """
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{origin}:{error.lineno}: not valid JSON ({error.msg})") from error
    except RecursionError as error:
        raise UserError(f"{origin}: not a config, it is nested too deeply") from error
    try:
        return from_dict(Config, values)
    except UserError as error:
        raise UserError(
            f"{origin}: {error}. Repair it; or if another version of transformer_jax wrote it, "
            "use that version"
        ) from error


def differences(old: Any, new: Any, key: str = "") -> list[str]:
    """`key: old -> new` for every key that differs; a change of kind is one difference.

    Args:
        old: a config, or its value at `key`.
        new: another one.
        key: where these are in the config.
    """
    if dataclasses.is_dataclass(old) and type(old) is type(new):
        found = []
        for each in dataclasses.fields(old):
            path = f"{key}.{each.name}" if key else each.name
            found += differences(getattr(old, each.name), getattr(new, each.name), path)
        return found
    return [] if old == new else [f"{key}: {old} -> {new}"]
