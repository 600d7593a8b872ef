"""Trains what a config says in a run folder: from text to a trained model."""

import contextlib
import dataclasses
import functools
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from etils import epath
from jax.sharding import Mesh

from transformer_jax.config import Config, TrainConfig, from_json, override, to_json
from transformer_jax.data.batch_shapes import Shape
from transformer_jax.data.batches import BatchPlan, Share, make_batch
from transformer_jax.data.ids import IdCorpus, ids_of_text
from transformer_jax.data.language_tags import in_languages
from transformer_jax.data.pipeline import batches
from transformer_jax.data.sampling import SubwordSampler
from transformer_jax.data.sources.base import Languages, Pair
from transformer_jax.data.splits import check_splits, directions_with, visit_rates
from transformer_jax.data.tokenizer_pair import Tokenizers, read_tokenizer
from transformer_jax.data.tokenizer_training import tokenizers_of_text
from transformer_jax.data.training_text import TrainingText
from transformer_jax.decoding.config import while_training
from transformer_jax.errors import UserError
from transformer_jax.models import api
from transformer_jax.models.api import Params
from transformer_jax.models.config import ModelConfig, check_model_config
from transformer_jax.models.lora import NoAdapter
from transformer_jax.parallel.mesh import batch_devices, make_mesh, process_share
from transformer_jax.parallel.processes import from_first, is_first, one_host_at_a_time
from transformer_jax.paths import as_path, write_whole
from transformer_jax.recipes import ByPairs
from transformer_jax.runs.folder import Run
from transformer_jax.runs.lock import only_run
from transformer_jax.runs.log import RunLog
from transformer_jax.runs.pretrained import check_init_from, initial_params
from transformer_jax.runs.resume import Start, check_identity, resolve
from transformer_jax.training.dropout_rate import with_dropout_rate
from transformer_jax.training.duration import about, measured, settled
from transformer_jax.training.frozen import trained_part
from transformer_jax.training.loop import BatchesFrom, Evaluate, feeder, fit
from transformer_jax.training.record import Origin
from transformer_jax.training.reporter import AboutBatches
from transformer_jax.training.trainer import Trainer
from transformer_jax.translation.scores import corpus_scores, make_metrics
from transformer_jax.translation.translator import Translator

_LOGGER = logging.getLogger(__name__)


def run(
    config: Config,
    workdir: str | os.PathLike[str],
    *,
    by_pairs: ByPairs | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    progress: bool = False,
) -> None:
    """Trains in `workdir`, or continues the run that is there.

    Several processes make the same call; the first one learns the tokenizer and writes everything
    except the other processes' parts of the checkpoints. Messages also go to `log.txt`.

    Args:
        config: the recipe.
        workdir: the run folder.
        by_pairs: what a new run fills in by the size of its text.
        should_stop: asked once after each step; True saves and returns.
        progress: draw progress bars on standard error.

    Raises:
        UserError: the config or the text is not valid, and nothing of an earlier run was touched;
            or a failure ended the training.
    """
    began = time.perf_counter()
    path = as_path(workdir)
    progress = progress and is_first()
    # How a start is decided, in this order. Up to `_begin` nothing is written to the run folder.
    # 1. `_resolve`: by config.json this is a new run, a continued run, or refused. A run that
    #    exists is locked: a second process that trains here is refused.
    # 2. `_prepare`: a continued run uses its own tokenizers; a new one learns them.
    #    Parameters of another run that do not fit this one are refused.
    # 3. `_settled`: a new run with `train.minutes` measures its steps. How many there are decides
    #    on `model.dropout_rate=auto`.
    # 4. `_begin`: a text or tokenizer other than the newest checkpoint's is refused.
    # 5. `fit` continues at the newest whole checkpoint; at step 0 if there has never been one; if
    #    all are damaged the run is refused.
    with RunLog() as log, contextlib.ExitStack() as lock:
        start = _resolve(config, path, by_pairs, lock)
        mesh = make_mesh(start.config.mesh)
        data = _prepare(start, path, progress)
        _describe(data)
        evaluate = _evaluator(data, mesh)
        trainer = lock.enter_context(_trainer(data, mesh))
        if start.measures_steps:
            measured_as = data.config.model
            data = _settled(data, start.config.model, trainer, mesh, evaluate, began)
            if data.config.model != measured_as:
                trainer = lock.enter_context(_trainer(data, mesh))
        if start.config.model.dropout_rate == "auto":
            epochs = _epochs(data.config.train, data.plan)
            _LOGGER.info(
                "model.dropout_rate=%s for %.1f epochs", data.config.model.dropout_rate, epochs
            )
        _begin(start, data, path, log, lock)
        fit(
            data.config.model,
            dataclasses.replace(data.config.train, minutes=None),
            _batches_from(data, mesh),
            workdir=path,
            mesh=mesh,
            evaluate=evaluate,
            about_batches=_shares(data),
            origin=data.origin(),
            initial=_initial(data.config, mesh),
            should_stop=should_stop,
            progress=progress,
            trainer=trainer,
            prepared=time.perf_counter() - began,
        )


