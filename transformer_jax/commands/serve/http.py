"""Requests and answers: reading bodies, checking fields, keys, limits and departed clients."""

import asyncio
import hmac
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import parse_qs

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from transformer_jax.commands.serve import markup, tags
from transformer_jax.commands.serve.batcher import QueueFull
from transformer_jax.commands.serve.jax_engine import JaxEngine
from transformer_jax.commands.serve.service import Service, Translated
from transformer_jax.data.alignments import Links
from transformer_jax.errors import UserError, first_error

_LOGGER = logging.getLogger(__name__)

#: Seconds in which a client must have sent the body of its request.
BODY_SECONDS = 30.0

Fields = TypeVar("Fields", bound="Form")
T = TypeVar("T")
#: The form of tags in a text; None: it has none.
MarkedUp = markup.Form | None


class Form(BaseModel):
    """The fields of a request. Others are refused, so that no option is silently ignored."""

    model_config = ConfigDict(extra="forbid", str_max_length=1_000_000)


@dataclass(frozen=True)
class Limits:
    """What a request may ask for."""

    characters: int = 5000  #: of all its texts together
    batch: int = 50  #: texts

    @property
    def body(self) -> int:
        r"""Bytes. JSON may need twelve for a character: `\\ud83d\\ude00`."""
        return 12 * self.characters + 100 * self.batch + 10_000

    def check(self, texts: Sequence[str]) -> None:
        """Refuses too many texts, or too long ones."""
        sizes = {"texts": (len(texts), self.batch)}
        sizes["characters"] = (sum(map(len, texts)), self.characters)
        for what, (count, most) in sizes.items():
            if count > most:
                message = f"Invalid request: {count} {what} exceed the limit of {most}"
                raise HTTPException(400, message)


class Metrics:
    """Counters for Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        own: Any = {"namespace": "transformer_jax", "registry": self.registry}
        sizes = [2**n for n in range(11)]
        self.requests = Counter("requests", "Answered requests", ["route", "status"], **own)
        self.seconds = Histogram("request_seconds", "Time to the answer", ["route"], **own)
        self.characters = Counter("characters", "Characters of translated texts", **own)
        self.batches = Histogram("batch_sentences", "Sentences in a batch", buckets=sizes, **own)
        self.waiting = Gauge("waiting_sentences", "Sentences that the device has not begun", **own)
        self.ready = Gauge("ready", "1 once all programs are compiled", **own)


class Keys:
    """API keys, and how many characters were translated for each; without keys all may come."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self.required = bool(keys)
        self.characters = dict.fromkeys(keys, 0) or {"": 0}

    def check(self, key: str) -> str:
        """The key under which to count.

        Raises:
            HTTPException: it is none of the keys.
        """
        if not self.required:
            return ""
        for known in self.characters:
            if hmac.compare_digest(known.encode(), key.encode()):
                return known
        raise HTTPException(403, "Invalid API key" if key else "This server needs an API key")


