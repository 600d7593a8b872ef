"""The whole of a run: one dataclass, its recipe files, and config.json."""

import dataclasses
import difflib
import importlib.util
import json
import math
import re
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from transformer_jax.data.config import BatchConfig, DataConfig, TokenizerConfig
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.models.config import ModelConfig
from transformer_jax.parallel.mesh import MeshConfig
from transformer_jax.paths import as_path


@dataclass(frozen=True)
class OptimizerConfig:
    """An Optax optimizer and its learning-rate schedule."""

    name: Literal["adam", "adamw", "adafactor", "lion", "sgd"] = "adam"
    schedule: Literal["rsqrt", "cosine", "linear", "constant"] = "rsqrt"
    learning_rate: float = 0.0  #: peak; 0 with rsqrt = (d_model * warmup_steps)^-0.5, the paper's
    warmup_steps: int = 4000
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-9
    weight_decay: float = 0.0
    clip_norm: float = 0.0  #: 0 = no clipping


#: What each optimizer does not read.
_NOT_READ = {
    "adam": ("weight_decay",),
    "adamw": (),
    "adafactor": ("b1", "b2", "eps"),
    "lion": ("eps",),
    "sgd": ("b2", "eps", "weight_decay"),
}


@dataclass(frozen=True)
class TrainConfig:
    """How long to train, and what to do on the way."""

    steps: int = 100_000
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    label_smoothing: float = 0.1
    accumulate: int = 1  #: each batch is cut into this many parts, one gradient
    ema_decay: float = 0.0  #: > 0 keeps an average of the parameters, used for evaluation
    seed: int = 0
    log_every: int = 50
    evaluate_every: int = 1000  #: greedy BLEU on part of the validation set
    evaluate_sentences: int = 500
    early_stopping: int = 0  #: stop after this many evaluations without a better BLEU; 0 = never
    max_bad_steps: int = 10  #: stop after this many in a row whose loss or gradient is not finite
    checkpoint_every: int = 1000
    keep_checkpoints: int = 5  #: the last N are kept (and can be averaged), and the best


@dataclass(frozen=True)
class Config:
    """A recipe. `--config.<part>.<key>=value` overrides any field on the command line."""

    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)


def check_train_config(train: TrainConfig) -> None:
    """Refuses values that cannot work.

    Raises:
        UserError: names the key.
    """
    least = {
        "steps": 1,
        "accumulate": 1,
        "seed": 0,
        "log_every": 1,
        "evaluate_every": 1,
        "evaluate_sentences": 1,
        "early_stopping": 0,
        "max_bad_steps": 1,
        "checkpoint_every": 1,
        "keep_checkpoints": 1,
    }
    for key, limit in least.items():
        if getattr(train, key) < limit:
            raise UserError(f"train.{key}={getattr(train, key)}: must be at least {limit}")
    for key in ("label_smoothing", "ema_decay"):
        if not 0.0 <= getattr(train, key) < 1.0:
            raise UserError(f"train.{key}={getattr(train, key)}: must lie in [0, 1)")
    optimizer = train.optimizer
    for key in ("learning_rate", "warmup_steps", "eps", "weight_decay", "clip_norm"):
        value = getattr(optimizer, key)
        if not 0 <= value < math.inf:
            raise UserError(f"train.optimizer.{key}={value}: must be 0 or larger, and finite")
    for key in ("b1", "b2"):
        if not 0.0 <= getattr(optimizer, key) < 1.0:
            value = getattr(optimizer, key)
            raise UserError(f"train.optimizer.{key}={value}: must lie in [0, 1)")
    check_optimizer_config(optimizer)


def check_optimizer_config(optimizer: OptimizerConfig) -> None:
    """Refuses keys that do not go together, and those that the optimizer does not read.

    Raises:
        UserError: names them.
    """
    if not optimizer.learning_rate and optimizer.schedule != "rsqrt":
        raise UserError(
            f"train.optimizer.learning_rate must be set with schedule={optimizer.schedule}"
        )
    for key in _NOT_READ[optimizer.name]:
        value, default = getattr(optimizer, key), getattr(OptimizerConfig, key)
        if value != default:
            raise UserError(
                f"train.optimizer.{key}={value} has no effect with name={optimizer.name}: "
                f"leave it at {default}, or use name=adamw"
            )


