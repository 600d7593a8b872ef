"""Floor 1: pure functions on arrays. They know JAX and nothing of Flax.

Shape suffixes used here and on every floor above:

    B batch   S source length   T target length   L length   M memory slots
    D d_model   H heads   K head_dim   F d_ff   V vocab   R features or rank
    N state, or rows where leading axes are flattened   C chunk   Z beams

Masks are boolean, True = a real token / may be attended.
"""
