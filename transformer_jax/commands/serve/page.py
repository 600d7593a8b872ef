"""The page at `/`, and the routes that only it uses: examples, scores, probabilities, other words.

A sentence's translation is sent as its target ids, so that the page can ask for what follows a
part of it.
"""

import math
from functools import partial
from importlib.resources import files
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from transformer_jax.commands.serve.batcher import alone
from transformer_jax.commands.serve.engine import Sentence
from transformer_jax.commands.serve.http import Context, Form, fields, while_connected
from transformer_jax.commands.serve.jax_engine import JaxEngine
from transformer_jax.translation.translator import Translation
from transformer_jax.viewing import explanation as viewing
from transformer_jax.vocabulary import EOS_ID, UNK_ID

#: Path -> file in `static/` and its media type. They are read once, so no path is ever looked up.
FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

#: Other words that are offered at a place.
NUM_CHOICES = 8

Ids = Annotated[list[int], Field(max_length=10_000)]


class Asked(Form):
    """Of each request of the page."""

    q: str
    source: str
    target: str
    api_key: str = ""


class Translate(Asked):
    """Of POST /page/translate."""

    alignments: bool = False


class Place(Asked):
    """Of POST /page/explain and /page/choices: one sentence, and target ids without EOS."""

    tokens: Ids


async def translate(context: Context, request: Request) -> dict[str, Any]:
    """The sentences of a text with all their translations, and the white space between them.

    With `alignments`, also [source word, target word] of each link between a sentence and its best
    translation. Words are what stands between spaces, counted from 0.
    """
    form = await fields(request, Translate, context.limits)
    key = context.keys.check(form.api_key)
    source = None if form.source == "auto" else form.source
    (done,) = await context.translate(request, key, [form.q], source=source, target=form.target)
    engine = done.engine
    own = engine if isinstance(engine, JaxEngine) and engine.explains else None
    sentences: list[dict[str, Any]] = [
        {
            "text": sentence,
            "unseen": own.translator.unseen_words(sentence) if own else [],
            "translations": [_shown(each) for each in translations],
        }
        for sentence, translations in zip(done.text.sentences, done.translations, strict=True)
    ]
    if form.alignments:
        (found,) = await context.align(request, [done])
        for shown, links in zip(sentences, found, strict=True):
            shown["alignment"] = links
    return {
        "source": done.source,
        "gaps": done.text.gaps,
        "explains": own is not None,
        "sentences": sentences,
    }


async def examples(context: Context, request: Request) -> dict[str, list[str]]:
    """Language -> sentences to try the server with."""
    return {language: list(sentences) for language, sentences in context.examples.items()}


async def explain(context: Context, request: Request) -> dict[str, Any]:
    """The pieces of a sentence and its translation, probabilities, and where the model looks."""
    form, engine, pieces = await _place(context, request)
    work = partial(viewing.explain, engine.translator, pieces, form.tokens)
    explained = await while_connected(request, context.service.batcher.run(work))
    return {
        "source": explained.source,
        "target": explained.target[:-1],
        "logProbs": _rounded(explained.log_probs_T),
        "looks": _rounded(explained.looks_TS),
    }


async def choices(context: Context, request: Request) -> list[dict[str, Any]]:
    """The most probable pieces after `tokens`, and the translation that continues each."""
    form, engine, pieces = await _place(context, request)
    batcher = context.service.batcher
    if max(len(pieces), len(form.tokens) + 1) > engine.max_pieces:
        raise HTTPException(400, f"A sentence has at most {engine.max_pieces} pieces")

    async def continued() -> list[dict[str, Any]]:
        likely = partial(viewing.next_pieces, engine.translator, pieces, form.tokens, NUM_CHOICES)
        found = await batcher.run(likely)
        begun = [Sentence(pieces, (*form.tokens, piece), num_best=1) for piece, _ in found]
        translations = await batcher.translate([(engine, alone(each)) for each in begun])
        return [
            _shown(best) | {"probability": math.exp(log_prob)}
            for (best, *_), (_, log_prob) in zip(translations, found, strict=True)
        ]

    return await while_connected(request, continued())


async def _place(context: Context, request: Request) -> tuple[Place, JaxEngine, Any]:
    form = await fields(request, Place, context.limits)
    context.keys.check(form.api_key)
    context.limits.check([form.q])
    engine = context.service.engine(form.source, form.target)
    if not (isinstance(engine, JaxEngine) and engine.explains):
        raise HTTPException(400, "This engine gives no probabilities")
    pieces = engine.encode(form.q)
    if not all(UNK_ID < token < engine.target_size for token in form.tokens):
        raise HTTPException(400, f"tokens are from {UNK_ID + 1} to {engine.target_size - 1}")
    return form, engine, pieces


def _rounded(numbers: np.ndarray) -> Any:
    return numbers.astype(float).round(4).tolist()


def _shown(translation: Translation) -> dict[str, Any]:
    return {
        "text": translation.text,
        "score": round(translation.score, 4),
        "logProb": round(translation.log_prob, 4),
        "tokens": [token for token in translation.tokens if token != EOS_ID],
    }


def static_routes() -> list[Route]:
    """The routes of the page and what it loads."""
    folder = files("transformer_jax.commands.serve") / "static"
    answers = {
        path: Response((folder / name).read_bytes(), headers=HEADERS, media_type=kind)
        for path, (name, kind) in FILES.items()
    }
    return [Route(path, answer, methods=["GET"]) for path, answer in answers.items()]


ROUTES = {
    ("GET", "/page/examples"): examples,
    ("POST", "/page/translate"): translate,
    ("POST", "/page/explain"): explain,
    ("POST", "/page/choices"): choices,
}
