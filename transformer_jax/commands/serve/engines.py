"""Every engine, by the name that `--engine` begins with.

Adding one is a file that defines it and a line here.
"""

from collections.abc import Callable
from typing import Any

from transformer_jax.commands.serve.ctranslate2_engine import CTranslate2Engine
from transformer_jax.commands.serve.engine import Engine
from transformer_jax.commands.serve.jax_engine import open_jax
from transformer_jax.errors import UserError
from transformer_jax.runs.folder import Run

ENGINES: dict[str, Callable[..., Engine]] = {"jax": open_jax, "ctranslate2": CTranslate2Engine}


def open_engine(kind: str, run: Run, checkpoint: str, **decoding: Any) -> Engine:
    """The engine of a trained run, with the fields of `DecodeConfig` in `decoding` replaced.

    Args:
        kind: `jax`, or CTranslate2's format of export, such as `ctranslate2(quantization=int8)`.
        run: the run, or an ensemble.
        checkpoint: as in `Run.params`.
        **decoding: as in `Run.translator`.

    Raises:
        UserError: as `Run.translator`; or the engine cannot run the model.
    """
    name = kind.partition("(")[0]
    if name not in ENGINES:
        raise UserError(f"engine={kind}: use {' or '.join(ENGINES)}")
    return ENGINES[name](kind, run, checkpoint, **decoding)
