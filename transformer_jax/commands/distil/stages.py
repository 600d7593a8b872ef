"""The stages of `transformer-jax distil`, each done once and continued after a kill."""

import contextlib
import dataclasses
import logging
import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import Any

import jax
from etils import epath

from transformer_jax.commands.distil import choice, table, text, translations
from transformer_jax.commands.distil.table import Contestant
from transformer_jax.commands.lines import Counts, answer
from transformer_jax.commands.main import Stopped
from transformer_jax.commands.output_file import output_file
from transformer_jax.commands.signals import StopOnSignals
from transformer_jax.config import Config, to_dict
from transformer_jax.data.config import DataConfig
from transformer_jax.data.sources.files import file_digest, read_lines, read_parallel
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.errors import UserError
from transformer_jax.formats.export import export, parsed
from transformer_jax.formats.exporter import Exporter
from transformer_jax.formats.exporters import EXPORTERS
from transformer_jax.formats.marian.bergamot import Bergamot
from transformer_jax.models.config import check_model_config
from transformer_jax.models.lora import NoAdapter
from transformer_jax.models.quantization import Int8
from transformer_jax.parallel.processes import from_first
from transformer_jax.paths import remove_folder, stage, write_whole
from transformer_jax.recipes import ByPairs
from transformer_jax.runs.ensemble import members
from transformer_jax.runs.evaluation import evaluate
from transformer_jax.runs.folder import open_run
from transformer_jax.runs.pretrained import check_named
from transformer_jax.runs.start import check_training, resolve_start
from transformer_jax.settings.variants import kind_of, to_text
from transformer_jax.training.train import train

_LOGGER = logging.getLogger(__name__)

#: Lines of a part, which one process translates. It does not depend on the number of processes, so
#: that another number of them may continue.
_PART = 4096
#: Lines are translated in chunks of this many batches, so that they can be sorted by length.
_BATCHES_PER_CHUNK = 32


