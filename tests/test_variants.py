"""The three spellings of a variant are one and the same, and mistakes are named."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge
from pydantic import TypeAdapter, ValidationError

from transformer_jax.settings.variants import ManyOf, OneOf, to_text


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
        ({"window": 3}, "None is unknown; use window, full"),
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
