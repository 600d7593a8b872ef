"""Field types that several config classes share."""

from typing import Annotated, Any

from annotated_types import Ge, Gt, Lt
from pydantic import AfterValidator, BeforeValidator, PositiveInt


def _split_commas(value: Any) -> Any:
    if isinstance(value, str):
        return tuple(part for part in map(str.strip, value.split(",")) if part)
    return value


#: A tuple may be written as one text with commas, which is how the command line does it.
COMMAS = BeforeValidator(_split_commas)

#: A tuple of strings; on the command line one text with commas: `a.txt,b.txt`.
Strings = Annotated[tuple[str, ...], COMMAS]


class Mark:
    """What `Annotated` says of a field, beside its type."""


#: It names files or folders, which become absolute in a run's config.
FILES = Mark()
#: The first start of a run settles it where it is open, and the run keeps the value.
SETTLED = Mark()
#: It does not affect the parameters at a step, so a run may be continued with another value. Those
#: of a text do, but the text is compared by its content, whatever the names of the files.
MAY_CHANGE = Mark()
#: The short help of the commands that take a recipe shows it.
USUAL = Mark()

FileName = Annotated[str, FILES]
FileNames = Annotated[tuple[str, ...], COMMAS, FILES]


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError("must be a power of two")
    return value


#: 1, 2, 4, 8 ...
PowerOfTwo = Annotated[PositiveInt, AfterValidator(_power_of_two)]

#: A finite number above 0.
Positive = Annotated[float, Gt(0)]

#: A finite number, 0 or larger.
NonNegative = Annotated[float, Ge(0)]

#: A number in [0, 1): a rate of dropout, of decay.
Rate = Annotated[float, Ge(0), Lt(1)]