@dataclass(frozen=True)
class _Data:
    """What a run trains on."""

    config: Config
    tokenizers: Tokenizers
    corpus: IdCorpus  #: the training text as ids
    sampler: SubwordSampler | None  #: gives other ids at each visit
    plan: BatchPlan  #: which pairs each batch holds
    #: what BLEU is measured on while training, for each direction that has a validation set
    validation: dict[Languages, list[Pair]]

    def origin(self) -> Origin:
        """What determines the run besides its config."""
        digests = self.tokenizers.source.fingerprint + self.tokenizers.target.fingerprint
        identity = {
            "training data": self.plan.fingerprint,
            "training text": self.corpus.fingerprint,
            "tokenizer": hashlib.sha256(digests.encode()).hexdigest(),
        }
        files = self.tokenizers.files().items()
        return Origin(identity, {f"tokenizer/{name}": model for name, model in files})


def _resolve(
    config: Config, workdir: epath.Path, by_pairs: ByPairs | None, lock: contextlib.ExitStack
) -> Start:
    """How the run starts, the same in all processes; a run that exists is locked."""

    def resolve_here() -> tuple[str, bool, bool]:
        start = resolve(config, workdir, by_pairs)
        check_model_config(with_dropout_rate(start.config.model, epochs=0))
        if start.has_folder:  # a new folder is made once nothing can be refused any more
            lock.enter_context(only_run(workdir))
        return to_json(start.config), start.is_new, start.has_folder

    text, is_new, has_folder = from_first(resolve_here)
    return Start(from_json(text, "config"), is_new, has_folder)


def _prepare(start: Start, workdir: epath.Path, progress: bool) -> _Data:
    """Reads the text once: the tokenizers, the validation pairs, the ids and the batches."""
    # Nothing that is checked here depends on the dropout rate, which may follow from the epochs.
    config = dataclasses.replace(
        start.config, model=with_dropout_rate(start.config.model, epochs=0)
    )
    with TrainingText(config.data, is_new=start.is_new and is_first()) as text:
        validation = _validation(config, text)
        tokenizers = _tokenizers(start, text, workdir)
        alpha = config.tokenizer.sampling_alpha
        sampler = SubwordSampler(tokenizers, alpha, config.batch.seed) if alpha else None
        if start.is_new and config.train.init_from:
            check_init_from(config, tokenizers)
        trained_part(config.train, api.abstract_params(config.model))
        corpus = one_host_at_a_time(
            lambda: ids_of_text(text, tokenizers, sampler, progress=progress)
        )
    plan = BatchPlan(
        corpus.source.lengths,
        corpus.target.lengths,
        config.batch,
        row_multiple=config.batch.row_multiple or 1,
        corpora=list(zip(corpus.sizes, visit_rates(config.data, corpus.sizes), strict=True)),
    )
    if not start.measures_steps:
        # Else the epochs are not known yet. The rate of few epochs is used to measure: in a long
        # training it matters little that its steps are compiled twice.
        model = with_dropout_rate(start.config.model, _epochs(config.train, plan))
        config = dataclasses.replace(config, model=model)
    return _Data(config, tokenizers, corpus, sampler, plan, validation)


def _epochs(train: TrainConfig, plan: BatchPlan) -> float:
    """How often the training sees the text."""
    return train.steps / plan.batches_per_epoch


@contextlib.contextmanager
def _trainer(data: _Data, mesh: Mesh) -> Iterator[Trainer]:
    """Compiles the steps in threads while it is open."""
    trainer = Trainer(data.config.model, data.config.train, mesh)
    with trainer.compiling_ahead(_shapes(data, mesh)):
        yield trainer


