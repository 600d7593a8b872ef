"""Pure functions on arrays. They import JAX and NumPy, not Flax.

Shape suffixes, used in the whole package:

    B batch   S source length   T target length   L length   M memory slots
    D d_model   H heads   K head_dim   F d_ff   V vocab   R features or rank
    N state, or rows of flattened leading axes   C chunk   Z beams   P padded length

Within one function a letter has one size, and a digit is a size: `x_B1D`. `tests/shapes.py`
checks every name with such a suffix while the tests run. An array with a number of axes that
varies has no suffix.

Masks are boolean, True = a real token / may be attended.
"""
