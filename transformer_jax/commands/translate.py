"""Translates standard input: one line in, one line out, in order; empty lines stay empty.

    transformer-jax translate --workdir=runs/quickstart < in.en > out.de
    transformer-jax translate --workdir=runs/quickstart --input=large.en --output=large.de

Each line is cut into sentences, as models are trained on single ones; their translations are one
line. With --lines=whole only a line that is longer than the model takes is cut.

With --input and --output, the same command continues a file that was not finished.

With --documents, an empty line ends a document. A model that was trained on blocks translates
blocks of sentences, with what precedes them as context; each line still gives one line. Standard
error tells how many blocks had to be translated again in parts.

With --n_best=N, each input line gives up to N output lines, best first, of the form
`line number <TAB> score <TAB> log-probability <TAB> translation`.

With --alignments, each line ends with the source word of each target word, as Marian prints
it: `Der Hund schläft. ||| 0-0 1-1 2-2`. Words are what stands between spaces, counted from 0.
`score --alignments` prints the alignments of given translations alone, as fast_align does.

Standard error names words with pieces that never occurred in training, of the first lines that
have some.
"""

import argparse
import os
import string
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.commands.flags import Parser
from transformer_jax.commands.lines import (
    Counts,
    Document,
    Output,
    Reply,
    answer,
    documents_of,
    note,
    stdin_lines,
)
from transformer_jax.commands.run_flags import add_run_arguments, chosen_run
from transformer_jax.commands.text import Text, add_lines_argument, split
from transformer_jax.errors import UserError

if TYPE_CHECKING:
    from transformer_jax.translation.translator import Translator

