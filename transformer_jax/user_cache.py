"""The folder of caches: what is in it can be recreated."""

import os
from pathlib import Path


def user_cache() -> Path:
    """`$XDG_CACHE_HOME/transformer_jax`, by default in `~/.cache`: ids, compiled programs."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "transformer_jax"
