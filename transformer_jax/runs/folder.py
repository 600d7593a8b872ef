"""A run folder as an object: `open_run(workdir)`."""

import dataclasses
import hashlib
import json
import logging
import os
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import Mesh

from transformer_jax.config import Config, from_json, override
from transformer_jax.data.tokenizer_pair import Tokenizers, load_tokenizers
from transformer_jax.errors import UserError, as_user_error
from transformer_jax.models.api import Params, abstract_params
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.lora import NoAdapter
from transformer_jax.models.paths import MEASURED, from_paths
from transformer_jax.models.quantization import Int8Given
from transformer_jax.parallel.mesh import decoding_mesh
from transformer_jax.paths import absolute, as_path
from transformer_jax.runs.checkpoints import (
    checkpoint_folder,
    checkpoint_steps,
    newest_whole,
    read_meta,
)
from transformer_jax.runs.damage import MANIFEST, find_damage
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.translation.model import Mean, Model
from transformer_jax.translation.translator import Translator
from transformer_jax.weights.marian_items import of_paths
from transformer_jax.weights.settings import read_json

_LOGGER = logging.getLogger(__name__)


#: The factors of the file of int8 that a run was imported from (`weights/marian_items.py`).
INT8 = "int8.bin"

#: The ids of the source tokenizer's pieces that the training text lacks, as a JSON list.
UNSEEN = "unseen_pieces.json"


