r"""Trains a student, a small fast model, on what a trained model or an ensemble translates.

    transformer-jax distil --teacher=runs/quickstart --config=student_small_text \
        --workdir=runs/student
    transformer-jax distil --teacher=runs/one --teacher=runs/two --config=student_tiny \
        --workdir=runs/student --monolingual=news.en --min_score=-1

The teacher translates the sources of its training text, or of the text that the recipe names; the
student is trained on the result in --workdir, which is a run folder as any other; a table compares
the two. Flags without `config.`, such as --method or --checkpoint, are the teacher's. The student
has the teacher's tokenizers unless its config says otherwise.

    transformer-jax distil --translations=llm.tsv --config=student_tiny --workdir=runs/student \
        --config.data.source_language=en --config.data.target_language=ug \
        --config.data.validation_from_train=1000

With --translations the teacher is text: TSV (source TAB translation, and TAB score) or JSONL (the
languages' codes as keys, and "score"). Of several rows of one source the best is taken, or all.

With --export=firefox the folder that Mozilla takes follows, in `distillation/exported`: int8 and a
shortlist, both made from the student's own text. The option also takes other formats of `export`.

The folder `distillation` in --workdir has what was made on the way: `text`, `translations`,
`chosen`, the rows of the table and `table.md`. The same command continues what was stopped. For
several processes, run the same command in each, with the flags of `train`: each translates its
part of the lines.
"""

import argparse
import contextlib
import dataclasses
import math
from typing import Any

from transformer_jax.commands.flags import Parser
from transformer_jax.commands.recipe_flags import recipe_of
from transformer_jax.commands.run_flags import (
    add_process_arguments,
    add_run_arguments,
    chosen_run,
    start_processes,
)
from transformer_jax.config import Config
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources.files import Files
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.paths import as_path, in_bucket
from transformer_jax.settings.keys import keys_of


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax distil`."""
    add_run_arguments(parser, flag="--teacher", required=False)
    add = parser.add_argument
    add("--config", required=True, metavar="RECIPE", help="of the student, by name or as a file")
    add("--workdir", required=True, metavar="DIR", type=as_path, help="the student's run folder")
    more: Any = {"action": "append", "default": [], "metavar": "FILE"}
    add("--translations", help="in place of a teacher: .tsv or .jsonl with scores", **more)
    all_of = "of several translations of a source, the one of the highest score, or all"
    add("--candidates", choices=("best", "all"), default="best", help=all_of)
    add("--monolingual", help="more sentences to translate, one a line", **more)
    least = "leave translations out whose log-probability per piece is lower"
    add("--min_score", type=float, metavar="X", help=least)
    nearest = "take of N translations the one nearest to the reference by chrF"
    add("--nearest_of", type="count", default=1, metavar="N", help=nearest)
    add("--references", action="store_true", help="train on the text's own translations too")
    add("--export", metavar="KIND", help="then write the student in this format of `export`")
    add("--no_progress", action="store_true", help="no progress bars")
    add_process_arguments(parser)
    parser.add_config(Config, prefix="config.", usual=keys_of(Config))


def run(args: argparse.Namespace) -> None:
    """Fills what is missing of text, translations, choice, student and table; prints the table."""
    decoding = keys_of(DecodeConfig)  # how the teacher translates
    of_teacher = {key: args.flags[key] for key in args.flags if key.split(".")[0] in decoding}
    args.flags = {key: args.flags[key] for key in args.flags if key not in of_teacher}
    recipe = recipe_of(args)
    if in_bucket(args.workdir):
        raise UserError(f"--workdir={args.workdir}: `distil` needs a folder on a disk")
    if args.min_score is not None and not math.isfinite(args.min_score):
        raise UserError(f"--min_score={args.min_score}: must be a number")
    if bool(args.translations) == bool(args.teacher):
        raise UserError("give --teacher=DIR or --translations=FILE, one of them")
    if args.teacher and args.candidates != "best":
        raise UserError(f"--candidates={args.candidates} is for --translations")
    start_processes(args)
    from transformer_jax.commands.distil.stages import Distillation
    from transformer_jax.commands.distil.student import languages_for, taught_by
    from transformer_jax.commands.distil.table import Contestant
    from transformer_jax.commands.distil.text import one_direction
    from transformer_jax.commands.signals import StopOnSignals
    from transformer_jax.parallel.processes import from_first, gather, is_first
    from transformer_jax.runs.ensemble import members
    from transformer_jax.runs.lock import only_run

    if args.translations:
        data = one_direction(_of_translations(args, of_teacher, recipe.config))
        work = Distillation(args, None, recipe.config, recipe.by_pairs, data)
    else:
        flags = vars(args) | {"workdir": args.teacher, "flags": of_teacher}
        run, overrides = chosen_run(argparse.Namespace(**flags))
        config = taught_by(run, recipe.config)
        data = one_direction(config.data)
        overrides = languages_for(members(run), data.languages) | overrides
        teacher = Contestant("teacher", run, args.checkpoint, overrides)
        teacher.decode.method.with_hypotheses(args.nearest_of)
        work = Distillation(args, teacher, config, recipe.by_pairs, data)
    with contextlib.ExitStack() as lock:
        from_first(lambda: lock.enter_context(only_run(work.folder)))
        work.write_text()
        from_first(work.check_student)
        stop = StopOnSignals()
        if not args.translations:
            work.translate(stop)
            work.choose()
        work.train(stop)
        table = from_first(work.compare)
        if args.export:
            table += f"{work.export()}\n"
        if is_first():
            print(table, end="")
        gather([])  # all processes end together


def _of_translations(args: argparse.Namespace, flags: dict[str, Any], config: Config) -> DataConfig:
    """The text of --translations.

    Raises:
        UserError: a flag goes with a teacher alone, or names another text.
    """
    others = {"checkpoint": "best", "monolingual": [], "nearest_of": 1, "references": False}
    wrong = [*flags, *(name for name, usual in others.items() if getattr(args, name) != usual)]
    if wrong:
        raise UserError(f"--{wrong[0]} is for a --teacher: leave it out with --translations")
    data = config.data
    if not isinstance(data.source, Files) or data.source.train_source or data.corpora:
        raise UserError("--translations are the text to train on: the config names another one")
    if not (data.source_language and data.target_language):
        raise UserError(
            "--translations: name the languages by --config.data.source_language and "
            "--config.data.target_language"
        )
    source = dataclasses.replace(data.source, train_source=tuple(args.translations))
    return dataclasses.replace(data, source=source)