def load_recipe(path: str) -> Config:
    """The `config` that a recipe file defines: a Python file with `config = Config(...)`."""
    file = Path(path)
    if not file.is_file():
        raise UserError(f"--config={path}: no such file; the recipes are in configs/")
    spec = importlib.util.spec_from_file_location(f"recipe_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UserError(f"--config={path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a recipe is the user's code: name the line, not our stack
        raise UserError(f"--config={path}{_line_in(file, error)}: {_mistake(error)}") from error
    config = getattr(module, "config", None)
    if not isinstance(config, Config):
        raise UserError(f"--config={path}: the file must define `config = Config(...)`")
    return config


def _line_in(file: Path, error: Exception) -> str:
    """`:line` of a file's code that raised an error, or where it is no Python; else nothing."""
    if isinstance(error, SyntaxError) and error.filename == str(file):
        return f":{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(file)]
    return f":{lines[-1]}" if lines else ""


def _mistake(error: Exception) -> str:
    """One line; of a key that a config class does not have, with the nearest that it has."""
    if isinstance(error, UserError):
        return str(error)
    found = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    classes = {kind.__name__: kind for kind in _config_classes(Config())}
    if found and found[1] in classes:
        names = [f.name for f in dataclasses.fields(classes[found[1]])]
        return (
            f"{found[1]} has no key {found[2]}; did you mean {_nearest(found[2], names)}? "
            f"(keys there: {', '.join(names)})"
        )
    return " ".join(f"{type(error).__name__}: {error}".splitlines())


def _config_classes(node: Any) -> set[type]:
    if not dataclasses.is_dataclass(node):
        return set()
    children = (getattr(node, f.name) for f in dataclasses.fields(node))
    return {type(node)}.union(*map(_config_classes, children))


def _nearest(key: str, names: Iterable[str]) -> str:
    return difflib.get_close_matches(key, names, n=1, cutoff=0.0)[0]


def override(config: Config, overrides: dict[str, str]) -> Config:
    """A copy of `config` with dotted keys replaced by values from the command line.

    Raises:
        UserError: an unknown key (names the nearest) or a value of the wrong type.
    """
    for key, value in overrides.items():
        config = _replace(config, key.split("."), value, key)
    return config


def _replace(node: Any, path: list[str], value: str, key: str) -> Any:
    names = [f.name for f in dataclasses.fields(node)]
    head, rest = path[0], path[1:]
    prefix = key[: len(key) - len(".".join(path))]
    if head not in names:
        raise UserError(
            f"--config.{key}: no such key; did you mean --config.{prefix}{_nearest(head, names)}? "
            f"(keys there: {', '.join(names)})"
        )
    child = getattr(node, head)
    if rest and not dataclasses.is_dataclass(child):
        raise UserError(f"--config.{key}: {prefix}{head} is a value, it has no key {rest[0]}")
    if rest:
        return dataclasses.replace(node, **{head: _replace(child, rest, value, key)})
    if dataclasses.is_dataclass(child):
        inner = ", ".join(f.name for f in dataclasses.fields(child))
        raise UserError(f"--config.{key} is a group of keys ({inner}); set one of those")
    raw = {f.name: getattr(node, f.name) for f in dataclasses.fields(node)} | {head: value}
    try:
        return TypeAdapter(type(node)).validate_python(raw)
    except ValidationError as error:
        raise UserError(f"--config.{key}={value}: {_reason(error)}") from error


def _reason(error: ValidationError) -> str:
    first = error.errors()[0]
    return first["msg"][0].lower() + first["msg"][1:]


def to_json(config: Config) -> str:
    """The config as JSON, every field written out."""
    # A value of a wrong type, such as a Path, is told by whoever reads it.
    return json.dumps(dataclasses.asdict(config), indent=2, default=str) + "\n"


def from_json(text: str, origin: str) -> Config:
    """The config that `to_json` wrote.

    Raises:
        UserError: not JSON, an unknown key or a value of the wrong type; names `origin`.
    """
    try:
        raw = json.loads(text)
        unknown = _unknown_keys(raw, dataclasses.asdict(Config()), "")
        if unknown:
            raise UserError(f"{origin}: unknown key {unknown[0]}")
        return TypeAdapter(Config).validate_python(raw)
    except json.JSONDecodeError as error:
        raise UserError(f"{origin}:{error.lineno}: not valid JSON ({error.msg})") from error
    except RecursionError as error:
        raise UserError(f"{origin}: not a config, it is nested too deeply") from error
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"]) or "the whole"
        raise UserError(f"{origin}: {where}: {_reason(error)}") from error


def _unknown_keys(raw: Any, known: Any, prefix: str) -> list[str]:
    """`key; did you mean another?` for each."""
    if not isinstance(raw, dict) or not isinstance(known, dict):
        return []
    found = [
        f"{prefix}{key}; did you mean {prefix}{_nearest(key, known)}?"
        for key in raw
        if key not in known
    ]
    for key in raw:
        if key in known:
            found += _unknown_keys(raw[key], known[key], f"{prefix}{key}.")
    return found


def differences(old: Config, new: Config) -> list[str]:
    """`key: old -> new` for every field that differs."""
    flat_old, flat_new = (_flatten(dataclasses.asdict(c), "") for c in (old, new))
    return [
        f"{key}: {flat_old[key]} -> {flat_new[key]}"
        for key in flat_new
        if flat_old[key] != flat_new[key]
    ]


def _flatten(tree: dict[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def load_config(workdir: str | Path) -> Config:
    """The resolved config of a run folder.

    Raises:
        UserError: the folder holds no run.
    """
    folder = as_path(workdir)
    path = folder / "config.json"
    if not path.is_file():
        hint = ""
        if (folder / "checkpoints").is_dir():
            hint = "; its checkpoints are of tj.fit alone: call that again to get its state"
        raise UserError(f"--workdir={workdir}: no run here (config.json is missing){hint}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 (byte {error.start}), so not a config") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    return from_json(text, str(path))
