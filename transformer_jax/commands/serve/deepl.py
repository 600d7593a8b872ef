"""A part of DeepL's API v2 (https://github.com/DeepLcom/openapi), enough for its own clients."""

from typing import Any, Literal

from starlette.requests import Request

from transformer_jax.commands.serve.http import Context, Form, fields
from transformer_jax.commands.serve.languages import name_of

#: Targets that DeepL and its clients name only by region. A model here has one form of each.
REGIONS = {"EN": ("EN-GB", "EN-US"), "PT": ("PT-BR", "PT-PT")}
#: Comes before the key in the header Authorization.
SCHEME = "DeepL-Auth-Key"
#: What DeepL says where there is no limit.
UNLIMITED = 1_000_000_000_000


class Translate(Form):
    """Of POST /v2/translate: those fields of DeepL's whose promises we keep."""

    text: list[str] | str
    target_lang: str
    source_lang: str | None = None
    split_sentences: Literal["0", "1"] | None = None
    preserve_formatting: bool = False  # nothing is ever corrected
    formality: Literal["default", "prefer_more", "prefer_less"] = "default"
    model_type: Literal["prefer_quality_optimized"] | None = None
    tag_handling: Literal["html", "xml"] | None = None
    show_billed_characters: bool = False


class Languages(Form):
    """Of GET /v2/languages."""

    type: Literal["source", "target"] = "source"


async def translate(context: Context, request: Request) -> dict[str, Any]:
    """Translates one or several texts."""
    key = context.check_header(request, SCHEME)
    form = await fields(request, Translate, context.limits)
    texts = [form.text] if isinstance(form.text, str) else form.text
    service = context.service
    split = None if form.split_sentences is None else form.split_sentences == "1"
    options: dict[str, Any] = {
        "source": service.code(form.source_lang) if form.source_lang else None,
        "target": service.code(form.target_lang),
        "split_sentences": split,
        "num_best": 1,
    }
    found = await context.translate_form(request, key, texts, form.tag_handling, **options)
    answers = [
        {"detected_source_language": each.source.upper(), "text": translation}
        | ({"billed_characters": len(text)} if form.show_billed_characters else {})
        for text, (each, translation) in zip(texts, found, strict=True)
    ]
    return {"translations": answers}


async def languages(context: Context, request: Request) -> list[dict[str, Any]]:
    """The languages that can be translated, or those that can be translated into."""
    context.check_header(request, SCHEME)
    form = await fields(request, Languages, context.limits)
    side = 0 if form.type == "source" else 1
    codes = sorted({pair[side] for pair in context.service.engines})
    return [
        {"language": shown, "name": name_of(code), "supports_formality": False}
        for code in codes
        for shown in (REGIONS.get(code.upper(), ()) if side else ()) or [code.upper()]
    ]


async def usage(context: Context, request: Request) -> dict[str, int]:
    """Characters translated for the caller's key since the server started."""
    key = context.check_header(request, SCHEME)
    return {"character_count": context.keys.characters[key], "character_limit": UNLIMITED}


ROUTES = {
    ("POST", "/v2/translate"): translate,
    ("GET", "/v2/languages"): languages,
    ("GET", "/v2/usage"): usage,
}
