"""Config objects that are chosen by name: a mixer, a norm, a decoding method, an optimizer.

A variant is a frozen dataclass, so the options of what is not chosen do not exist. It has
three spellings, which mean the same:

    Window(window=64)                         in Python
    window(window=64)                         in a flag; just `window` where no option is set
    {"kind": "window", "window": 64}          in JSON

A family is a dict from the name of each kind to its class. `OneOf` and `ManyOf` put a family
on a field; Pydantic then accepts the three spellings for that field and writes the third. Classes
of other packages can join a `Family`; the third spelling then also names their package.

    norm: Annotated[Norm, OneOf(NORMS)] = LayerNorm()
    mixers: Annotated[tuple[Mixer, ...], ManyOf(MIXERS)] = (Full(),)
"""

import ast
import contextlib
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from types import FunctionType
from typing import Any, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import CoreSchema, core_schema

from transformer_jax.errors import UserError, first_error, first_line, hint
from transformer_jax.settings.keys import Key, adapter, keys_of

#: Kinds that were removed, with the last version that reads them.
REMOVED = {"trackio": "0.2"}


#: The group of entry points by which an installed package names its variants: name -> class.
GROUP = "transformer_jax"

FAMILIES: list["Family[Any]"] = []

T = TypeVar("T")

_LOGGER = logging.getLogger(__name__)


class Family(dict[str, type[T]]):
    """A family that other packages can add variants to.

    Args:
        base: what all variants extend.
        own: those of this package, by name.
    """

    def __init__(self, base: type[T], **own: type[T]) -> None:
        super().__init__(own)
        self.base, self._has_looked = base, False
        self.unnamed: dict[str, type[T]] = {}  #: classes in use that nobody has named
        FAMILIES.append(self)

    def add(self, name: str, cls: type) -> None:
        """Adds a variant; it replaces a class of the same module and name, which was defined anew.

        Raises:
            UserError: the name is another variant's, or the class is not a frozen dataclass.
        """
        known = self.get(name, cls)
        if known is not cls and _full_name(known) != _full_name(cls):
            raise UserError(f"register: {name!r} is already the name of {known.__qualname__}")
        parameters = vars(cls).get("__dataclass_params__")
        if cls is self.base or not (parameters and parameters.frozen):
            raise UserError(
                f"register: {cls.__qualname__} is no frozen dataclass of its own options"
            )
        if taken := {"kind", "package"} & keys_of(cls).keys():
            raise UserError(
                f"register: {cls.__qualname__}: name its option {', '.join(taken)} otherwise"
            )
        self[name] = cls

    def name(self, cls: type[T]) -> str:
        """The kind of a class that nobody registered: that of an entry point, or its full name.

        Raises:
            ValueError: another class is called so, too.
        """
        self.find_installed()
        for kind, known in self.items():
            if known is cls:
                return kind
        kind = _full_name(cls)
        if self.unnamed.get(kind, cls) is not cls and "<locals>" in kind:
            raise ValueError(f"two classes are called {kind}: register them")
        self.unnamed[kind] = cls
        return kind

    def find_installed(self) -> None:
        """Adds what the entry points of installed packages name, whatever a config asks for."""
        if self._has_looked:
            return
        self._has_looked = True
        for point in entry_points(group=GROUP):
            try:
                cls = point.load()
                if isinstance(cls, type) and issubclass(cls, self.base):
                    self.add(point.name, cls)
            except Exception as error:  # another package's code: others go on without it
                package = point.dist.name if point.dist else "a package"
                _LOGGER.warning(
                    f"the entry point {point.name} of {package} cannot be used: {first_line(error)}"
                )


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _package_of(cls: type) -> str:
    return cls.__module__.partition(".")[0]


