"""What the server offers, whatever the protocol: texts in, translated texts out."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from starlette.exceptions import HTTPException

from transformer_jax.commands.serve.batcher import Batcher, Steps, alone
from transformer_jax.commands.serve.engine import Documents, Engine, Sentence
from transformer_jax.commands.serve.languages import detect
from transformer_jax.commands.text import Text, split
from transformer_jax.translation.documents import Tally, blocks
from transformer_jax.translation.translator import Translation
from transformer_jax.vocabulary import EOS_ID

#: A text that is in the target language with this probability is not translated from another one.
SURE = 0.9
#: Compiling says how far it is when this time has passed.
SECONDS_OF_SILENCE = 10.0

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Translated:
    """A text and its translation."""

    source: str  #: its language; that of the translation if it is in this already
    engine: Engine
    confidence: float | None  #: probability of the detected source; None if it was given
    text: Text
    translations: list[list[Translation]]  #: of each sentence, best first

    def version(self, number: int) -> str:
        """The text of each sentence's translation of this rank, or its last one."""
        return self.text.filled(
            [each[min(number, len(each) - 1)].text for each in self.translations]
        )

    def alternatives(self, count: int) -> list[str]:
        """Up to `count` further versions that differ from the best and from one another."""
        most = max(map(len, self.translations), default=1)
        versions = dict.fromkeys(self.version(number) for number in range(most))
        return list(versions)[1 : 1 + count]


class Service:
    """The directions of a server.

    Args:
        engines: one for each direction.
        batcher: started; shared by all of them.
        whole_lines: a line is one sentence, unless a request says otherwise or the model is one of
            blocks. Otherwise lines are cut into sentences, which is what models are trained on: of
            a paragraph they translate the beginning.
    """

    def __init__(
        self, engines: Sequence[Engine], batcher: Batcher, *, whole_lines: bool = False
    ) -> None:
        self.engines = {(each.source, each.target): each for each in engines}
        self.batcher = batcher
        self.compiled = (0, 0)  # programs, and how many there are
        self.ready = False
        self._whole_lines = whole_lines

    async def warm_up(self) -> int:
        """Compiles the programs of all engines and logs how far it is; how many there are."""
        calls = [call for engine in self.engines.values() for call in engine.warm_up()]
        said = time.monotonic()
        for done, call in enumerate(calls):
            self.compiled = done, len(calls)
            if time.monotonic() - said > SECONDS_OF_SILENCE:
                _LOGGER.info("compiled %d of %d programs", *self.compiled)
                said = time.monotonic()
            await self.batcher.on_device(call)
        self.ready = True
        return len(calls)

    @property
    def languages(self) -> list[str]:
        """All codes, sorted."""
        return sorted({code for pair in self.engines for code in pair})

    def code(self, given: str) -> str:
        """Our code for a client's: DE is de; pt-BR is pt if there is no pt-BR, and the reverse."""
        codes = {code.lower(): code for code in self.languages}
        wanted = given.lower()
        regional = [code for code in codes if code.partition("-")[0] == wanted]
        other = regional[0] if len(regional) == 1 else wanted.partition("-")[0]
        return codes.get(wanted) or codes.get(other) or given

    def engine(self, source: str, target: str) -> Engine:
        """The engine of a direction.

        Raises:
            HTTPException: there is none.
        """
        for code in (source, target):
            if code not in self.languages:
                raise HTTPException(400, f"{code} is not supported")
        if (source, target) not in self.engines:
            raise HTTPException(400, f"{source} to {target} is not supported")
        return self.engines[source, target]

    async def translate(
        self,
        texts: Sequence[str],
        source: str | None,
        target: str,
        *,
        split_sentences: bool | None = None,
        num_best: int | None = None,
    ) -> list[Translated]:
        """Translates texts of any length. By a model of blocks, as documents: see `Text.documents`.

        A text that is in the target language already is its own translation, without sentences.

        Args:
            texts: one language each.
            source: their language; None: detect it.
            target: language of the translations.
            split_sentences: in place of the service's own.
            num_best: at most so many translations of a sentence; None: as many as the engine gives.

        Raises:
            HTTPException: the direction is not supported.
            QueueFull: too much is waiting.
        """
        found = []
        work: list[tuple[Engine, Steps]] = []
        for text in texts:
            code, confidence = (source, None) if source else self._detect_source(text, target)
            if code == target and not source:
                engine = next(each for (_, to), each in self.engines.items() if to == target)
                found.append((code, engine, confidence, Text([], [text])))
                continue
            engine = self.engine(code, target)

            def fits(part: str, engine: Engine = engine) -> bool:
                return len(engine.encode(part)) <= engine.max_pieces

            cuts = bool(engine.documents) or not self._whole_lines
            sentences = cuts if split_sentences is None else split_sentences
            cut = split(text, fits, language=code, sentences=sentences)
            found.append((code, engine, confidence, cut))
            for document in cut.documents():
                pieces = [engine.encode(each) for each in document]
                if engine.documents and len(pieces) > 1:
                    work.append((engine, _in_blocks(pieces, engine.documents)))
                else:
                    work += [(engine, alone(Sentence(each, num_best=num_best))) for each in pieces]
        done = iter(await self.batcher.translate(work))
        return [
            Translated(code, engine, confidence, cut, list(islice(done, len(cut.sentences))))
            for code, engine, confidence, cut in found
        ]

    def _detect_source(self, text: str, target: str) -> tuple[str, float | None]:
        """The most probable language that can be translated into the target, or the target."""
        sources = {here for here, there in self.engines if there == target}
        if not sources:
            raise HTTPException(400, f"{target} is not supported")
        detected = detect(text, self.languages)
        if detected and detected[0][0] == target and detected[0][1] >= SURE:
            return detected[0]
        found = [each for each in detected if each[0] in sources]
        if not found and len(sources) == 1:
            return sources.pop(), 0.0
        if not found:
            raise HTTPException(400, "the language cannot be detected: name the source")
        return found[0]


def _in_blocks(sentences: Sequence[Sequence[int]], documents: Documents) -> Steps:
    """One translation of each sentence of a document, without scores: those are of blocks."""
    document = blocks(sentences, documents.room, Tally())
    target: Sequence[int] | None = None
    while True:
        try:
            # A generator that has not begun takes None alone.
            asked = document.send(target)  # type: ignore[arg-type]
        except StopIteration as end:
            return [
                [Translation(documents.text(ids), 0.0, 0.0, (*ids, EOS_ID))] for ids in end.value
            ]
        best, *_ = yield Sentence(asked.source, tuple(asked.prefix), num_best=1)
        target = best.own_tokens
