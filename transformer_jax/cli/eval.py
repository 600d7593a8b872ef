"""Translates a test set with a trained model and scores the result by sacrebleu.

    python eval.py --workdir=runs/quickstart
    python eval.py --workdir=DIR --source=in.en --reference=in.de --checkpoint=average:5 --json

Writes `translations/<set>.<checkpoint>.txt` into the run folder, and the scores of exactly
those translations into `scores.json`, under the key `<set>.<checkpoint>`.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from transformer_jax.cli.flags import Parser
from transformer_jax.cli.process_flags import add_process_arguments, start_processes
from transformer_jax.cli.run_flags import DECODING, add_run_arguments, decode_overrides
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.paths import as_path, make_folder, write_whole
from transformer_jax.runs.lock import one_at_a_time


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax eval`."""
    add_run_arguments(parser)
    parser.add_argument(
        "--split", choices=("test", "validation"), help="which set of the run's corpus (test)"
    )
    parser.add_argument("--source", metavar="FILE", help="score this text instead of a split")
    parser.add_argument("--reference", metavar="FILE", help="the reference translation of --source")
    parser.add_argument(
        "--baseline", metavar="FILE", help="other translations, compared by paired bootstrap"
    )
    parser.add_argument("--ter", action="store_true", help="also report TER")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object on standard output, alone"
    )
    parser.add_config(DecodeConfig, title=DECODING)
    add_process_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Translates, scores, writes and reports; of several processes the first one does."""
    from transformer_jax.parallel.processes import gather

    with _all_output_on_standard_error():
        start_processes(args)
        report = evaluate(args)
        gather([])  # they end together
    if report is None:
        return 0
    print(json.dumps(report) if args.json else _as_text(report))
    sys.stdout.flush()
    return 0


@contextlib.contextmanager
def _all_output_on_standard_error() -> Iterator[None]:
    """Whatever a library prints meanwhile: the report is alone on the output.

    That of C++ too: Gloo, the collectives of CPU processes, says whom it has found.
    """
    sys.stdout.flush()
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(output, 1)
        os.close(output)


def evaluate(args: argparse.Namespace) -> dict[str, Any] | None:
    """The report that is printed and kept in scores.json.

    Several processes translate together; all but the first get None.

    Raises:
      UserError: see the message.
    """
    from pydantic import TypeAdapter
    from tqdm import tqdm

    from transformer_jax.config import load_config
    from transformer_jax.decoding.config import DecodeConfig
    from transformer_jax.parallel.processes import is_first
    from transformer_jax.translation.scores import compare, corpus_scores, make_metrics
    from transformer_jax.translation.translator import load_named

    # What can be wrong is found out before the model is loaded and the text translated.
    data = load_config(args.workdir).data
    set_name, origin, sources, references = _read_set(args, data)
    baseline = None if args.baseline is None else _read(args.baseline)
    if baseline is not None and len(baseline) != len(references):
        raise UserError(
            f"--baseline={args.baseline} has {len(baseline)} lines, but {origin} has "
            f"{len(references)} sentences"
        )
    options = {"target_language": data.target_language, "ter": args.ter}
    make_metrics(**options)
    scores_path = as_path(args.workdir) / "scores.json"
    read_scores(scores_path)
    translator, checkpoint = load_named(
        args.workdir, args.checkpoint, together=True, **decode_overrides(args.workdir, args.flags)
    )

    direction = f"{data.source_language}-{data.target_language}"
    with tqdm(
        total=len(sources),
        desc=direction,
        unit=" sentences",
        disable=None if is_first() else True,
        leave=False,
    ) as bar:
        decoded = translator.decode(sources, progress=bar.update)
    translations = [best[0].text for best in decoded.translations]
    if not is_first():
        return None
    decode_seconds = max(decoded.seconds - decoded.compile_seconds, 1e-9)
    name = f"{set_name}.{args.checkpoint.replace(':', '-')}"
    path = as_path(args.workdir) / "translations" / f"{name}.txt"
    report: dict[str, Any] = {
        "name": name,
        "set": origin,
        "source_language": data.source_language,
        "target_language": data.target_language,
        "direction": direction,
        "checkpoint": checkpoint,
        "num_sentences": len(sources),
        "num_cut": decoded.num_cut,
        "seconds": round(decoded.seconds, 3),
        "compile_seconds": round(decoded.compile_seconds, 3),
        "sentences_per_second": round(len(sources) / decode_seconds, 2),
        "decode": TypeAdapter(DecodeConfig).dump_python(translator.decode_config, mode="json"),
        "scores": {
            key: dataclasses.asdict(score)
            for key, score in corpus_scores(translations, references, **options).items()
        },
        "translations": str(path),
    }
    if baseline is not None:
        compared = compare(translations, baseline, references, **options)
        report["baseline"] = {
            "file": args.baseline,
            "scores": {key: dataclasses.asdict(value) for key, value in compared.items()},
        }
    try:
        make_folder(path.parent)
        write_whole(path, "".join(line + "\n" for line in translations).encode())
        add_to_scores(scores_path, name, report)
    except OSError as error:
        raise UserError(f"cannot write {error.filename or path}: {error.strerror}") from error
    return report


def _read_set(args: argparse.Namespace, data: Any) -> tuple[str, str, list[str], list[str]]:
    """(name for files, name for people, sources, references)."""
    if args.source is None and args.reference is None:
        from transformer_jax.data.text import read_pairs

        split: Literal["test", "validation"] = args.split or "test"
        pairs = list(read_pairs(data, split))
        if not pairs:
            raise UserError(f"--split={split}: the run's corpus has no sentences there")
        return split, f"--split={split}", [s for s, _ in pairs], [t for _, t in pairs]
    if args.source is None or args.reference is None:
        raise UserError("--source and --reference belong together: give both or neither")
    if args.split is not None:
        raise UserError("give either --split or --source and --reference, not both")
    sources, references = _read(args.source), _read(args.reference)
    if len(sources) != len(references):
        raise UserError(
            f"--source={args.source} has {len(sources)} lines and --reference={args.reference} "
            f"has {len(references)}; line n of one must translate line n of the other"
        )
    if not sources:
        raise UserError(f"--source={args.source} is empty")
    return Path(args.source).name, f"--source={args.source}", sources, references


def _read(path: str) -> list[str]:
    from transformer_jax.data.sources.files import read_lines

    return list(read_lines(path))


def read_scores(path: Path) -> dict[str, Any]:
    """What scores.json holds; {} where there is none.

    Raises:
      UserError: it is not the JSON object that eval writes.
    """
    try:
        scores = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON: repair it or move it away") from error
    if not isinstance(scores, dict):
        raise UserError(f"{path} is not a JSON object of scores: repair it or move it away")
    return scores


def add_to_scores(path: Path, name: str, report: dict[str, Any]) -> None:
    """Adds an entry to scores.json, which another eval may be doing too."""
    with one_at_a_time(path):
        scores = read_scores(path) | {name: report}
        write_whole(path, (json.dumps(scores, indent=2) + "\n").encode())


def _as_text(report: dict[str, Any]) -> str:
    cut = f", {report['num_cut']} cut in the input" if report["num_cut"] else ", none cut"
    lines = [
        f"{report['direction']}  {report['set']}  checkpoint {report['checkpoint']}",
        f"{report['num_sentences']} sentences scored{cut}; "
        f"{report['sentences_per_second']:.1f} sentences/s "
        f"(and {report['compile_seconds']:.1f} s compiling)",
    ]
    for score in report["scores"].values():
        lines += [f"{score['name']:<8}{score['score']:6.2f}  {score['signature']}"]
    if "baseline" in report:
        lines.append(f"against {report['baseline']['file']} (paired bootstrap):")
        for score in report["baseline"]["scores"].values():
            difference = score["score"] - score["baseline_score"]
            lines.append(
                f"{score['name']:<8}{score['score']:6.2f} against {score['baseline_score']:.2f} "
                f"({difference:+.2f}, p = {score['p_value']:.4f})  {score['signature']}"
            )
    lines.append(f"translations: {report['translations']}")
    return "\n".join(lines)
