"""A recipe and a run folder: from text to a trained model, or on from where it stopped."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer_jax.config import (
    Config,
    from_json,
    to_dict,
    to_json,
)
from transformer_jax.data.batching import BatchPlan
from transformer_jax.data.id_cache import IdCorpus, prepare_ids
from transformer_jax.data.pipeline import batches
from transformer_jax.data.subword_sampling import SubwordSampler
from transformer_jax.data.text import (
    check_splits,
    fingerprint,
    has_split,
    read_pairs,
)
from transformer_jax.data.tokenizer import Tokenizer, Tokenizers, prepare_tokenizers
from transformer_jax.decoding.config import while_training
from transformer_jax.errors import UserError
from transformer_jax.models import api
from transformer_jax.models.config import check_model_config
from transformer_jax.parallel.mesh import batch_devices, make_mesh, process_share
from transformer_jax.parallel.processes import (
    from_first,
    is_first,
    one_host_at_a_time,
)
from transformer_jax.paths import as_path, write_whole
from transformer_jax.runs.identity import check_run_folder
from transformer_jax.runs.lock import only_run
from transformer_jax.runs.log import RunLog
from transformer_jax.runs.restore import restore_tokenizers
from transformer_jax.runs.resume import settle, starts_anew
from transformer_jax.training.loop import Evaluate, fit
from transformer_jax.translation.scores import corpus_scores, make_metrics
from transformer_jax.translation.translator import Translator
from transformer_jax.user_cache import user_cache

Say = Callable[[str], None]
Pair = tuple[str, str]


def run(
    config: Config,
    workdir: str | Path,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    progress: bool = True,
    log: RunLog | None = None,
) -> None:
    """Trains what `config` says in `workdir`, continuing a run that is there.

    With several processes each calls this alike; the first one learns the tokenizer and
    writes everything but its part of the checkpoints.

    Args:
        config: the recipe.
        workdir: the run folder.
        should_stop: asked once after each step; True saves and returns.
        progress: draw progress bars.
        log: takes what is said to the user, for log.txt; default: a new one.

    Raises:
        UserError: anything wrong with the config or the text, before anything of an
            earlier run is touched; or a failure that ended the training.
    """
    workdir = as_path(workdir)
    log = log or RunLog(quiet=not is_first())
    with contextlib.ExitStack() as stack:
        try:
            _run(config, workdir, should_stop, progress and is_first(), log, stack)
        except UserError as error:
            log.keep(f"error: {error}")
            raise
        except BaseException:
            log.keep(traceback.format_exc())
            raise
        finally:
            log.close()


def _run(
    config: Config,
    workdir: Path,
    should_stop: Callable[[], bool],
    progress: bool,
    log: RunLog,
    stack: contextlib.ExitStack,
) -> None:
    say = log.say
    settled = from_first(lambda: to_json(settle(config, workdir, say)).encode())
    config = from_json(settled.decode(), "config")
    check_model_config(config.model)
    there = bool(from_first(lambda: b"+" * (workdir / "config.json").exists()))
    is_new = bool(from_first(lambda: b"+" * starts_anew(config, workdir)))

    def hold() -> bytes:
        stack.enter_context(only_run(workdir, say))
        return b""

    if there:  # a new folder is made when all that can be refused has been
        from_first(hold)
    mesh = make_mesh(config.mesh)
    rows = batch_devices(mesh) * config.train.accumulate
    if not config.batch.row_multiple:
        batch = dataclasses.replace(config.batch, row_multiple=rows)
        config = dataclasses.replace(config, batch=batch)
    validation = _validation(config)
    tokenizers = _tokenizers(config, workdir, is_new, say)
    config = _with_vocabulary(config, tokenizers)
    check_model_config(config.model)
    corpus = one_host_at_a_time(lambda: _ids(config, tokenizers, "train", progress))
    plan = BatchPlan(
        corpus.source_lengths,
        corpus.target_lengths,
        config.batch,
        row_multiple=config.batch.row_multiple or 1,
    )
    identity = {
        "training data": plan.fingerprint,
        "training text": corpus.fingerprint,
        "tokenizer": _digest(tokenizers),
    }

    def begin() -> bytes:
        check_run_folder(workdir, identity)  # what is refused is left as it is, its log too
        hold()
        log.open(workdir)
        if not there and (workdir / "config.json").exists():
            raise UserError(f"--workdir={workdir}: another run was started here meanwhile")
        return _write_run(config, tokenizers, workdir)

    from_first(begin)
    say(
        f"{config.data.source_language} -> {config.data.target_language}: "
        f"{plan.num_pairs:,} training pairs"
        + (
            f" ({plan.num_skipped:,} longer than {config.batch.max_length} skipped)"
            if plan.num_skipped
            else ""
        )
        + f", {plan.batches_per_epoch:,} batches an epoch in {len(plan.shapes)} shapes, "
        f"{100 * plan.padding_fraction():.1f} % padding; "
        f"{api.num_params(config.model):,} parameters on {jax.device_count()} "
        f"{jax.devices()[0].platform} device(s)"
    )
    warmup = config.train.schedule.warmup_steps
    if config.train.steps <= warmup:
        say(
            f"train.steps={config.train.steps} ends within the warm-up of train.schedule."
            f"warmup_steps={warmup}: the learning rate does not reach its peak; lower warmup_steps"
        )

    if not validation:
        say("no validation set: no BLEU while training, and `best` will mean the newest")

    share, num_shares = process_share(mesh)

    def batches_from(position: int) -> Iterator[dict[str, np.ndarray]]:
        return batches(
            corpus,
            plan,
            position,
            host=share,
            num_hosts=num_shares,
            row_multiple=rows,
            sampler=_sampler(config, tokenizers),
        )

    fit(
        config.model,
        config.train,
        batches_from,
        workdir=workdir,
        mesh=config.mesh,
        evaluate=_evaluation(config, tokenizers, validation),
        files=_tokenizer_files(tokenizers),
        meta={"identity": identity, "config": to_dict(config)},
        should_stop=should_stop,
        progress=progress,
        say=say,
    )


def _tokenizers(config: Config, workdir: Path, is_new: bool, say: Say) -> Tokenizers:
    """The run's tokenizers, read or learned by the first process alone."""

    def pairs() -> Iterator[tuple[str, str]]:
        return read_pairs(config.data, "train")

    def prepare() -> bytes:
        if is_new:  # what lies there is of a start that failed
            say("tokenizer: learning the vocabulary from the training text")
            with tempfile.TemporaryDirectory() as folder:
                found = prepare_tokenizers(config.tokenizer, pairs, folder)
        else:
            found = restore_tokenizers(workdir, say)
        models = [found.source.model] + [found.target.model] * (not found.joint)
        return json.dumps([model.hex() for model in models]).encode()

    models = [bytes.fromhex(text) for text in json.loads(from_first(prepare))]
    made = [Tokenizer(model) for model in models]
    return Tokenizers(made[0], made[-1])


