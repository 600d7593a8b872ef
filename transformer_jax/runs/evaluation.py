"""Translates a test set with a run's model and scores the result by sacrebleu."""

import dataclasses
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, Literal

import jax
from tqdm import tqdm

from transformer_jax.config import to_dict
from transformer_jax.data.sources.base import Languages
from transformer_jax.data.splits import has_split, read_documents, read_pairs
from transformer_jax.errors import UserError, as_user_error
from transformer_jax.metrics.base import Metric, opened
from transformer_jax.metrics.document_scores import DocumentScores, cut, document_scores
from transformer_jax.metrics.registry import METRICS
from transformer_jax.metrics.scores import (
    Comparison,
    Score,
    compare,
    corpus_scores,
    make_metrics,
)
from transformer_jax.parallel.mesh import decoding_mesh
from transformer_jax.parallel.processes import is_first
from transformer_jax.paths import one_at_a_time, write_whole
from transformer_jax.runs.folder import Run
from transformer_jax.settings.languages import base_language
from transformer_jax.settings.variants import kind_of
from transformer_jax.translation.documents import Tally

#: A split of the run's corpus, or (source, reference) sentences. Without references, which are
#: None then, only metrics that need none give scores.
Pairs = Literal["test", "validation"] | Iterable[tuple[str, str | None]]


