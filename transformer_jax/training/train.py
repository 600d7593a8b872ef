"""Trains what a config says in a run folder: from text to a trained model."""

import contextlib
import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable

import numpy as np

from transformer_jax.config import Config, from_dict, to_json
from transformer_jax.errors import UserError, as_user_error
from transformer_jax.models.config import check_model_config
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.parallel.processes import from_first, is_first
from transformer_jax.paths import as_path, write_whole
from transformer_jax.recipes import ByPairs
from transformer_jax.runs.folder import UNSEEN, Run
from transformer_jax.runs.lock import only_run
from transformer_jax.runs.log import RunLog
from transformer_jax.runs.start import Start, resolve_start
from transformer_jax.training.data import read_training_data
from transformer_jax.training.evaluator import make_evaluator
from transformer_jax.training.loop import Session
from transformer_jax.training.speed import settle_length
from transformer_jax.training.trainer import Trainer

_LOGGER = logging.getLogger(__name__)


def train(
    config: Config,
    workdir: str | os.PathLike[str],
    *,
    by_pairs: ByPairs | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: bool = False,
    peak: float | None = None,
    profile: int = 0,
) -> Run:
    """Trains in `workdir`, or continues the run that is there.

    Several processes make the same call; the first one learns the tokenizer and writes everything
    except the other processes' parts of the checkpoints. Messages also go to `log.txt`.

    Args:
        config: the recipe.
        workdir: the run folder.
        by_pairs: what a new run fills in by the size of its text.
        should_stop: asked once after each step; True saves and returns.
        progress: draw progress bars on standard error.
        peak: FLOPs a second of all devices, whose share is logged; None if unknown.
        profile: how many steps are traced into the folder `profile` of the run, by each process.

    Returns:
        The run, trained or stopped.

    Raises:
        UserError: the config or the text is not valid, and nothing of an earlier run was touched;
            or a failure ended the training.
    """
    began = time.perf_counter()
    path = as_path(workdir)
    progress = progress and is_first()
    # How a start is decided, in this order. Up to `begin` nothing is written to the run folder.
    # 1. `agree_on_start`: by config.json this is a new run, a continued run, or refused. A run
    #    that exists is locked: a second process that trains here is refused.
    # 2. `read_training_data`: a continued run uses its own tokenizers; a new one learns them.
    #    Parameters of another run that do not fit this one are refused.
    # 3. `settle_length`: a new run with `train.minutes` measures a step.
    # 4. `Session`: a text or tokenizer other than the newest checkpoint's is refused.
    # 5. `begin` locks a new run's folder and writes `config.json`.
    # 6. `Session.train` continues at the newest whole checkpoint; at step 0 if there has never
    #    been one; if all are damaged the run is refused.
    with RunLog() as log, contextlib.ExitStack() as stack:

        def agree_on_start() -> Start:
            start = resolve_start(config, path, by_pairs)
            check_model_config(start.config.model)
            if start.has_folder:  # a new folder is made once nothing can be refused any more
                stack.enter_context(only_run(path))
            return start

        start = from_first(agree_on_start, to_json, lambda text: from_dict(Start, json.loads(text)))
        mesh = make_mesh(start.config.mesh)
        trainer = Trainer(start.config.model, start.config.train, mesh)
        data = read_training_data(start, path, trainer.share, progress=progress)
        data.describe()
        evaluate = make_evaluator(data, mesh)
        trainer, evaluate, deadline = settle_length(start, trainer, data, evaluate, began, stack)
        trainer.describe()
        settled = dataclasses.replace(start.config, train=trainer.train)
        session = Session(
            trainer,
            data,
            workdir=path,
            evaluate=evaluate,
            should_stop=should_stop,
            deadline=deadline,
            progress=progress,
            prepared=time.perf_counter() - began,
            peak=peak,
            profile=profile,
        )

        def begin() -> None:
            stack.enter_context(only_run(path))
            log.open(path)
            file = path / "config.json"
            if not start.has_folder and file.exists():
                raise UserError(f"{path}: another run was started here meanwhile")
            data.tokenizers.save(path / "tokenizer")
            with as_user_error(f"cannot write {file}:", OSError):
                if start.is_new and not settled.train.init_from:  # else there was an earlier text
                    counts = data.stream.corpus.source.counts(data.tokenizers.source.vocab_size)
                    unseen = np.flatnonzero(counts == 0).tolist()
                    write_whole(path / UNSEEN, json.dumps(unseen).encode())
                write_whole(file, to_json(settled).encode())

        from_first(begin)
        session.train()
    return Run(path, settled)