def check_has_config(folder: epath.Path) -> None:
    """Raises UserError for checkpoints without config: of `tj.fit`, or of half an import."""
    if (folder / "checkpoints").exists() and not (folder / "config.json").exists():
        raise UserError(
            f"{folder}: holds checkpoints but no config.json: tj.fit trained there (call it again "
            "to get its state), or an import was interrupted; use another folder"
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
        check_has_config(folder)
        hint = "name a folder that was trained or imported"
        raise UserError(f"{folder}: no run here (config.json is missing); {hint}")
    with as_user_error(f"{path}: cannot be read", OSError, UnicodeDecodeError):
        text = path.read_text()
    if '"model_type"' in text:  # Transformers' word
        raise UserError(
            f"{folder}: a published model; make a run of it: transformer-jax import --from={folder}"
        )
    return Run(folder, from_json(text, str(path)))


@dataclass(frozen=True)
class Selection:
    """The checkpoints that a name such as `best` or `average:5` stands for."""

    which: str  #: the name as it was given
    steps: tuple[int, ...]  #: several: the mean of their parameters
    name: str  #: the exact name, such as `best-step-2000`
    others: "tuple[Selection, ...]" = ()  #: of the other runs of an ensemble


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """What training writes and every other command reads.

    Attributes:
        path: the run folder.
        config: the resolved config of `config.json`.
        others: the other runs of an ensemble, see `open_ensemble`.
        mean: of what their models predict.
    """

    path: epath.Path
    config: Config
    others: "tuple[Run, ...]" = ()
    mean: Mean = "log_probs"

    def __repr__(self) -> str:
        return f"Run({os.fspath(self.path)!r})"

    @property
    def model(self) -> ModelConfig:
        """The model of `params`: that of the config, with its adapter merged."""
        return dataclasses.replace(self.config.model, adapter=NoAdapter())

    @property
    def together(self) -> Model:
        """What translates: `model`, alone or with those of the others."""
        return Model((self.model, *(run.model for run in self.others)), self.mean)

    def metrics(self) -> list[dict[str, Any]]:
        """The records of `metrics.jsonl`, oldest first."""
        return read_metrics(self.path)

    def scores(self) -> dict[str, Any]:
        """The reports in `scores.json`, by `<set>.<checkpoint>`; {} if there are none.

        Raises:
            UserError: it is not a JSON object.
        """
        path = self.path / "scores.json"
        return read_json(path, "; repair it or move it away") if path.exists() else {}

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
            saved = [checkpoint_folder(self.path, step) for step in reversed(self.checkpoints())]
            copies = (each / "tokenizer" for each in saved if not find_damage(each, "tokenizer"))
            copy = next((copy for copy in copies if copy.is_dir()), None)
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

    def unseen(self) -> frozenset[int]:
        """Source ids that the training text lacks; empty where that is not known."""
        try:
            return frozenset(json.loads((self.path / UNSEEN).read_text()))
        except (OSError, ValueError, TypeError, RecursionError):
            return frozenset()

    def select(self, which: str) -> Selection:
        """The checkpoints that a name stands for.

        Args:
            which: `best` (by `train.best_by`; the newest if nothing was evaluated), `latest`, a
                step, or `average:N` (the mean of the last N; an older best one is not among them).

        Raises:
            UserError: there is no such checkpoint; names those there are. (`latest` falls back to
                the newest whole one and logs a warning.)
        """
        own, others = self._select(which), tuple(run.select(which) for run in self.others)
        paths = [run.path.name for run in self.others]
        names = [f"{path}:{each.name}" for path, each in zip(paths, others, strict=True)]
        name = "+".join([own.name, *names])
        return Selection("+".join([which, *paths]), own.steps, name, others)

    def _select(self, which: str) -> Selection:
        steps = self.checkpoints()
        if not steps:
            raise UserError(f"{self.path}: no checkpoint here yet")
        if which == "best" and (best := self._best_step(steps)) is not None:
            return Selection(which, (best,), f"best-step-{best}")
        if which in ("best", "latest"):
            step, problems = newest_whole(self.path, self._item)
            listed = "; ".join(f"step {each}: {problem}" for each, problem in problems.items())
            if step is None:
                raise UserError(f"{self.path}: no checkpoint here is whole ({listed})")
            if problems:
                _LOGGER.warning("damaged checkpoint (%s): using step %d", listed, step)
            return Selection(which, (step,), f"step-{step}")
        kind, _, number = which.partition(":")
        if kind == "average" and number.isdecimal() and int(number) > 0:
            last = steps[-self.config.train.keep_checkpoints :]  # without an older best one
            if int(number) > len(last):
                raise UserError(
                    f"checkpoint={which}: only {len(last)} checkpoints are kept here "
                    f"(steps {', '.join(map(str, last))})"
                )
            name = f"average-{int(number)}-to-step-{last[-1]}"
            return Selection(which, tuple(last[-int(number) :]), name)
        if not which.isdecimal():
            raise UserError(f"checkpoint={which}: use best, latest, a step number or average:N")
        if int(which) not in steps:
            listed = ", ".join(map(str, steps))
            raise UserError(f"checkpoint={which}: not kept here; there are steps {listed}")
        return Selection(which, (int(which),), f"step-{int(which)}")

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
        mesh = mesh or self._local_mesh()
        own = self._mean_of(chosen, mesh)
        pairs = zip(self.others, chosen.others, strict=True)
        return (own, *(run.params(other, mesh) for run, other in pairs)) if self.others else own

    def _mean_of(self, chosen: Selection, mesh: Mesh) -> Any:
        each = (self._read(step, chosen, mesh) for step in chosen.steps)
        total = next(each)
        dtypes = jax.tree.map(lambda x: x.dtype, total)
        for new in each:
            total = jax.tree.map(lambda x, y: x.astype(jnp.float32) + y, total, new)
        count = len(chosen.steps)
        return jax.tree.map(lambda x, dtype: (x / count).astype(dtype), total, dtypes)

    def fingerprint(self, which: str = "best") -> str:
        """A hash of the content of the checkpoints that a name stands for."""
        digest = hashlib.sha256()
        for step in self.select(which).steps:
            digest.update((checkpoint_folder(self.path, step) / MANIFEST).read_bytes())
        return digest.hexdigest()

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
        model, params = self.together, self.params(checkpoint, mesh)
        kept = self.path / INT8
        if decode.weights == "int8" and model.is_one and kept.is_file():
            given = from_paths(of_paths(kept.read_bytes(), str(kept)))
            model = Model((dataclasses.replace(self.model, quantize=Int8Given()),))
            params = params | {MEASURED: given}
        tokenizers, unseen = self.tokenizers(), self.unseen()
        return Translator(model, params, tokenizers, decode, mesh=mesh, unseen=unseen)

    def _local_mesh(self) -> Mesh:
        return decoding_mesh(self.config.mesh, jax.local_devices())

    @property
    def _item(self) -> str:
        return "ema" if self.config.train.ema_decay is not None else "params"

    def _best_step(self, steps: list[int]) -> int | None:
        """The step that the newest checkpoint names as the best; None if nothing was evaluated."""
        newest = checkpoint_folder(self.path, steps[-1])
        problem = find_damage(newest, "meta")
        best = None
        if problem is None:
            try:
                best = read_meta(self.path, steps[-1])["best_step"]
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                problem = "its meta does not name the best step"
        if problem is None and best is not None and best not in steps:
            problem = f"it names step {best}, which is gone"
        if problem is not None:
            raise UserError(
                f"checkpoint=best: the newest checkpoint, {newest}, names the best one, but "
                f"{problem}; choose a step ({', '.join(map(str, steps))}) or latest"
            )
        return best

    def _read(self, step: int, chosen: Selection, mesh: Mesh) -> Params:
        """The parameters of one checkpoint, with its adapter merged."""
        folder = checkpoint_folder(self.path, step)
        if problem := find_damage(folder, self._item):
            raise UserError(
                f"checkpoint={chosen.which}: {folder} is damaged ({problem}); choose another, or "
                "latest for the newest whole one"
            )
        model = self.config.model
        target = abstract_params(model, mesh)
        # Each process reads for itself, so that one may read while others do something else.
        index = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(
            primary_host=index, active_processes={index}, barrier_sync_key_prefix=f"process_{index}"
        )
        handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)
        what = f"checkpoint={chosen.which}: {folder} does not hold what config.json describes"
        differs = as_user_error(what, ValueError, KeyError, TypeError, OSError)
        with differs, ocp.Checkpointer(handler, multiprocessing_options=alone) as reader:
            args = ocp.args.StandardRestore(target)
            params = reader.restore(absolute(folder / self._item), args=args)
        return model.adapter.merge(params)