@dataclass(frozen=True)
class Distillation:
    """The stages of one command; all processes make the same calls."""

    args: Namespace
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
        return chosen if chosen.exists() and self.teacher else self.folder / "text"

    def write_text(self) -> None:
        """Writes the text as files of lines."""
        inputs, fill = text.hashes(self.data), partial(text.write_text, self.data)
        if not self.teacher:
            options: dict[str, Any] = {
                "most_words": self.config.batch.max_length,
                "least": self.args.min_score,
                "keep_all": self.args.candidates == "all",
            }
            fill = partial(translations.write_text, self.data, **options)
            inputs |= options
        self._fill("text", inputs, fill)

    def check_student(self) -> None:
        """Raises UserError for what is wrong with the student, before hours of translating."""
        config = resolve_start(self._trained_on(), self.args.workdir, self.by_pairs).config
        check_model_config(config.model)
        check_training(config)
        check_named(config, None, is_new=False)
        if config.train.teacher.pieces and config.tokenizer.source_model is None:
            raise UserError(
                "train.teacher needs the teacher's tokenizers, and this student learns others: set "
                "--config.tokenizer.vocab_size=none and no other key of the tokenizer"
            )
        if not self.teacher:
            translations.check_alphabet(config.tokenizer, self.pairs)
        if self.args.export:
            merged = dataclasses.replace(config.model, adapter=NoAdapter())  # as in the export
            self._exporter().check(dataclasses.replace(config, model=merged))

    def translate(self, stop: StopOnSignals) -> None:
        """Translates the sources; each process has its parts of the lines."""

        def fill(place: epath.Path) -> None:
            with contextlib.suppress(Stopped):
                self._translate_parts(place, stop)
            if stop.meet():
                raise Stopped

        folder, inputs = self.folder / "translations", self._inputs_of_translations()
        stage(folder, inputs, fill, flag="--workdir", first=from_first)

    def choose(self) -> None:
        """Chooses what the student is trained on."""

        def fill(place: epath.Path) -> None:
            parts = sorted((self.folder / "translations").glob("*.jsonl"))
            found = (
                choice.from_line(line) for part in parts for line in read_lines(os.fspath(part))
            )
            rows = ((*pair, each) for pair, each in zip(self._sources(), found, strict=True))
            tally = choice.Tally()
            text.write_pairs(choice.choose(rows, least, tally), place, "train")
            _LOGGER.info(str(tally))
            if not tally.chosen:
                raise UserError(f"--min_score={least}: nothing to train on: {tally}")

        least = self.args.min_score
        self._fill("chosen", self._inputs_of_translations() | {"min_score": least}, fill)

    def train(self, stop: StopOnSignals) -> None:
        """Trains the student."""
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
        student = Contestant("student", open_run(self.args.workdir), "best", {})
        sets, language = text.scored_sets(self.folder / "text"), self.data.languages[1]
        contestants = student.also_with(Greedy())
        if self.teacher:
            methods = Greedy(), self.teacher.decode.method
            contestants = [*self.teacher.also_with(*methods), *student.also_with(*methods)]
        folder = self.folder / "rows"
        made = table.table([table.measured(each, sets, language, folder) for each in contestants])
        write_whole(self.folder / "table.md", made.encode())
        return made

    def export(self) -> epath.Path:
        """Writes the student in another format, unless that was done; returns the folder."""
        run, exporter = open_run(self.args.workdir), self._exporter()
        kind = kind_of(exporter, EXPORTERS)
        for name in text.sets_in(self.folder / "text"):  # for the card
            if f"{name}.best" not in run.scores():
                evaluate(run, name)  # type: ignore[arg-type]

        def fill(place: epath.Path) -> None:
            remove_folder(place / kind)
            export(run, exporter, place / kind)

        inputs = {"student": run.fingerprint(), "format": to_text(exporter, EXPORTERS)}
        self._fill("exported", inputs, fill)
        return self.folder / "exported" / kind

    def _fill(self, name: str, inputs: dict[str, Any], fill: Callable[[epath.Path], None]) -> None:
        """Fills the folder of a stage in the first process, for which the others wait."""
        from_first(partial(stage, self.folder / name, inputs, fill, flag="--workdir"))

    def _exporter(self) -> Exporter:
        """The format of --export; int8 is measured, and its shortlist made, on the text."""
        exporter = parsed(self.args.export)
        if not (isinstance(exporter, Bergamot) and exporter.quantization == "int8"):
            return exporter
        files = text.names(self.pairs, "train")
        is_trained = isinstance(self.config.model.quantize, Int8)
        return dataclasses.replace(
            exporter,
            sentences=exporter.sentences or (None if is_trained else files[0]),
            shortlist=exporter.shortlist or files,
        )

    def _inputs_of_translations(self) -> dict[str, Any]:
        content = [each.fingerprint(self.args.checkpoint) for each in members(self.teacher.run)]
        return text.hashes(self.data) | {
            "teacher": content,
            "ensemble_mean": self.args.ensemble_mean,
            "decoding": to_dict(self.teacher.decode),
            "nearest_of": self.args.nearest_of,
            "monolingual text": [file_digest(name) for name in self.args.monolingual],
        }

    def _sources(self) -> Iterator[tuple[str, str | None]]:
        """What is translated, with its reference or None."""
        yield from read_parallel(*text.names(self.folder / "text", "train"))
        for name in self.args.monolingual:
            yield from ((line, None) for line in read_lines(name))

    def _translate_parts(self, place: epath.Path, stop: StopOnSignals) -> None:
        """Writes this process's parts, as far as they are missing: a line for each line.

        A line that the teacher would cut is not translated, as its end would be missing.

        Raises:
            Stopped: a process received a signal.
        """
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
                return [*map(choice.to_line, translator.decode(short, **options).translations)], {}

            with output_file(os.fspath(path), "a part") as output:
                total = None if self.args.no_progress else len(part)
                answer(output, iter(part[output.done :]), chunk_size, reply, total)

    def _trained_on(self) -> Config:
        """The student's config, with its pairs, and the references if asked for."""
        place = self.folder / "text"
        folders = dict.fromkeys((self.pairs, place) if self.args.references else (self.pairs,))
        data = text.students_text(self.data, place, *folders)
        return dataclasses.replace(self.config, data=data)
