"""A run folder as an object: `open_run(workdir)`."""

import dataclasses
import json
import logging
import os
from typing import Any

import jax
from etils import epath
from jax.sharding import Mesh

from transformer_jax.config import Config, from_json, override
from transformer_jax.data.tokenizer_pair import Tokenizers, load_tokenizers
from transformer_jax.errors import UserError
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.lora import NoAdapter
from transformer_jax.parallel.mesh import decoding_mesh
from transformer_jax.paths import as_path
from transformer_jax.runs.checkpoints import checkpoint_folder, checkpoint_steps
from transformer_jax.runs.damage import find_damage
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.saved_model import Checkpoints, SavedModel, Selection
from transformer_jax.translation.translator import Translator

_LOGGER = logging.getLogger(__name__)


def check_whole(folder: epath.Path) -> None:
    """Raises UserError if an import, which writes `config.json` last, did not finish there."""
    if (folder / "checkpoints").exists() and not (folder / "config.json").exists():
        raise UserError(
            f"{folder}: holds checkpoints but no config.json, as an import that was interrupted "
            "leaves it; delete this folder, or use another one"
        )


def open_run(workdir: str | os.PathLike[str]) -> "Run":
    """The run in a folder that `train.py` wrote.

    Args:
        workdir: a path, or `gs://bucket/folder`.

    Raises:
        UserError: there is no run, or this version of the package did not write its `config.json`.
    """
    folder = as_path(workdir)
    path = folder / "config.json"
    if not path.is_file():
        hint = ""
        if (folder / "checkpoints").is_dir():
            hint = "; its checkpoints were written by tj.fit: call that again to get its state"
        raise UserError(f"{folder}: no run here (config.json is missing){hint}")
    try:
        text = path.read_text()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 (byte {error.start}), so not a config") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    return Run(folder, from_json(text, str(path)))


class Run:
    """What training writes and every other command reads.

    Attributes:
        path: the run folder.
        config: the resolved config of `config.json`.
        together: what translates: `model`, or an `Ensemble` of it and others.
    """

    def __init__(self, path: epath.Path, config: Config, saved: SavedModel | None = None) -> None:
        self.path = path
        self.config = config
        self._saved = saved or Checkpoints(path, config)
        self.together = self._saved.model

    def __repr__(self) -> str:
        return f"Run({os.fspath(self.path)!r})"

    @property
    def model(self) -> ModelConfig:
        """The model of `params`: that of the config, with its adapter merged."""
        return dataclasses.replace(self.config.model, adapter=NoAdapter())

    def metrics(self) -> list[dict[str, Any]]:
        """The records of `metrics.jsonl`, oldest first."""
        return read_metrics(self.path)

    def scores(self) -> dict[str, Any]:
        """The reports in `scores.json`, by `<set>.<checkpoint>`; {} if there are none.

        Raises:
            UserError: it is not a JSON object.
        """
        path = self.path / "scores.json"
        try:
            scores = json.loads(path.read_text()) if path.exists() else {}
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is not valid JSON: repair it or move it away") from error
        if not isinstance(scores, dict):
            raise UserError(f"{path} is not a JSON object of scores: repair it or move it away")
        return scores

    def checkpoints(self) -> list[int]:
        """Steps of the finished checkpoints, ascending."""
        return checkpoint_steps(self.path)

    def tokenizers(self) -> Tokenizers:
        """The run's tokenizers, or if they are lost, the copy in a checkpoint.

        Raises:
            UserError: there are none, or not those that the model was trained with.
        """
        folder = self.path / "tokenizer"
        try:
            tokenizers = load_tokenizers(folder)
        except UserError as error:
            copy = self._whole_tokenizer_copy()
            if copy is None:
                raise
            _LOGGER.warning("%s: using the copy in %s", error, copy)
            tokenizers = load_tokenizers(copy)
        for side in ("source", "target"):
            size = getattr(tokenizers, side).vocab_size
            expected = getattr(self.config.model, f"{side}_vocab_size")
            if expected and size != expected:
                raise UserError(
                    f"{folder}: the {side} tokenizer has {size} pieces, but the model was trained "
                    f"with {expected}: put the run's own tokenizer back"
                )
        return tokenizers

    def select(self, which: str) -> Selection:
        """The checkpoints that a name stands for.

        Args:
            which: `best` (by validation BLEU; the newest if nothing was evaluated), `latest`, a
                step, or `average:N` (the mean of the last N; an older best one is not among them).

        Raises:
            UserError: there is no such checkpoint; names those there are. (`latest` falls back to
                the newest whole one and logs a warning.)
        """
        return self._saved.select(which)

    def params(self, which: str | Selection = "best", mesh: Mesh | None = None) -> Any:
        """Parameters of `together` to translate with: the moving average if the run keeps one.

        Args:
            which: as in `select`, or what it returned.
            mesh: where to put them, each part read straight onto its devices; default: the
                devices of this process, divided as the run's mesh divides them.

        Raises:
            UserError: as `select`; or the checkpoint is damaged.
        """
        chosen = self.select(which) if isinstance(which, str) else which
        return self._saved.params(chosen, mesh or self._local_mesh())

    def translator(
        self, checkpoint: str | Selection = "best", mesh: Mesh | None = None, **overrides: Any
    ) -> Translator:
        """A translator with the run's model.

        Args:
            checkpoint: as `which` of `params`.
            mesh: as in `params`; if its devices belong to several processes, all of them make the
                same calls.
            **overrides: fields of `DecodeConfig`, in place of the run's own.

        Raises:
            UserError: as `params` and `tokenizers`; or an override is not valid.
        """
        decode = override(self.config.decode, overrides, prefix="decode.")
        mesh = mesh or self._local_mesh()
        params = self.params(checkpoint, mesh)
        return Translator(self.together, params, self.tokenizers(), decode, mesh=mesh)

    def _local_mesh(self) -> Mesh:
        return decoding_mesh(self.config.mesh, jax.local_devices())

    def _whole_tokenizer_copy(self) -> epath.Path | None:
        for step in reversed(self.checkpoints()):
            folder = checkpoint_folder(self.path, step)
            if (folder / "tokenizer").is_dir() and not find_damage(folder, "tokenizer"):
                return folder / "tokenizer"
        return None
