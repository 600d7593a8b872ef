"""Where things that can be made again are kept between runs."""

import os
from pathlib import Path


def user_cache() -> Path:
    """`~/.cache/transformer_jax`, or where XDG_CACHE_HOME says: ids and compiled programs."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "transformer_jax"