def _validation(config: Config, text: TrainingText) -> dict[Languages, list[Pair]]:
    """The pairs that BLEU is measured on while training, for each direction with a validation set.

    Raises:
        UserError: something is wrong with a validation or test set, which is otherwise read only
            after training.
    """

    def check() -> list[Languages]:
        check_splits(config.data)
        return directions_with(config.data, "validation")

    found = {}
    for direction in map(tuple, from_first(check)):
        make_metrics(target_language=direction[1])
        read = functools.partial(text.validation, config.train.evaluate_sentences, direction)
        found[direction] = list(one_host_at_a_time(read))
    if not found and config.train.early_stopping is not None:
        raise UserError(
            f"train.early_stopping={config.train.early_stopping} needs a validation set: give "
            "data.source.validation_source and data.source.validation_target, or "
            "data.validation_from_train; or set train.early_stopping=none"
        )
    return found


def _tokenizers(start: Start, text: TrainingText, workdir: epath.Path) -> Tokenizers:
    """The tokenizers, read or learned by the first process."""

    def models() -> list[str]:
        config = start.config
        if start.is_new:  # any tokenizer in the folder is of a start that failed
            made = tokenizers_of_text(config.tokenizer, config.data, text)
        else:
            made = Run(workdir, config).tokenizers()
        return [model.hex() for model in made.files().values()]

    made = [read_tokenizer(bytes.fromhex(model)) for model in from_first(models)]
    return Tokenizers(made[0], made[-1])


def _begin(
    start: Start, data: _Data, workdir: epath.Path, log: RunLog, lock: contextlib.ExitStack
) -> None:
    """Locks the run folder and writes `config.json`, the tokenizers and the log so far."""

    def begin() -> None:
        check_identity(data.origin().identity, workdir)  # a run that is refused stays as it is
        lock.enter_context(only_run(workdir))
        log.open(workdir)
        path = workdir / "config.json"
        if not start.has_folder and path.exists():
            raise UserError(f"{workdir}: another run was started here meanwhile")
        data.tokenizers.save(workdir / "tokenizer")
        try:
            write_whole(path, to_json(data.config).encode())
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from error

    from_first(begin)


def _describe(data: _Data) -> None:
    """Logs the size of the text and of the model, and what is unusual about the run."""
    config, plan = data.config, data.plan
    params = api.abstract_params(config.model)
    trained = sum(leaf.size for leaf in jax.tree.leaves(trained_part(config.train, params)))
    total = api.num_params(config.model)
    count = f"{total:,} parameters{f' ({trained:,} trained)' if trained < total else ''}"
    skipped = f" ({plan.num_skipped:,} longer than {config.batch.max_length} skipped)"
    _LOGGER.info(
        f"{', '.join(' -> '.join(direction) for direction in config.data.directions)}: "
        f"{plan.num_pairs:,} training pairs{skipped if plan.num_skipped else ''}, "
        f"{plan.batches_per_epoch:,} batches an epoch in {len(plan.shapes)} shapes, "
        f"{100 * plan.padding_fraction():.1f} % padding; "
        f"{count} on {jax.device_count()} {jax.devices()[0].platform} device(s)"
    )
    if config.data.corpora:
        rates = visit_rates(config.data, data.corpus.sizes)
        rows = zip(config.data.names, data.corpus.sizes, rates, strict=True)
        listed = "; ".join(f"{name}: {size:,} pairs x {rate:.3g}" for name, size, rate in rows)
        _LOGGER.info(f"corpora, and how often an epoch has their pairs: {listed}")
    warmup = config.train.schedule.warmup_steps
    if config.train.steps <= warmup:
        _LOGGER.warning(
            f"train.steps={config.train.steps} ends within the warm-up of train.schedule."
            f"warmup_steps={warmup}: the learning rate does not reach its peak; lower warmup_steps"
        )
    if not data.validation:
        _LOGGER.info("no validation set: no BLEU while training, and `best` will mean the newest")