@dataclass(frozen=True, eq=False)
class OneOf:
    """Field annotation: one variant of a family."""

    family: Mapping[str, type]

    def __get_pydantic_core_schema__(self, *_: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.parse,
            json_schema_input_schema=core_schema.str_schema(),
            serialization=core_schema.plain_serializer_function_ser_schema(self.to_dict),
        )

    def parse(self, value: Any) -> Any:
        """The variant that `value` spells, with its options validated.

        Args:
            value: a variant, its text, or its dict, whose `kind` may also have options.

        Raises:
            ValueError: an unknown kind or option, or an option out of range; the message says
                what is allowed.
        """
        if isinstance(value, str):
            value = {"kind": value}
        elif not isinstance(value, Mapping):
            named = {"kind": kind_of(value, self.family)}
            value = named | {name: getattr(value, name) for name in keys_of(type(value))}
        kind, options = _split_text(str(value.get("kind")))
        unnamed: Mapping[str, type] = {}
        if kind not in self.family and isinstance(self.family, Family):
            self.family.find_installed()
            unnamed = self.family.unnamed
        if (cls := self.family.get(kind, unnamed.get(kind))) is None:
            known = ", ".join(self.family)
            if package := value.get("package"):
                raise ValueError(
                    f"{kind!r} is of {package!a}, which is not known here: call "
                    f"transformer_jax.register({kind!r}, CLASS) before, with its class, or install "
                    f"a package whose entry points name it; without it, use {known}"
                )
            if version := REMOVED.get(kind):
                raise ValueError(
                    f"{kind!r} was removed; version {version} was the last to read it; use {known}"
                )
            raise ValueError(f"{kind!r} is unknown{hint(kind, self.family)}; use {known}")
        package = value.get("package", _package_of(cls))
        if package not in (_package_of(cls), "__main__"):
            raise ValueError(
                f"{kind!r} was of {package!a} when this was written, and is of {_package_of(cls)}: "
                "register the class that it was"
            )
        keys = keys_of(cls)
        options |= {k: option for k, option in value.items() if k not in ("kind", "package")}
        for name in options:
            if name not in keys:
                has = f"its options are {', '.join(keys)}" if keys else "it has no options"
                raise ValueError(f"{kind} has no option {name!r}{hint(name, keys)}; {has}")
        options = {name: keys[name].parsed(option) for name, option in options.items()}
        try:
            return adapter(cls).validate_python(options)
        except ValidationError as error:
            first = first_error(error)
            name = ".".join(map(str, first["loc"]))
            if first["type"] == "missing":
                raise ValueError(f"{kind} needs {name}: {kind}({name}=...)") from error
            raise ValueError(f"{kind}({name}={first['input']}): {first['msg']}") from error

    def to_dict(self, variant: Any) -> Any:
        """The JSON spelling: `kind` and every option."""
        to_python = adapter(type(variant)).dump_python
        options = to_python(variant, mode="json", warnings=False, fallback=str)
        for name in keys_of(type(variant)):
            if isinstance(value := getattr(variant, name), FunctionType):  # JSON has no form for it
                options[name] = value
        named, package = {"kind": kind_of(variant, self.family)}, _package_of(type(variant))
        if isinstance(self.family, Family) and package != _package_of(OneOf):
            named["package"] = package
        return named | options


@dataclass(frozen=True, eq=False)
class ManyOf(OneOf):
    """Field annotation: a tuple of at least `least` variants of a family.

    Commas separate them in a text; `none` is no variant.
    """

    least: int = 1

    def parse(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, str):
            value = split("" if value.strip().lower() == "none" else value)
        elif not isinstance(value, Iterable) or isinstance(value, Mapping):
            value = [value]
        variants = tuple(map(super().parse, value))
        if len(variants) < self.least:
            raise ValueError(f"name at least one of {', '.join(self.family)}")
        return variants

    def to_dict(self, variant: Any) -> Any:
        return list(map(super().to_dict, variant))


def mark_of(annotation: Any) -> OneOf | None:
    """The `OneOf` or `ManyOf` in `Annotated[..., OneOf(family)]`, which may be `| None`.

    None in other annotations.
    """
    members = get_args(annotation) if type(None) in get_args(annotation) else (annotation,)
    marks = (mark for each in members for mark in getattr(each, "__metadata__", ()))
    return next((mark for mark in marks if isinstance(mark, OneOf)), None)


def kind_of(variant: Any, family: Mapping[str, type]) -> str:
    """The name under which the variant's class is registered.

    Raises:
        ValueError: the class is not in the family.
    """
    for name, cls in family.items():
        if type(variant) is cls:
            return name
    if isinstance(family, Family) and isinstance(variant, family.base):
        return family.name(type(variant))
    raise ValueError(f"{variant!r} is not one of {', '.join(family)}")


def to_text(variant: Any, family: Mapping[str, type]) -> str:
    """The flag spelling, with the options that differ from their defaults."""
    options = ", ".join(
        f"{name}={getattr(variant, name)!r}"
        for name, key in keys_of(type(variant)).items()
        if getattr(variant, name) != key.default
    )
    name = kind_of(variant, family)
    return f"{name}({options})" if options else name


def flag_text(value: Any, key: Key) -> str:
    """The value of a key as a flag spells it."""
    if isinstance(value, tuple):
        return ",".join(flag_text(each, key) for each in value)
    if value is not None and (mark := mark_of(key.annotation)):
        return to_text(value, mark.family)
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def split(text: str) -> list[str]:
    """The text cut at the commas outside brackets and quotes.

    Raises:
        ValueError: a bracket is not closed, or not opened.
    """
    parts, depth = [""], 0
    for token in re.findall(r"""'[^']*'|"[^"]*"|.""", text, re.DOTALL):
        depth += (token in "([") - (token in ")]")
        if depth < 0:
            break
        if token == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    if depth:
        raise ValueError(f"{text!r} has no {'closing' if depth > 0 else 'opening'} bracket")
    return [part for part in map(str.strip, parts) if part]


def _split_text(text: str) -> tuple[str, dict[str, Any]]:
    """The kind and the options that a flag spells; neither is validated.

    The text is `name` or `name(option=value, ...)`, each value a Python literal or a plain word.
    """
    name, parenthesis, rest = text.strip().partition("(")
    if not parenthesis:
        return name.strip(), {}
    if not rest.endswith(")"):
        raise ValueError(f"{text!r} has no closing parenthesis")
    options: dict[str, Any] = {}
    for part in split(rest[:-1]):
        key, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{text!r}: write each option as name=value")
        options[key.strip()] = value.strip()  # true, none, a word: converted to its type later
        with contextlib.suppress(ValueError, SyntaxError):
            options[key.strip()] = ast.literal_eval(value.strip())
    return name.strip(), options