#: Lines are read in chunks of this many batches, so that they can be sorted by length.
_BATCHES_PER_CHUNK = 32
#: Lines whose words that the model has never seen are named.
_NAMED_LINES = 20


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax translate`."""
    add_run_arguments(parser)
    add = parser.add_argument
    add("--input", metavar="FILE", help="translate this text instead; needs --output")
    add("--output", metavar="FILE", help="write here instead; must not exist; needs --input")
    one = parser.add_mutually_exclusive_group().add_argument
    one("--documents", action="store_true", help="the text has documents, empty lines between")
    one("--alignments", action="store_true", help="end lines with ` ||| 0-0 1-2`, as Marian does")
    one("--n_best", type=int, default=0, metavar="N", help="print N translations with scores")
    add_lines_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Translates standard input to standard output, or a file to a file."""
    from transformer_jax.commands.output_file import output_file
    from transformer_jax.config import to_dict
    from transformer_jax.data.alignments import pharaoh
    from transformer_jax.data.sources.files import file_digest, read_lines
    from transformer_jax.translation.documents import Tally

    _check_flags(args)
    run, overrides = chosen_run(args)
    selection = run.select(args.checkpoint)  # once: while a training goes on, it can move
    translator = run.translator(selection, **overrides)
    count = max(1, args.n_best)
    translator.decode_config.method.with_hypotheses(count)  # an error before the input is read
    if args.alignments:
        translator.model.check_alignment()
    alone = args.input is None and sys.stdin.isatty()  # answer each line before the next is typed
    batch_size = translator.decode_config.batch_size
    chunk_size = 1 if alone else _BATCHES_PER_CHUNK * batch_size

    name_unseen = _UnseenWords(translator)
    encode, longest = translator.source_encoder(), translator.max_source_length
    language = translator.decode_config.source_language or run.config.data.source_language
    # Sentences are cut where one translation of each is asked for, and none is to begin a line.
    is_whole = args.n_best or args.alignments
    begins = translator.decode_config.target_prefix
    sentences = args.lines == "split" or (args.lines == "auto" and not begins)

    def fits(part: str) -> bool:
        return len(encode(part)) < longest

    def cut(line: str) -> Text:
        if is_whole or not line.strip():
            return Text([line], ["", ""])
        one_line = line.strip().replace("\r", " ")
        return split(one_line, fits, language=language or "en", sentences=sentences)

    def reply_documents(documents: list[Document], done: int) -> tuple[list[str], Counts]:
        for document in documents:
            name_unseen(document.lines, document.first - 1)
        lines, tally = [document.lines for document in documents], Tally()
        firsts = [document.first for document in documents]
        texts = translator.translate_documents(
            lines, first_ids=firsts, tally=tally, batch_size=batch_size
        )
        return list(chain.from_iterable(texts)), tally.counts

    def reply(lines: list[str], done: int) -> tuple[list[str], Counts]:
        name_unseen(lines, done)
        texts = [cut(line) for line in lines]
        numbers = [done + i for i, text in enumerate(texts) for _ in text.sentences]
        options: dict[str, Any] = {"num_best": count, "first_id": numbers}
        if done and not alone:  # the rest of a text takes the programs of what precedes it
            options["batch_size"] = batch_size
        sentences_of_all = list(chain.from_iterable(text.sentences for text in texts))
        decoded = translator.decode(sentences_of_all, **options)
        counts = {"cut": decoded.num_cut, "not_finite": decoded.num_not_finite}
        counts["sentences"] = len(numbers)
        best = [best for best, *_ in decoded.translations]
        if args.alignments:
            links = translator.align(lines, [each.tokens for each in best])
            both = zip(best, map(pharaoh, links), strict=True)
            return [f"{each.text} ||| {shown}" for each, shown in both], counts
        if not args.n_best:
            found = (each.text for each in best)
            return [text.filled(list(islice(found, len(text.sentences)))) for text in texts], counts
        rows = [
            f"{number}\t{each.score:.6f}\t{each.log_prob:.6f}\t" + each.text.replace("\t", " ")
            for number, translations in enumerate(decoded.translations, start=done + 1)
            for each in translations
        ]
        return rows, counts

    # What is answered at once: lines, or documents.
    items: Callable[[Iterator[str]], Iterator[Any]] = iter
    respond: Reply[Any] = reply
    if args.documents:
        items, respond = documents_of, reply_documents
        chunk_size = 1 if alone else batch_size
    if args.output is None:
        output = Output(sys.stdout.buffer)
        status = answer(output, items(stdin_lines()), chunk_size, respond)
    else:
        command = {
            "checkpoint": [os.fspath(run.path), selection.name, args.workdir],
            "decode": to_dict(translator.decode_config),
            "mean": args.ensemble_mean,
            "n_best": args.n_best,
            "alignments": args.alignments,
            "documents": args.documents,
            "lines": args.lines,
            "input": file_digest(args.input),
        }
        total = sum(1 for _ in items(read_lines(args.input)))
        with output_file(args.output, command) as output:
            rest = islice(items(read_lines(args.input)), output.done, None)
            status = answer(output, rest, chunk_size, respond, total)
    if args.documents:
        counts: dict[str, Any] = dict(output.counts)
        note(f"note: {Tally(**counts)}")
    return status


def _check_flags(args: argparse.Namespace) -> None:
    """Raises UserError for flags that exclude or need each other, before a model is read."""
    if args.n_best < 0:
        raise UserError(f"--n_best={args.n_best}: must be at least 1")
    if args.lines == "split" and (args.n_best or args.alignments or args.documents):
        raise UserError(
            "--lines=split excludes --n_best, --alignments and --documents: there each line is one "
            "sentence"
        )
    if (args.input is None) != (args.output is None):
        raise UserError("--input and --output belong together: give both or neither")
    if args.input is not None and Path(args.input).is_fifo():
        raise UserError(f"--input={args.input}: a pipe is read once only: make it standard input")


class _UnseenWords:
    """Names words that the model has never seen, on standard error, in the first such lines."""

    def __init__(self, translator: "Translator") -> None:
        self._translator, self._named = translator, 0

    def __call__(self, lines: Iterable[str], done: int) -> None:
        """Names those of lines that come after `done` others."""
        for number, line in enumerate(lines, start=done + 1):
            if self._named == _NAMED_LINES or not (words := self._translator.unseen_words(line)):
                continue
            self._named += 1
            bare = dict.fromkeys(word.strip(string.punctuation) or word for word in words)
            note(f"note: line {number}: never seen in training: {', '.join(bare)}")
            if self._named == _NAMED_LINES:
                note("note: such words of further lines are not named")