def _settled(
    data: _Data,
    model: ModelConfig,
    trainer: Trainer,
    mesh: Mesh,
    evaluate: Evaluate | None,
    began: float,
) -> _Data:
    """The training that fits into `train.minutes`, by the speed of the first process's machine.

    Args:
        data: what is trained on.
        model: as given; its dropout rate may be left open.
        trainer: its compiled steps are used again, unless the dropout rate becomes another one.
        mesh: the devices.
        evaluate: as in `fit`.
        began: `time.perf_counter()` at the start of the run.

    Raises:
        UserError: not even some tens of steps fit.
    """
    train, plan = data.config.train, data.plan
    to_device = feeder(mesh, train.accumulate)
    share = _share(data, mesh)
    _LOGGER.info("train.minutes: compiling %d shapes and measuring their steps", len(plan.shapes))
    batches = (
        (to_device(make_batch(data.corpus, plan, position, share, data.sampler)), count)
        for position, count in plan.examples()
    )
    measuring = time.perf_counter()
    speed = measured(trainer, batches, evaluate)

    def settle() -> list[int]:
        now = time.perf_counter()
        fitting = settled(train, speed, now - began)
        if with_dropout_rate(model, _epochs(fitting, plan)) != data.config.model:
            # Its steps are compiled once more.
            fitting = settled(train, speed, now - began + (now - measuring))
        _LOGGER.info(about(train, fitting, speed))
        return [fitting.steps, fitting.schedule.warmup_steps]

    steps, warmup = from_first(settle)
    train = override(train, {"steps": steps, "schedule.warmup_steps": warmup})
    model = with_dropout_rate(model, _epochs(train, plan))
    config = dataclasses.replace(data.config, model=model, train=train)
    return dataclasses.replace(data, config=config)


def _initial(config: Config, mesh: Mesh) -> Callable[[], Params] | None:
    """Reads the parameters that a new run begins with; None for random ones."""
    if config.train.init_from is None:
        return None
    return functools.partial(initial_params, config.train.init_from, mesh)


def _batches_from(data: _Data, mesh: Mesh) -> BatchesFrom:
    """This process's rows of the batches from a position on."""
    share = _share(data, mesh)
    return functools.partial(batches, data.corpus, data.plan, share=share, sampler=data.sampler)


def _shapes(data: _Data, mesh: Mesh) -> list[Shape]:
    """The shapes of the global batches that the run has, in the order of their first use."""
    whole = Share(row_multiple=_share(data, mesh).row_multiple)
    return [
        data.plan.rows(position, whole)[0]
        for position, _ in data.plan.examples()
        if position < data.config.train.steps
    ]


def _share(data: _Data, mesh: Mesh) -> Share:
    return Share(*process_share(mesh), batch_devices(mesh) * data.config.train.accumulate)


def _shares(data: _Data) -> AboutBatches:
    """The share of each of several corpora in the pairs of some batches."""
    names = data.config.data.names

    def shares(positions: range) -> dict[str, float]:
        if len(names) == 1:
            return {}
        values = data.plan.shares(positions).tolist()
        return {f"share.{name}": value for name, value in zip(names, values, strict=True)}

    return shares


def _evaluator(data: _Data, mesh: Mesh) -> Evaluate | None:
    """Greedy BLEU on the first validation sentences; None if there are none.

    Of several directions it is the mean of their BLEU.

    The parameters stay on the devices where training has them, and all devices translate: no
    process needs more of the parameters than its own part.
    """
    if not data.validation:
        return None
    config = data.config
    model = dataclasses.replace(config.model, adapter=NoAdapter())
    decode = while_training(config.decode)
    translators = {
        direction: Translator(
            model,
            None,
            in_languages(config.data, data.tokenizers, direction),
            decode,
            mesh=mesh,
        )
        for direction in data.validation
    }

    def evaluate(params: Any, step: int) -> dict[str, float]:
        del step
        _, merged = api.merge_adapter(config.model, params)
        bleu = {}
        for direction, pairs in data.validation.items():
            sources, references = ([pair[side] for pair in pairs] for side in (0, 1))
            hypotheses = translators[direction].with_params(merged).translate(sources)
            scores = corpus_scores(hypotheses, references, target_language=direction[1])
            bleu["-".join(direction)] = scores["bleu"].score
        mean = {"bleu": sum(bleu.values()) / len(bleu)}
        return mean | (
            {f"bleu.{name}": score for name, score in bleu.items()} if len(bleu) > 1 else {}
        )

    return evaluate
