"""LibreTranslate's routes (https://docs.libretranslate.com, `libretranslate/app.py`)."""

from typing import Any, Literal

from pydantic import NonNegativeInt
from starlette.exceptions import HTTPException
from starlette.requests import Request

from transformer_jax.commands.serve.http import Context, Form, MarkedUp, fields
from transformer_jax.commands.serve.languages import detect as detect_among, name_of


class Translate(Form):
    """Of POST /translate."""

    q: str | list[str]
    source: str
    target: str
    format: Literal["text", "html"] = "text"
    alternatives: NonNegativeInt = 0  # at most: those that the search finds, none of markup
    api_key: str = ""


class Detect(Form):
    """Of POST /detect."""

    q: str
    api_key: str = ""


async def translate(context: Context, request: Request) -> dict[str, Any]:
    """Translates a text or a list of texts."""
    form = await fields(request, Translate, context.limits)
    key = context.keys.check(form.api_key)
    texts = [form.q] if isinstance(form.q, str) else form.q
    code = context.service.code
    source = None if form.source == "auto" else code(form.source)
    # Different hypotheses can have the same text, so alternatives are chosen among all of them.
    options: dict[str, Any] = {"num_best": None if form.alternatives else 1}
    options |= {"source": source, "target": code(form.target)}
    tags: MarkedUp = "html" if form.format == "html" else None
    found = await context.translate_form(request, key, texts, tags, **options)
    done, best = [each for each, _ in found], [translation for _, translation in found]

    def shaped(values: list[Any]) -> Any:
        return values[0] if isinstance(form.q, str) else values

    answer = {"translatedText": shaped(best)}
    if source is None:
        detected = [_language(each.source, each.confidence or 0.0) for each in done]
        answer["detectedLanguage"] = shaped(detected)
    if form.alternatives:
        answer["alternatives"] = shaped([each.alternatives(form.alternatives) for each in done])
    return answer


async def detect(context: Context, request: Request) -> list[dict[str, Any]]:
    """The languages that a text may be in, the most probable first."""
    form = await fields(request, Detect, context.limits)
    context.keys.check(form.api_key)
    context.limits.check([form.q])
    return [_language(*each) for each in detect_among(form.q, context.service.languages)]


async def languages(context: Context, request: Request) -> list[dict[str, Any]]:
    """All languages, each with those that it is translated into."""
    pairs = sorted(context.service.engines)
    return [
        {"code": code, "name": name_of(code), "targets": [to for here, to in pairs if here == code]}
        for code in context.service.languages
    ]


async def health(context: Context, request: Request) -> dict[str, str]:
    """`ok` once all programs are compiled."""
    if not context.service.ready:
        done, of = context.service.compiled
        raise HTTPException(503, f"The models are being compiled: {done} of {of} programs")
    return {"status": "ok"}


async def settings(context: Context, request: Request) -> dict[str, Any]:
    """What a page needs to know of the server."""
    source, target = next(iter(context.service.engines))
    return {
        "charLimit": context.limits.characters,
        "frontendTimeout": 300,
        "apiKeys": context.keys.required,
        "keyRequired": context.keys.required,
        "suggestions": False,
        "filesTranslation": False,
        "supportedFilesFormat": [],
        "language": {
            "source": {"code": source, "name": name_of(source)},
            "target": {"code": target, "name": name_of(target)},
        },
    }


def _language(code: str, probability: float) -> dict[str, Any]:
    return {"confidence": round(100 * probability), "language": code}


ROUTES = {
    ("POST", "/translate"): translate,
    ("POST", "/detect"): detect,
    ("GET", "/languages"): languages,
    ("GET", "/health"): health,
    ("GET", "/frontend/settings"): settings,
}
