"""The largest batch that fits, with as few compilations as can be."""

from collections.abc import Callable


def largest_that_fits(
    fits: Callable[[int], bool], guess: int, multiple: int, *, tolerance: float = 0.1
) -> int:
    """The largest multiple of `multiple` that fits, to within `tolerance` below it.

    Bisection between a size that fits and one that does not, which are looked for from
    `guess` on in widening steps. 0 = not even one `multiple` fits.

    Args:
        fits: asks the compiler; must be True up to some size and False beyond it.
        guess: where to begin, better near the answer.
        multiple: of which all sizes are multiples.
        tolerance: stop when the sizes tried lie this near together.
    """

    def rounded(size: float) -> int:
        return max(multiple, int(size) // multiple * multiple)

    good, bad, size, factor = 0, 0, rounded(guess), 1.25
    while not good or not bad:
        if fits(size):
            good, size = size, max(size + multiple, rounded(size * factor))
        elif size == multiple:
            return 0
        else:
            bad, size = size, min(size - multiple, rounded(size / factor))
        factor *= factor
    while bad - good > max(multiple, tolerance * bad):
        middle = min(max(rounded((good + bad) / 2), good + multiple), bad - multiple)
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def guess_from(rows: int, bytes_needed: int, fixed_bytes: int, memory: int) -> int:
    """Rows that would fill the memory if all but the fixed bytes grew in proportion to them."""
    per_row = max(1.0, (bytes_needed - fixed_bytes) / rows)
    return max(1, int((memory - fixed_bytes) / per_row))
