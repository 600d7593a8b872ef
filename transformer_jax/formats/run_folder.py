"""Makes a run folder of a model that was trained elsewhere."""

import dataclasses
import os

from transformer_jax.config import to_json
from transformer_jax.errors import UserError
from transformer_jax.formats.exporter import TrainedModel
from transformer_jax.paths import as_path, write_whole
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.folder import INT8, Run, check_has_config


def read_run(run: Run, checkpoint: str) -> TrainedModel:
    """The model of a run; `checkpoint` is as `which` of `Run.params`."""
    config, path = dataclasses.replace(run.config, model=run.model), run.path / INT8
    int8 = path.read_bytes() if path.is_file() else None
    return TrainedModel(config, run.params(checkpoint), run.tokenizers(), int8)


def check_no_run(workdir: str | os.PathLike[str]) -> None:
    """Raises UserError if the folder holds a run, or what is left of an import."""
    folder = as_path(workdir)
    if (folder / "config.json").exists():
        raise UserError(f"{workdir} holds a run already; use another folder")
    check_has_config(folder)


def write_run(workdir: str | os.PathLike[str], model: TrainedModel) -> Run:
    """Writes a run folder whose one checkpoint, of step 0, holds the parameters.

    Raises:
        UserError: there is a run in `workdir` already, or it cannot be written.
    """
    check_no_run(workdir)
    folder, config = as_path(workdir), model.config
    model.tokenizers.save(folder / "tokenizer")
    files = {f"tokenizer/{name}": content for name, content in model.tokenizers.files().items()}
    items = {"params": model.params}
    if config.train.ema_decay is not None:  # what such a run translates with
        items["ema"] = model.params
    checkpoints = Checkpoints(folder, keep=1, files=files)
    try:
        checkpoints.save(0, items, {"identity": {}, "position": 0}, best=False)
    finally:
        checkpoints.close()
    if model.int8 is not None:
        write_whole(folder / INT8, model.int8)
    write_whole(folder / "config.json", to_json(config).encode())
    return Run(folder, config)
