"""One line of what `transformer-jax check` reports."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """Something that was looked at or measured.

    Attributes:
        part: the heading it stands under.
        name: what it is.
        value: a text, or a number in `unit`.
        unit: of the value.
        limit: a larger value has failed; None if the value is only reported.
        beside: what to compare the value with, in words.
    """

    part: str
    name: str
    value: str | float
    unit: str = ""
    limit: float | None = None
    beside: str = ""

    @property
    def is_ok(self) -> bool | None:
        """Whether the value is within its limit; NaN is not. None for a text with a limit."""
        if self.limit is None:
            return True
        return None if isinstance(self.value, str) else self.value <= self.limit

    @property
    def text(self) -> str:
        """Value, unit, and what to compare it with."""
        value = self.value
        if not isinstance(value, str):
            value = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
        limit = "" if self.limit is None or self.is_ok is None else f"(at most {self.limit:g})"
        return " ".join(filter(None, (value, self.unit, limit, self.beside)))
