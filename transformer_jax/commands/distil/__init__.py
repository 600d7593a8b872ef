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
import logging
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Any

from etils import epath

from transformer_jax.commands.flags import Parser
from transformer_jax.commands.main import STOPPED
from transformer_jax.commands.recipe_flags import USUAL, recipe_of
from transformer_jax.commands.run_flags import (
    add_process_arguments,
    add_run_arguments,
    chosen_run,
    start_processes,
)
from transformer_jax.config import Config, to_dict
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources.files import Files
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.errors import UserError
from transformer_jax.paths import as_path, in_bucket, stage, write_whole
from transformer_jax.recipes import ByPairs
from transformer_jax.settings.keys import keys_of

if TYPE_CHECKING:
    from transformer_jax.commands.signals import StopOnSignals
    from transformer_jax.formats.exporter import Exporter

_LOGGER = logging.getLogger(__name__)

#: Lines of a part, which one process translates. It does not depend on the number of processes, so
#: that another number of them may continue.
_PART = 4096
#: Lines are translated in chunks of this many batches, so that they can be sorted by length.
_BATCHES_PER_CHUNK = 32


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
    parser.add_config(Config, prefix="config.", usual=USUAL)


def run(args: argparse.Namespace) -> int:
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
    from transformer_jax.commands.distil.student import languages_for, taught_by
    from transformer_jax.commands.distil.table import Contestant
    from transformer_jax.commands.distil.text import one_direction
    from transformer_jax.commands.signals import StopOnSignals, Stopped
    from transformer_jax.parallel.processes import from_first, gather, is_first
    from transformer_jax.runs.ensemble import members
    from transformer_jax.runs.lock import only_run

    if args.translations:
        data = one_direction(_of_translations(args, of_teacher, recipe.config))
        work = _Distillation(args, None, recipe.config, recipe.by_pairs, data)
    else:
        flags = vars(args) | {"workdir": args.teacher, "flags": of_teacher}
        run, overrides = chosen_run(argparse.Namespace(**flags))
        config = taught_by(run, recipe.config)
        data = one_direction(config.data)
        overrides = languages_for(members(run), data.languages) | overrides
        teacher = Contestant("teacher", run, args.checkpoint, overrides)
        teacher.decode.method.with_hypotheses(args.nearest_of)
        work = _Distillation(args, teacher, config, recipe.by_pairs, data)
    with contextlib.ExitStack() as lock:
        from_first(lambda: lock.enter_context(only_run(work.folder)))
        work.fill_text()
        from_first(work.check_student)
        try:
            stop = StopOnSignals()
            if not args.translations:
                work.translate(stop)
                work.choose()
            work.train(stop)
        except Stopped:
            _LOGGER.info("stopped and saved; the same command continues")
            return STOPPED
        table = from_first(work.compare)
        if args.export:
            table += f"{work.export()}\n"
        if is_first():
            print(table, end="")
        gather([])  # all processes end together
    return 0


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


#: Writes into a folder.
Fill = Callable[[epath.Path], None]


def _stage(folder: epath.Path, inputs: dict[str, Any], fill: Fill) -> None:
    """Fills a folder once; all processes make the same call, and wait for its end."""
    from transformer_jax.parallel.processes import from_first

    stage(folder, inputs, fill, flag="--workdir", first=from_first)


def _in_first(fill: Fill) -> Fill:
    """The same in the first process alone."""
    from transformer_jax.parallel.processes import from_first

    return lambda place: from_first(lambda: fill(place))


