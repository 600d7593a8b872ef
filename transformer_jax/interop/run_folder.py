"""Makes a run folder of a model that was trained elsewhere."""

import os

from transformer_jax.config import Config, to_json
from transformer_jax.data.tokenizer import Tokenizers
from transformer_jax.errors import UserError
from transformer_jax.interop.exporters import safetensors
from transformer_jax.models.api import Params
from transformer_jax.paths import as_path, write_whole
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.folder import Run


def write_run(
    workdir: str | os.PathLike[str], config: Config, params: Params, tokenizers: Tokenizers
) -> Run:
    """Writes a run folder whose one checkpoint, of step 0, holds the parameters.

    Raises:
        UserError: there is a run in `workdir` already, or it cannot be written.
    """
    folder = as_path(workdir)
    if (folder / "config.json").exists() or (folder / "checkpoints").exists():
        raise UserError(f"--workdir={workdir}: holds a run already; use another folder")
    tokenizers.save(folder / "tokenizer")
    files = {f"tokenizer/{name}": content for name, content in tokenizers.files().items()}
    items = {"params": params}
    if config.train.ema_decay is not None:  # what such a run translates with
        items["ema"] = params
    checkpoints = Checkpoints(folder, keep=1, files=files)
    try:
        checkpoints.save(0, items, {"identity": {}, "position": 0}, best=False)
    finally:
        checkpoints.close()
    write_whole(folder / "config.json", to_json(config).encode())
    return Run(folder, config)


def import_exported(folder: str | os.PathLike[str], workdir: str | os.PathLike[str]) -> Run:
    """The run folder of a model that `export` wrote with `--format=safetensors`.

    Raises:
        UserError: as `safetensors.read` and `write_run`.
    """
    return write_run(workdir, *safetensors.read(as_path(folder)))
