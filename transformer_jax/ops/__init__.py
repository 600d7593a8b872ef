"""Pure functions on arrays. They import JAX and NumPy, not Flax.

Shape suffixes, used in the whole package:

    B batch   S source length   T target length   L length   M memory slots
    D d_model   H heads   K head_dim   F d_ff   V vocab   R features or rank
    N state, or rows of flattened leading axes   C chunk   Z beams

Masks are boolean, True = a real token / may be attended.
"""