@dataclass(frozen=True)
class _Distillation:
    """The stages of one command; each is done once, and all processes make the same calls."""

    args: argparse.Namespace
    teacher: Any  #: a `Contestant`; None for translations that are given
    config: Config  #: of the student, but for its text
    by_pairs: ByPairs | None
    data: DataConfig  #: the text that the teacher translates

    @property
    def folder(self) -> epath.Path:
        """Where the stages are."""
        return epath.Path(self.args.workdir / "distillation")

    @property
    def pairs(self) -> epath.Path:
        """Where the pairs to train on are, or before the choice those to translate."""
        chosen = self.folder / "chosen"
        return chosen if chosen.exists() and not self.args.translations else self.folder / "text"

    def fill_text(self) -> None:
        """Writes the text as files of lines."""
        from transformer_jax.commands.distil import text, translations

        options: dict[str, Any] = {}
        if self.args.translations:
            options = {
                "most_words": self.config.batch.max_length,
                "least": self.args.min_score,
                "keep_all": self.args.candidates == "all",
            }

        write = translations.write_text if options else text.write_text
        fill = _in_first(partial(write, self.data, **options))
        _stage(self.folder / "text", text.hashes(self.data) | options, fill)

    def check_student(self) -> None:
        """Raises UserError for what is wrong with the student, before hours of translating."""
        from transformer_jax.commands.distil.translations import check_alphabet
        from transformer_jax.models.config import check_model_config
        from transformer_jax.models.lora import NoAdapter
        from transformer_jax.runs.pretrained import check_named
        from transformer_jax.runs.start import check_training, resolve_start

        config = resolve_start(self._trained_on(), self.args.workdir, self.by_pairs).config
        check_model_config(config.model)
        check_training(config)
        check_named(config, None, is_new=False)
        if config.train.teacher.pieces and config.tokenizer.source_model is None:
            raise UserError(
                "train.teacher needs the teacher's tokenizers, and this student learns others: set "
                "--config.tokenizer.vocab_size=none and no other key of the tokenizer"
            )
        if self.args.translations:
            check_alphabet(config.tokenizer, self.pairs)
        if self.args.export:
            merged = dataclasses.replace(config.model, adapter=NoAdapter())  # as in the export
            self._exporter().check(dataclasses.replace(config, model=merged))

    def translate(self, stop: "StopOnSignals") -> None:
        """Translates the sources; each process has its parts of the lines."""
        from transformer_jax.commands.signals import Stopped

        def fill(place: epath.Path) -> None:
            with contextlib.suppress(Stopped):
                self._translate_parts(place, stop)
            if stop.meet():
                raise Stopped

        _stage(self.folder / "translations", self._inputs_of_translations(), fill)

    def choose(self) -> None:
        """Chooses what the student is trained on."""
        inputs = self._inputs_of_translations() | {"min_score": self.args.min_score}
        _stage(self.folder / "chosen", inputs, _in_first(self._fill_chosen))

    def train(self, stop: "StopOnSignals") -> None:
        """Trains the student."""
        from transformer_jax.commands.signals import Stopped
        from transformer_jax.training.train import train

        train(
            self._trained_on(),
            self.args.workdir,
            by_pairs=self.by_pairs,
            should_stop=stop,
            progress=not self.args.no_progress,
        )
        if stop.stopped:
            raise Stopped

    def compare(self) -> str:
        """The table, which is also written; in the first process."""
        from transformer_jax.commands.distil.table import Contestant, measured, table
        from transformer_jax.commands.distil.text import scored_sets
        from transformer_jax.runs.folder import open_run

        student = Contestant("student", open_run(self.args.workdir), "best", {})
        sets, language = scored_sets(self.folder / "text"), self.data.languages[1]
        contestants = student.also_with(Greedy())
        if self.teacher is not None:
            methods = Greedy(), self.teacher.decode.method
            contestants = [*self.teacher.also_with(*methods), *student.also_with(*methods)]
        rows = [measured(each, sets, language, self.folder / "rows") for each in contestants]
        text = table(rows)
        write_whole(self.folder / "table.md", text.encode())
        return text

    def export(self) -> epath.Path:
        """Writes the student in another format, unless that was done; returns the folder."""
        from transformer_jax.commands.distil.text import sets_in
        from transformer_jax.formats.export import export
        from transformer_jax.formats.exporters import EXPORTERS
        from transformer_jax.paths import remove_folder
        from transformer_jax.runs.evaluation import evaluate
        from transformer_jax.runs.folder import open_run
        from transformer_jax.settings.variants import kind_of, to_text

        run, exporter, folder = open_run(self.args.workdir), self._exporter(), self.folder
        kind = kind_of(exporter, EXPORTERS)
        for name in sets_in(folder / "text"):  # for the card
            if f"{name}.best" not in run.scores():
                evaluate(run, name)  # type: ignore[arg-type]

        def fill(place: epath.Path) -> None:
            remove_folder(place / kind)
            export(run, exporter, place / kind)

        inputs = {"student": run.fingerprint(), "format": to_text(exporter, EXPORTERS)}
        _stage(folder / "exported", inputs, _in_first(fill))
        return folder / "exported" / kind

    def _exporter(self) -> "Exporter":
        """The format of --export; int8 is measured, and its shortlist made, on the text."""
        from transformer_jax.commands.distil.text import names
        from transformer_jax.formats.export import parsed
        from transformer_jax.formats.marian.bergamot import Bergamot
        from transformer_jax.models.quantization import Int8

        exporter = parsed(self.args.export)
        if not (isinstance(exporter, Bergamot) and exporter.quantization == "int8"):
            return exporter
        files = names(self.pairs, "train")
        is_trained = isinstance(self.config.model.quantize, Int8)
        return dataclasses.replace(
            exporter,
            sentences=exporter.sentences or (None if is_trained else files[0]),
            shortlist=exporter.shortlist or files,
        )

    def _inputs_of_translations(self) -> dict[str, Any]:
        from transformer_jax.commands.distil.text import hashes
        from transformer_jax.data.sources.files import file_digest
        from transformer_jax.runs.ensemble import members

        content = [each.fingerprint(self.args.checkpoint) for each in members(self.teacher.run)]
        return hashes(self.data) | {
            "teacher": content,
            "ensemble_mean": self.args.ensemble_mean,
            "decoding": to_dict(self.teacher.decode),
            "nearest_of": self.args.nearest_of,
            "monolingual text": [file_digest(name) for name in self.args.monolingual],
        }

    def _sources(self) -> Iterator[tuple[str, str | None]]:
        """What is translated, with its reference or None."""
        from transformer_jax.commands.distil.text import names
        from transformer_jax.data.sources.files import read_lines, read_parallel

        yield from read_parallel(*names(self.folder / "text", "train"))
        for name in self.args.monolingual:
            yield from ((line, None) for line in read_lines(name))

    def _translate_parts(self, place: epath.Path, stop: "StopOnSignals") -> None:
        """Writes this process's parts, as far as they are missing: a line for each line.

        A line that the teacher would cut is not translated, as its end would be missing.

        Raises:
            Stopped: a process received a signal.
        """
        import jax

        from transformer_jax.commands.distil.choice import to_line
        from transformer_jax.commands.lines import Counts, answer
        from transformer_jax.commands.output_file import output_file
        from transformer_jax.commands.signals import Stopped

        translator = self.teacher.run.translator(self.args.checkpoint, **self.teacher.overrides)
        encode, longest = translator.source_encoder(), translator.max_source_length
        chunk_size = _BATCHES_PER_CHUNK * self.teacher.decode.batch_size
        lines = (source for source, _ in self._sources())
        for number in count():
            part, first = list(islice(lines, _PART)), number * _PART
            if not part:
                return
            path = place / f"{number:06}.jsonl"
            if number % jax.process_count() != jax.process_index() or path.exists():
                continue
            _LOGGER.info(f"translating lines {first + 1:,} to {first + len(part):,}")

            def reply(chunk: list[str], done: int, first: int = first) -> tuple[list[str], Counts]:
                if stop.while_apart():
                    raise Stopped
                short = [line if len(encode(line)) < longest else "" for line in chunk]
                options: Any = {"num_best": self.args.nearest_of, "first_id": first + done}
                return [*map(to_line, translator.decode(short, **options).translations)], {}

            with output_file(os.fspath(path), "a part") as output:
                total = None if self.args.no_progress else len(part)
                answer(output, iter(part[output.done :]), chunk_size, reply, total)

    def _fill_chosen(self, place: epath.Path) -> None:
        from transformer_jax.commands.distil.choice import Tally, choose, from_line
        from transformer_jax.commands.distil.text import write_pairs
        from transformer_jax.data.sources.files import read_lines

        parts = sorted((self.folder / "translations").glob("*.jsonl"))
        found = (from_line(line) for part in parts for line in read_lines(os.fspath(part)))
        rows = ((*pair, each) for pair, each in zip(self._sources(), found, strict=True))
        tally = Tally()
        write_pairs(choose(rows, self.args.min_score, tally), place, "train")
        _LOGGER.info(str(tally))
        if not tally.chosen:
            raise UserError(f"--min_score={self.args.min_score}: nothing to train on: {tally}")

    def _trained_on(self) -> Config:
        """The student's config, with its pairs, and the references if asked for."""
        from transformer_jax.commands.distil.text import students_text

        text = self.folder / "text"
        folders = dict.fromkeys((self.pairs, text) if self.args.references else (self.pairs,))
        return dataclasses.replace(self.config, data=students_text(self.data, text, *folders))