@dataclass(frozen=True)
class Report:
    """The scores of one set of translations, and how they were made."""

    name: str  #: the key in scores.json, `<set>.<checkpoint>`
    set: str  #: what was translated
    source_language: str
    target_language: str
    direction: str  #: such as `en-de`
    checkpoint: str  #: such as `best-step-2000`
    num_sentences: int
    num_cut: int  #: sentences longer than the limit, whose end was cut off
    seconds: float  #: wall time, compilation included
    compile_seconds: float  #: of these, until the first batch of each length was finished
    sentences_per_second: float | None  #: in later batches; None if there were none
    decode: dict[str, Any]  #: the `DecodeConfig`
    scores: dict[str, Score]
    translations: str  #: the file of the translations that were scored
    baseline: dict[str, Comparison] | None = None
    documents: DocumentScores | None = None  #: with blocks of the documents as input

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON object; without `baseline` and `documents` if there are none."""
        values = dataclasses.asdict(self)
        missing = {key for key in ("baseline", "documents") if values[key] is None}
        return {key: value for key, value in values.items() if key not in missing}

    def __str__(self) -> str:
        cut = f"{self.num_cut} cut in the input" if self.num_cut else "none cut"
        speed = f"{self.compile_seconds:.1f} s compiling"
        if self.sentences_per_second is not None:
            speed = f"{self.sentences_per_second:.1f} sentences/s (and {speed})"
        lines = [
            f"{self.direction}  {self.set}  checkpoint {self.checkpoint}",
            f"{self.num_sentences} sentences scored, {cut}; {speed}",
        ]
        width = max([8, *(len(s.name) + 2 for s in self.scores.values())])
        for key, s in self.scores.items():
            digits = 4 if key in METRICS else 2
            lines.append(f"{s.name:<{width}}{s.score:6.{digits}f}  {s.signature}")
        if self.documents is not None:
            lines.append(str(self.documents))
        if self.baseline is not None:
            lines.append("against the baseline (paired bootstrap):")
            lines += [
                f"{c.name:<8}{c.score:6.2f} against {c.baseline_score:.2f} "
                f"({c.score - c.baseline_score:+.2f}, p = {c.p_value:.4f})  {c.signature}"
                for c in self.baseline.values()
            ]
        return "\n".join([*lines, f"translations: {self.translations}"])


def evaluate(
    run: Run,
    pairs: Pairs = "test",
    *,
    direction: Languages | None = None,
    checkpoint: str = "best",
    name: str | None = None,
    baseline: Sequence[str] | None = None,
    metrics: Collection[str | Metric] = (),
    documents: bool = False,
    **overrides: Any,
) -> Report | None:
    """Translates, scores, and writes both into the run folder.

    The translations go to `translations/<set>.<checkpoint>.txt`, and the report to `scores.json`
    under the key `<set>.<checkpoint>`. Several processes make the same call and translate on the
    devices of all of them; the first one scores and writes.

    Args:
        run: from `open_run`.
        pairs: a split of the run's corpus, or (source, reference) sentences.
        direction: languages to translate from and into, by a model of several directions; default:
            the run's own. The name of another one is part of the key.
        checkpoint: as `which` of `Run.params`.
        name: the name of the set; default: the split, or `pairs`.
        baseline: other translations of the sources, to compare by paired bootstrap.
        metrics: what to compute besides BLEU and chrF++: `ter`, `bleu_lc`, BLEU in lower case, and
            learned metrics such as `MetricX(FOLDER)`, whose score is the mean over the sentences.
        documents: translate blocks of sentences, and score documents too. Pairs that are given
            have an empty pair after each document.
        **overrides: fields of `DecodeConfig`, in place of the run's own.

    Returns:
        The report; None in all processes but the first.

    Raises:
        UserError: the set is empty or missing, a checkpoint is missing or damaged, an override is
            not valid, or the results cannot be written.
    """
    # Everything that can be wrong is checked before the model is loaded and the text translated.
    own = _own_languages(run)
    asked = overrides.get("source_language"), overrides.get("target_language")
    source_language, target_language = direction or (asked[0] or own[0], asked[1] or own[1])
    _check_languages(direction or (own if isinstance(pairs, str) else asked), asked)
    rows, lengths, name = _read_set(run, pairs, direction, name, documents)
    sources, references = ([row[side] for row in rows] for side in (0, 1))
    if (source_language, target_language) != own:
        name += f".{source_language}-{target_language}"
        overrides |= {"source_language": source_language, "target_language": target_language}
    if baseline is not None and documents and len(baseline) != len(references):
        baseline = [line for line in baseline if line.strip()]  # without the ends of documents
    if baseline is not None and len(baseline) != len(references):
        raise UserError(
            f"the baseline has {len(baseline)} lines, but {name} has {len(references)} sentences"
        )
    learned = [metric for metric in metrics if isinstance(metric, Metric)]
    also = [metric for metric in metrics if isinstance(metric, str)]
    options: Any = {"target_language": target_language, "also": also}
    make_metrics(**options)
    if has_none := None in references:
        _check_without_references(learned, other=also or baseline or documents)
    judges = [opened(metric) for metric in learned] if is_first() else []
    run.scores()
    mesh = decoding_mesh(run.config.mesh, jax.devices())
    chosen = run.select(checkpoint)
    translator = run.translator(chosen, mesh, **overrides)
    direction_name = f"{source_language}-{target_language}"
    disable = None if is_first() else True  # None: only on a terminal
    with tqdm(
        total=len(sources), desc=direction_name, unit=" sentences", disable=disable, leave=False
    ) as bar:
        if documents:
            made: Any = Tally()
            in_documents = cut(sources, lengths)
            texts = translator.translate_documents(in_documents, tally=made, progress=bar.update)
            translations, num_cut = list(chain.from_iterable(texts)), made.cut
        else:
            made = translator.decode(sources, num_best=1, progress=bar.update)
            translations, num_cut = [best[0].text for best in made.translations], made.num_cut
    if not is_first():
        return None
    of_documents = None
    if documents:
        scored = document_scores(translations, references, lengths, **options)
        of_documents = dataclasses.replace(scored, blocks=made.blocks, divided=made.divided)
    speed = made.timing.per_second(len(sources))
    scores = {} if has_none else corpus_scores(translations, references, **options)
    for metric, judge in zip(learned, judges, strict=True):
        judged = judge(sources, translations, [reference or "" for reference in references])
        score = Score(metric.title, float(judged.mean()), metric.signature)
        scores[kind_of(metric, METRICS)] = score
    key = f"{name}.{chosen.which.replace(':', '-')}"
    path = run.path / "translations" / f"{key}.txt"
    report = Report(
        name=key,
        set=name,
        source_language=source_language,
        target_language=target_language,
        direction=direction_name,
        checkpoint=chosen.name,
        num_sentences=len(sources),
        num_cut=num_cut,
        seconds=round(made.timing.seconds, 3),
        compile_seconds=round(made.timing.compile_seconds, 3),
        sentences_per_second=None if speed is None else round(speed, 2),
        decode=to_dict(translator.decode_config),
        scores=scores,
        translations=str(path),
        baseline=compare(translations, baseline, references, **options) if baseline else None,
        documents=of_documents,
    )
    with as_user_error(f"cannot write {path} and scores.json:", OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(line + "\n" for line in translations).encode())
        add_to_scores(run, report.name, report.to_json())
    return report


def translate_set(
    run: Run, sources: Sequence[str], direction: Languages | None = None, **overrides: Any
) -> list[str]:
    """The translations by a run's best checkpoint, of which nothing is kept.

    The arguments are those of `evaluate`.

    Raises:
        UserError: as `evaluate`.
    """
    if direction and direction != _own_languages(run):
        overrides |= dict(zip(("source_language", "target_language"), direction, strict=True))
    mesh = decoding_mesh(run.config.mesh, jax.devices())
    return run.translator("best", mesh, **overrides).translate(sources)


def _own_languages(run: Run) -> Languages:
    """Those of an imported model are set without any training text, or not known at all."""
    data = run.config.data
    return data.source_language or "unknown", data.target_language or "unknown"


def _check_languages(of_set: Languages | tuple[Any, Any], asked: tuple[Any, Any]) -> None:
    """Raises UserError if an override names a language that the set does not have."""
    for side, known, given in zip(("source", "target"), of_set, asked, strict=True):
        if known and given and base_language(known) != base_language(given):
            raise UserError(
                f"{side}_language={given}: the set is in {known}; choose another set by its "
                "direction, such as --direction=en-fr"
            )


def _check_without_references(learned: Sequence[Metric], other: Any) -> None:
    """Raises UserError if something needs the references that are not there."""
    needing = [kind_of(metric, METRICS) for metric in learned if metric.needs_reference]
    if needing or other or not learned:
        needs = needing[0] if needing else "what you ask for" if other else "BLEU"
        without = ", ".join(name for name, cls in METRICS.items() if not cls.needs_reference)
        raise UserError(
            f"there is no reference, which {needs} needs: give --reference, or score by {without} "
            "alone"
        )


def _read_set(
    run: Run, pairs: Pairs, direction: Languages | None, name: str | None, documents: bool
) -> tuple[list[tuple[str, Any]], list[int], str]:
    """(pairs, with `documents` the pairs of each document, the set's name)."""
    data = run.config.data
    if isinstance(pairs, str):
        if pairs not in ("test", "validation"):
            raise UserError(f"{pairs}: use test, validation or a list of pairs")
        if not has_split(data, pairs, direction):
            instead = "give sentences and their references instead"
            raise UserError(f"no {pairs} set in the config of this run: {instead}")
        read: Any = read_documents if documents else read_pairs
        found = list(read(data, pairs, direction))
    elif documents:
        groups = groupby(pairs, lambda pair: any(side and side.strip() for side in pair))
        found = [list(rows) for is_text, rows in groups if is_text]
    else:
        found = list(pairs)
    name = name or (pairs if isinstance(pairs, str) else "pairs")
    rows, lengths = found, list[int]()
    if documents:
        name += ".documents"
        rows, lengths = list(chain.from_iterable(found)), list(map(len, found))
    if not rows:
        raise UserError(f"{name}: there are no sentences")
    return rows, lengths, name


def add_to_scores(run: Run, name: str, report: dict[str, Any]) -> None:
    """Adds an entry to scores.json, which another process may be doing too."""
    path = run.path / "scores.json"
    with one_at_a_time(path):
        scores = run.scores() | {name: report}
        write_whole(path, (json.dumps(scores, indent=2) + "\n").encode())
