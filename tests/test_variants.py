"""The three spellings of a variant are one and the same, and mistakes are named."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge
from pydantic import TypeAdapter, ValidationError

from transformer_jax.config import register
from transformer_jax.errors import UserError
from transformer_jax.mixers import full_attention as mixers
from transformer_jax.settings import variants
from transformer_jax.settings.variants import Family, ManyOf, OneOf, to_text


@dataclass(frozen=True)
class Window:
    window: Annotated[int, Ge(1)] = 128
    edge: Literal["hard", "soft"] = "hard"
    shared: bool = False


@dataclass(frozen=True)
class Full:
    pass


FAMILY = {"window": Window, "full": Full}


@dataclass(frozen=True)
class Stack:
    norm: Annotated[Any, OneOf(FAMILY)] = Full()
    mixers: Annotated[tuple[Any, ...], ManyOf(FAMILY)] = (Full(),)


STACK = TypeAdapter(Stack)


@pytest.mark.parametrize(
    ("text", "variant"),
    [
        ("full", Full()),
        ("full()", Full()),
        ("window", Window()),
        (" window( window = 3, edge=soft ) ", Window(3, "soft")),
        ("window(edge='soft',shared=true)", Window(edge="soft", shared=True)),
        ("window(shared=False)", Window()),
    ],
)
def test_three_spellings(text, variant):
    stack = STACK.validate_python({"norm": text})
    assert stack == Stack(norm=variant)
    assert STACK.validate_json(STACK.dump_json(stack)) == stack
    assert STACK.validate_python({"norm": to_text(variant, FAMILY)}) == stack
    assert STACK.validate_python({"norm": variant}) == stack


def test_a_list_is_separated_by_commas():
    stack = STACK.validate_python({"mixers": "window(window=2,edge=soft),full,window"})
    assert stack.mixers == (Window(2, "soft"), Full(), Window())
    assert STACK.validate_json(STACK.dump_json(stack)) == stack
    assert STACK.validate_python({"mixers": "full"}).mixers == (Full(),)


def test_json_holds_the_kind_and_its_own_options_only():
    assert STACK.dump_python(Stack(norm=Full(), mixers=(Window(2),)), mode="json") == {
        "norm": {"kind": "full"},
        "mixers": [{"kind": "window", "window": 2, "edge": "hard", "shared": False}],
    }


@pytest.mark.parametrize(
    ("norm", "message"),
    [
        ("windo", "'windo' is unknown (did you mean window?); use window, full"),
        ("window(windw=3)", "no option 'windw' (did you mean window?); its options are window, e"),
        ("full(a=1)", "full has no option 'a'; it has no options"),
        ("window(window=0)", r"window(window=0): must be greater than or equal to 1"),
        ("window(window=x)", "window(window=x): must be a valid integer"),
        ("window(edge=round)", "window(edge=round): must be 'hard' or 'soft'"),
        ("window(3)", "write each option as name=value"),
        ("window(window=3", "has no closing parenthesis"),
        ("window(window=__import__('os'))", "must be a valid integer"),
        ({"window": 3}, "'None' is unknown; use window, full"),
        (Window(window=0), "must be greater than or equal to 1"),
        (3, "3 is not one of window, full"),
    ],
)
def test_a_mistake_is_named(norm, message):
    with pytest.raises(ValidationError) as error:
        STACK.validate_python({"norm": norm})
    assert message in str(error.value)


def test_an_empty_list_is_refused():
    with pytest.raises(ValidationError, match="name at least one of window, full"):
        STACK.validate_python({"mixers": ""})


def test_classes_of_other_packages_join_a_family():
    family = Family(Full, full=Full)

    @dataclass(frozen=True)
    class Half(Full):
        part: Annotated[int, Ge(1)] = 2

    one_of = OneOf(family)
    own = f"{__name__}.{Half.__qualname__}"
    assert one_of.to_dict(one_of.parse(Half(3))) == {"kind": own, "package": "tests", "part": 3}
    assert one_of.parse({"kind": own, "package": "tests", "part": 4}) == Half(4)
    assert list(family) == ["full"]  # nobody has named it
    family.add("half", Half)
    assert one_of.parse("half(part=5)") == Half(5)
    with pytest.raises(UserError, match="'half' is already the name of .*Half"):
        family.add("half", Window)
    with pytest.raises(ValueError, match="'third' is of 'acme', which is not known here: call"):
        one_of.parse({"kind": "third", "package": "acme"})

    with pytest.raises(ValueError, match="'half' was of 'acme' when this was written, and is of"):
        one_of.parse({"kind": "half", "package": "acme"})

    def made(number: int) -> Any:
        @dataclass(frozen=True)
        class Again(Full):
            part: int = number

        return Again

    one, other = made(1), made(2)
    assert one_of.parse(one()) == one()
    with pytest.raises(ValueError, match="two classes are called .*Again: register them"):
        one_of.parse(other())
    plain = type("Plain", (Full,), {"__annotations__": {"k": int}, "k": 1})
    for wrong in (Full, plain):
        with pytest.raises(UserError, match="is no frozen dataclass of its own options"):
            family.add("plain", wrong)

    @dataclass(frozen=True)
    class Taken(Full):
        package: str = ""

    with pytest.raises(UserError, match="name its option package otherwise"):
        family.add("taken", Taken)


@pytest.mark.parametrize(
    ("name", "cls", "message"),
    [
        ("no name", Full, "'no name' is no name"),
        ("own", type("Own", (), {}), ".*Own.* extends none of .*MixerConfig"),
        ("full", type("Own", (mixers.Full,), {}), "'full' is already the name of Full"),
    ],
)
def test_what_cannot_be_registered(name, cls, message):
    with pytest.raises(UserError, match=f"register: {message}"):
        register(name, cls)


def test_a_broken_entry_point_of_another_package_breaks_nothing(monkeypatch, caplog):
    @dataclass(frozen=True)
    class Good(Full):
        pass

    class Point:
        dist = None

        def __init__(self, name: str, load: Any) -> None:
            self.name, self.load = name, load

    def fails() -> Any:
        raise ModuleNotFoundError("No module named 'acme'")

    points = [Point("bad", fails), Point("number", lambda: 3), Point("good", lambda: Good)]
    monkeypatch.setattr(variants, "entry_points", lambda group: points)
    family = Family(Full, full=Full)
    with caplog.at_level("WARNING"):
        assert OneOf(family).parse("good") == Good()
    assert "the entry point bad of a package cannot be used: No module named 'acme'" in caplog.text
