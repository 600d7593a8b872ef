"""The largest batch that fits, with few compilations."""

from collections.abc import Callable


def largest_that_fits(
    fits: Callable[[int], bool], guess: int, multiple: int, *, tolerance: float = 0.1
) -> int:
    """The largest multiple of `multiple` that fits, to within `tolerance` below it.

    Bisection between a size that fits and one that does not, which are searched for from
    `guess` in growing steps. 0 if not even one `multiple` fits.

    Args:
        fits: asks the compiler; must be True up to some size and False beyond it.
        guess: where to start, best near the answer.
        multiple: all sizes are multiples of it.
        tolerance: stop when the two sizes differ by no more than this share.
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
    """Rows that fill the memory if everything but the fixed bytes grows in proportion to them."""
    per_row = max(1.0, (bytes_needed - fixed_bytes) / rows)
    return max(1, int((memory - fixed_bytes) / per_row))