def _tokenizer_files(tokenizers: Tokenizers) -> dict[str, bytes]:
    if tokenizers.joint:
        return {"tokenizer/joint.model": tokenizers.source.model}
    return {
        "tokenizer/source.model": tokenizers.source.model,
        "tokenizer/target.model": tokenizers.target.model,
    }


def _with_vocabulary(config: Config, tokenizers: Tokenizers) -> Config:
    sizes: dict[str, Any] = {
        "source_vocab_size": tokenizers.source.vocab_size,
        "target_vocab_size": tokenizers.target.vocab_size,
    }
    for key, size in sizes.items():
        wanted = getattr(config.model, key)
        if wanted not in (None, size):
            raise UserError(
                f"model.{key}={wanted}, but the tokenizer has {size} pieces; leave it out"
            )
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **sizes))


def _digest(tokenizers: Tokenizers) -> str:
    joined = tokenizers.source.fingerprint + tokenizers.target.fingerprint
    return hashlib.sha256(joined.encode()).hexdigest()


def _ids(config: Config, tokenizers: Tokenizers, split: Any, progress: bool) -> IdCorpus:
    cache = config.data.cache_dir or user_cache() / "ids"
    return prepare_ids(
        lambda: read_pairs(config.data, split),
        tokenizers,
        cache,
        fingerprint(config.data, split),
        sampling_alpha=config.tokenizer.sampling_alpha or 0.0,
        progress=progress,
    )


def _sampler(config: Config, tokenizers: Tokenizers) -> Any:
    if not config.tokenizer.sampling_alpha:
        return None
    return SubwordSampler(tokenizers, config.tokenizer.sampling_alpha, seed=config.batch.seed)


def _write_run(config: Config, tokenizers: Tokenizers, workdir: Path) -> bytes:
    path = workdir / "config.json"
    tokenizers.save(workdir / "tokenizer")
    try:
        write_whole(path, to_json(config).encode())
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    return b""


def _validation(config: Config) -> list[Pair]:
    """The pairs that BLEU is measured on while training; [] where there is no validation set.

    Raises:
        UserError: what would be found wrong with validation and test only after training.
    """

    def look() -> bytes:
        check_splits(config.data)
        return b"+" * has_split(config.data, "validation")

    if not from_first(look):
        if config.train.early_stopping is not None:
            raise UserError(
                f"train.early_stopping={config.train.early_stopping} needs a validation set: give "
                "data.source.validation_source and data.source.validation_target, or "
                "data.validation_from_train; or set train.early_stopping=none"
            )
        return []
    make_metrics(target_language=config.data.languages[1])

    def read() -> list[Pair]:
        pairs = read_pairs(config.data, "validation")
        first = list(itertools.islice(pairs, config.train.evaluate_sentences))
        for _ in pairs:  # files of unequal length are found out at their end
            pass
        return first

    return list(one_host_at_a_time(read))


def _evaluation(config: Config, tokenizers: Tokenizers, pairs: list[Pair]) -> Evaluate | None:
    """Greedy BLEU on the first sentences of the validation set.

    All devices translate together, with the parameters where training has them: no process
    needs more of them than it holds.
    """
    if not pairs:
        return None
    sources, references = ([pair[side] for pair in pairs] for side in (0, 1))
    decode = while_training(config.decode)
    mesh = make_mesh(config.mesh)
    translator = Translator(config.model, None, tokenizers, decode, mesh=mesh)

    def evaluate(params: Any, step: int) -> dict[str, float]:
        del step
        hypotheses = translator.with_params(params).translate(sources)
        scores = corpus_scores(hypotheses, references, target_language=config.data.languages[1])
        return {"bleu": scores["bleu"].score}

    return evaluate