@dataclass(frozen=True)
class Context:
    """What the routes share."""

    service: Service
    limits: Limits
    keys: Keys
    metrics: Metrics
    examples: Mapping[str, Sequence[str]]

    def check_header(self, request: Request, scheme: str) -> str:
        """As `Keys.check`, of the key in the header Authorization."""
        found, _, key = request.headers.get("authorization", "").partition(" ")
        return self.keys.check(key.strip() if found == scheme else "")

    async def translate(
        self, request: Request, key: str, texts: Sequence[str], **options: Any
    ) -> list[Translated]:
        """As `Service.translate`, while the client is there, within the limits and counted."""
        self.limits.check(texts)
        work = self.service.translate(texts, **options)
        done = await while_connected(request, work)
        number = sum(map(len, texts))
        self.keys.characters[key] += number
        self.metrics.characters.inc(number)
        return done

    async def align(
        self, request: Request, done: Sequence[Translated], *, every_source: bool = False
    ) -> list[list[Links]]:
        """The alignments of each sentence and its best translation; a full queue refuses none.

        Args:
            request: whose client waits.
            done: the translations.
            every_source: as of `Translator.align`.

        Raises:
            HTTPException: an engine knows none.
            UserError: its model knows none.
        """
        work = []
        for each in done:
            if not isinstance(each.engine, JaxEngine):
                raise HTTPException(400, "This engine gives no alignments")
            pair = each.text.sentences, [best.tokens for best, *_ in each.translations]
            work.append(partial(each.engine.translator.align, *pair, every_source=every_source))
        found = self.service.batcher.on_device(lambda: [align() for align in work])
        return await while_connected(request, found)

    async def translate_form(
        self, request: Request, key: str, texts: Sequence[str], form: MarkedUp, **options: Any
    ) -> list[tuple[Translated, str]]:
        """As `translate`, each with its best translation.

        Of texts with tags it is that of their plain text, and in this the tags are put back.

        Raises:
            HTTPException, UserError: as `align`, where a line has tags; or it cannot be read.
        """
        if form is None:
            done = await self.translate(request, key, texts, **options)
            return [(each, each.version(0)) for each in done]
        self.limits.check(texts)
        parsed = [markup.parse(text, form) for text in texts]
        plain = [each.text for each in parsed]
        done = await self.translate(request, key, plain, **options | {"num_best": 1})
        tagged = [i for i, each in enumerate(done) if any(parsed[i].tags) and each.text.sentences]
        links: list[list[Links]] = [[Links() for _ in each.text.sentences] for each in done]
        if tagged:
            found = await self.align(request, [done[i] for i in tagged], every_source=True)
            for i, of_text in zip(tagged, found, strict=True):
                links[i] = of_text
        return [
            (each, _with_tags(one, each, of_text) if each.text.sentences else text)
            for text, one, each, of_text in zip(texts, parsed, done, links, strict=True)
        ]

    def endpoint(
        self, handler: Callable[["Context", Request], Awaitable[Any]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """A route that answers with JSON, and with an error of its protocol where one is raised."""

        async def answer(request: Request) -> Response:
            began = time.perf_counter()
            status, content = await self._outcome(request, handler(self, request))
            path = request.scope["path"]  # not of `url`, which a client's Host is a part of
            self.metrics.requests.labels(path, status).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - began)
            if status == 499:
                return Response(status_code=status)
            # The rest of a body that is late is not waited for (RFC 9110, 15.5.9).
            return JSONResponse(content, status, {"Connection": "close"} if status == 408 else None)

        return answer

    async def _outcome(self, request: Request, work: Awaitable[Any]) -> tuple[int, Any]:
        try:
            return 200, await work
        except HTTPException as error:
            return error.status_code, failure(request, error.detail)
        except UserError as error:
            return 400, failure(request, str(error))
        except QueueFull:
            return 429, failure(request, "Too many requests are waiting: try again later")
        except ClientDisconnect:
            return 499, None
        except Exception:
            _LOGGER.exception("%s %s", request.method, request.scope["path"])
            return 500, failure(request, "Internal error")


def _with_tags(parsed: markup.Markup, done: Translated, links: Sequence[Links]) -> str:
    """The translation of a text with its tags."""
    lines, words, at = [""], [list[tags.Word]()], 0
    sentences = zip(done.text.sentences, done.translations, links, strict=True)
    for gap in done.text.gaps:
        first, *others = gap.split("\n")
        lines[-1] += first
        lines += others
        words += [[] for _ in others]
        at += len(gap)
        for sentence, (best, *_), of_sentence in islice(sentences, 1):
            place = len(lines[-1])
            words[-1] += tags.words(sentence, at, best.text, place, of_sentence)
            lines[-1] += best.text
            at += len(sentence)
    made = parsed.between[0]
    rest = zip(parsed.tags, parsed.between[1:], strict=True)  # no line: nothing to translate
    for (of_text, after), line, of_line in zip(rest, lines, words, strict=False):
        made += tags.put_back(line, of_line, of_text, parsed.text) + after
    return made


def failure(request: Request, message: str) -> dict[str, str]:
    """An error in the words of DeepL's protocol or LibreTranslate's."""
    return {"message" if request.scope["path"].startswith("/v2/") else "error": message}


async def fields(request: Request, form: type[Fields], limits: Limits) -> Fields:
    """The checked fields of a request: JSON, or a URL-encoded form.

    Args:
        request: its body is read within `BODY_SECONDS`.
        form: which fields there are. Those that are lists may be repeated in a form.
        limits: of its body.

    Raises:
        HTTPException: too long, too slow, or not what `form` describes.
    """
    body = await _body(request, limits.body)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "application/json":
            return form.model_validate_json(body)
        if kind == "application/x-www-form-urlencoded" or not body:
            pairs = parse_qs(
                body.decode(), keep_blank_values=True, errors="strict", max_num_fields=1000
            )
            for name in request.query_params:
                pairs.setdefault(name, request.query_params.getlist(name))
            return form.model_validate(
                {n: values[0] if len(values) == 1 else values for n, values in pairs.items()}
            )
    except ValidationError as error:
        raise HTTPException(400, f"Invalid request: {_sentence(error)}") from error
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, "Invalid request: not UTF-8, or too many fields") from error
    raise HTTPException(
        415, "Invalid request: send application/json or application/x-www-form-urlencoded"
    )


def _sentence(error: ValidationError) -> str:
    first = first_error(error)
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "missing":
        return f"missing {name} parameter"
    if first["type"] == "extra_forbidden":
        return f"unknown parameter {json.dumps(name[:50])}"
    return f"{name}: {first['msg']}" if name else first["msg"]


async def _body(request: Request, limit: int) -> bytes:
    too_long = HTTPException(413, f"Invalid request: the body exceeds {limit} bytes")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > limit:
        raise too_long
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise too_long
    except TimeoutError as error:
        raise HTTPException(408, f"The body did not arrive within {BODY_SECONDS:g} s") from error
    return bytes(body)


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """The result of `work`, which is cancelled if the client goes away. Read the body before."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for each in (task, leaving):
            each.cancel()
