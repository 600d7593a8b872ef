"""A text as sentences that fit the model, and what stands between them.

Line breaks, and the white space around lines and sentences, are kept as they are. A line is one
sentence if it fits the model; a longer one is cut where sentencex finds the ends of its sentences,
and a sentence that is still too long near its middle, at a space if there is one.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformer_jax.commands.flags import Parser

#: White space that has a line break. It is tried where white space begins, and once: linear in the
#: text, whatever that holds.
_BREAKS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_LINE_END = re.compile(rf"((?<!\s)[^\S{_BREAKS}]*+[{_BREAKS}]\s*+)")


def add_lines_argument(parser: Parser) -> None:
    """Adds --lines, and --split_sentences, which is --lines=split."""
    meaning = "split: cut lines into sentences; whole: only those that are too long; auto: split"
    parser.add_argument("--lines", choices=("auto", "split", "whole"), default="auto", help=meaning)
    parser.add_argument(
        "--split_sentences", action="store_const", const="split", dest="lines", help="--lines=split"
    )


@dataclass(frozen=True)
class Text:
    """`gaps[0] + sentences[0] + gaps[1] + ... + gaps[-1]` is the text. Gaps have no letters."""

    sentences: list[str]
    gaps: list[str]  #: one more than sentences

    def filled(self, translations: Sequence[str]) -> str:
        """The text with a translation in the place of each sentence."""
        both = itertools.zip_longest(self.gaps, translations, fillvalue="")
        return "".join(itertools.chain.from_iterable(both))

    def documents(self) -> list[list[str]]:
        """The sentences of each document. A blank line ends one, as in `translate --documents`."""
        found: list[list[str]] = []
        for gap, sentence in zip(self.gaps, self.sentences, strict=False):
            has_blank_line = len(f"{gap}.".splitlines()) > 2
            if has_blank_line or not found:
                found.append([])
            found[-1].append(sentence)
        return found


def split(text: str, fits: Callable[[str], bool], *, language: str, sentences: bool) -> Text:
    """The sentences of a text.

    Args:
        text: any text.
        fits: whether the model takes this many words in one piece.
        language: of the text, for the rules of its sentences.
        sentences: cut every line into sentences, not only one that does not fit.
    """
    found, gaps = [], [""]
    lines = [*_LINE_END.split(text), ""]
    for line, gap in zip(lines[::2], lines[1::2], strict=True):
        parts = [line] if fits(line) and not sentences else _sentences(line, language)
        for part in itertools.chain.from_iterable(_halves(part, fits) for part in parts):
            core = part.strip()
            if re.search(r"\w", core):  # without a letter or digit there is nothing to translate
                before, after = part.split(core, 1)
                gaps[-1] += before
                found.append(core)
                gaps.append(after)
            else:
                gaps[-1] += part
        gaps[-1] += gap
    return Text(found, gaps)


def _sentences(line: str, language: str) -> list[str]:
    from sentencex import segment

    found = list(segment(language, line))
    return found if "".join(found) == line else [line]


def _halves(part: str, fits: Callable[[str], bool]) -> list[str]:
    """The part, halved until each piece fits."""
    if len(part.strip()) < 2 or fits(part):
        return [part]
    middle = len(part) // 2
    spaces = [match.end() for match in re.finditer(r"\s+", part) if 0 < match.end() < len(part)]
    cut = min(spaces, key=lambda place: abs(place - middle), default=middle)
    return _halves(part[:cut], fits) + _halves(part[cut:], fits)
