"""LibreTranslate's and DeepL's forms, spoken by plain HTTP and by their own clients."""

import contextlib
import json
import re
import threading
from functools import partial
from html import escape
from types import SimpleNamespace

import httpx
import pytest

from tests.commands.serve.conftest import get, post, served, wait_until
from tests.oracles import need

GOOD = {"q": "the dog", "source": "en", "target": "de"}


@pytest.fixture(scope="module")
def best(translators):
    """best(text, n) -> the translations of one sentence that `Translator` gives."""

    def best(text, n=1, pair=("en", "de")):
        return [each.text for each in translators[pair].n_best([text], n)[0]]

    return best


@pytest.fixture(scope="module")
def ask(url):
    """ask(text, ...) -> LibreTranslate's answer; from English to German unless said otherwise."""

    def ask(text, kind="json", **form):
        answer = post(f"{url}/translate", **{kind: GOOD | {"q": text} | form})
        assert answer.status_code == 200
        return answer.json()

    return ask


@pytest.fixture(scope="module")
def ask_deepl(url):
    """The same in DeepL's form: the translations."""

    def ask(text, **form):
        form = {"text": [text], "target_lang": "DE"} | form
        return post(f"{url}/v2/translate", json=form).json()["translations"]

    return ask


@pytest.mark.parametrize("kind", ["json", "data"])
def test_libretranslate_translates_a_text(ask, best, sentences, kind):
    assert ask(sentences[0], kind, format="text") == {"translatedText": best(sentences[0])[0]}


def test_libretranslate_translates_a_batch_with_alternatives(ask, best, sentences):
    for count in (1, 10**9):  # the search finds three
        answer = ask(sentences[:3], alternatives=count)
        expected = [list(dict.fromkeys(best(each, 3)))[: 1 + count] for each in sentences[:3]]
        assert answer["translatedText"] == [each[0] for each in expected]
        assert answer["alternatives"] == [each[1:] for each in expected]
    answer = ask(sentences[0], alternatives=2, format="html")
    assert answer["alternatives"] == []


def test_lines_and_spaces_survive(ask, best, sentences):
    one, two = sentences[:2]
    answer = ask(f"\n  {one}\r\n\r\n\t{two}  \n")
    assert answer["translatedText"] == f"\n  {best(one)[0]}\r\n\r\n\t{best(two)[0]}  \n"


def test_text_that_is_too_long_is_cut_into_sentences(ask, best, sentences):
    answer = ask(" ".join(sentences[:20]))
    assert answer["translatedText"] == " ".join(best(each)[0] for each in sentences[:20])


def test_the_language_is_detected(url, ask):
    german = "Der alte Mann liest heute ein langes Buch."
    answer = ask(german, source="auto", target="en")
    assert answer["detectedLanguage"]["language"] == "de"
    assert 90 < answer["detectedLanguage"]["confidence"] <= 100
    found = post(f"{url}/detect", data={"q": german}).json()
    assert [each["language"] for each in found] == ["de", "en"]
    batch = ask([german, german], source="auto", target="en")
    assert [each["language"] for each in batch["detectedLanguage"]] == ["de", "de"]


@pytest.mark.parametrize("kind", ["text", "html"])
def test_a_text_in_the_target_language_is_left_as_it_is(url, ask, ask_deepl, best, kind):
    text = "Der alte <b>Mann</b> liest heute ein langes Buch.\n"
    answer = ask([text, "the dog sees a cat"], source="auto", format=kind)
    assert answer["translatedText"] == [text, best("the dog sees a cat")[0]]
    assert [each["language"] for each in answer["detectedLanguage"]] == ["de", "en"]
    assert ask_deepl(text) == [{"detected_source_language": "DE", "text": text}]
    answer = post(f"{url}/page/translate", json={"q": text, "source": "auto", "target": "de"})
    assert (answer.json()["source"], answer.json()["gaps"]) == ("de", [text])


def test_a_text_that_may_be_in_the_target_language_is_translated(ask, best):
    assert ask("Information", source="auto")["translatedText"] == best("Information")[0]


def test_a_language_is_taken_for_its_only_region():
    from transformer_jax.commands.serve.service import Service

    directions = [("pt-BR", "en-GB"), ("pt-BR", "en-US"), ("pt-BR", "de")]
    service = Service([SimpleNamespace(source=s, target=t) for s, t in directions], None)
    given = ["PT", "pt-br", "en", "EN-us", "de-AT", "fr"]
    assert [service.code(each) for each in given] == ["pt-BR", "pt-BR", "en", "en-US", "de", "fr"]


def test_all_characters_that_are_allowed_fit_as_escapes(url):
    body = json.dumps({"q": "🙂" * 5000})
    assert len(body) > 60_000
    answer = post(f"{url}/detect", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200


def test_what_the_server_offers(url):
    assert get(f"{url}/languages").json() == [
        {"code": "de", "name": "German", "targets": ["en"]},
        {"code": "en", "name": "English", "targets": ["de"]},
    ]
    settings = get(f"{url}/frontend/settings").json()
    assert settings["charLimit"] == 5000 and settings["keyRequired"] is False
    assert settings["language"]["target"] == {"code": "de", "name": "German"}
    assert get(f"{url}/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": None}, "missing q parameter"),
        ({"source": "xx"}, "xx is not supported"),
        ({"target": "en"}, "en to en is not supported"),
        ({"format": "markdown"}, "format"),
        ({"alternatives": -1}, "alternatives"),
        ({"colour": "red"}, 'unknown parameter "colour"'),
        ({"q": "a" * 5001}, "5001 characters exceed the limit of 5000"),
        ({"q": ["a"] * 51}, "51 texts exceed the limit of 50"),
    ],
)
def test_libretranslate_refuses(url, change, words):
    form = {name: value for name, value in (GOOD | change).items() if value is not None}
    answer = post(f"{url}/translate", json=form)
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"] and words in answer.json()["error"]


def test_the_client_of_libretranslate(url, best, sentences):
    client = need("libretranslatepy").LibreTranslateAPI(url)
    assert client.translate(sentences[0], "en", "de") == best(sentences[0])[0]
    assert client.detect("Das ist ein Hund.")[0]["language"] == "de"
    assert [each["code"] for each in client.languages()] == ["de", "en"]


@pytest.fixture(scope="module")
def deepl(url):
    return need("deepl").DeepLClient("any key", server_url=url, send_platform_info=False)


def test_the_client_of_deepl(deepl, best, sentences):
    one = deepl.translate_text(sentences[0], target_lang="DE", source_lang="EN")
    assert (one.text, one.detected_source_lang) == (best(sentences[0])[0], "EN")
    assert one.billed_characters == len(sentences[0])
    several = deepl.translate_text(sentences[:3], target_lang="DE")
    assert [each.text for each in several] == [best(each)[0] for each in sentences[:3]]
    german = deepl.translate_text("Der Mann liest.", target_lang="EN-US")
    assert german.text == best("Der Mann liest.", pair=("de", "en"))[0]
    assert {each.code for each in deepl.get_source_languages()} == {"DE", "EN"}
    assert {each.code for each in deepl.get_target_languages()} == {"DE", "EN-GB", "EN-US"}
    used = deepl.get_usage().character
    assert used.count >= len(sentences[0]) and not used.limit_reached


def test_a_paragraph_is_translated_by_its_sentences(ask, ask_deepl, best):
    text = "Anna must go. The dog sleeps."
    both = " ".join(best(each)[0] for each in ("Anna must go.", "The dog sleeps."))
    assert ask(text)["translatedText"] == both != best(text)[0]
    for options, wanted in (
        ({}, both),
        ({"split_sentences": "1"}, both),
        ({"split_sentences": "0"}, best(text)[0]),
    ):
        (answer,) = ask_deepl(text, source_lang="EN", **options)
        assert answer["text"] == wanted


@pytest.mark.parametrize(
    "option",
    [
        {"formality": "more"},
        {"tag_handling": "xml", "ignore_tags": ["x"]},
        {"context": "a story"},
        {"glossary": "0000"},
        {"model_type": "latency_optimized"},
        {"split_sentences": "nonewlines"},
    ],
)
def test_deepl_refuses_what_it_cannot_keep(deepl, option):
    """The client raises with the words of the answer's `message`."""
    with pytest.raises(
        need("deepl").DeepLException, match=r"Bad request, message: Invalid request"
    ):
        deepl.translate_text("the dog", target_lang="DE", source_lang="EN", **option)


@pytest.fixture(scope="module")
def guarded(engines):
    """A server that asks for a key, allows pages of one origin, and takes few characters."""
    from transformer_jax.commands.serve.http import Limits

    options = {"keys": ["first", "second"], "cors": ["https://a.example"]}
    with served(engines, limits=Limits(characters=100, batch=2), **options) as url:
        yield url


def test_keys_by_the_client_of_deepl(guarded):
    deepl = need("deepl")
    with pytest.raises(deepl.AuthorizationException):
        deepl.Translator("wrong", server_url=guarded).translate_text("the dog", target_lang="DE")
    for key, text in (("first", "the dog"), ("second", "a cat")):
        client = deepl.Translator(key, server_url=guarded)
        client.translate_text(text, source_lang="EN", target_lang="DE")
        assert client.get_usage().character.count == len(text)


def test_keys(guarded):
    for path, form in (("translate", GOOD), ("detect", {"q": "a"}), ("page/translate", GOOD)):
        assert post(f"{guarded}/{path}", json=form).status_code == 403
        wrong = post(f"{guarded}/{path}", json=form | {"api_key": "schlüssel"})
        assert (wrong.status_code, wrong.json()) == (403, {"error": "Invalid API key"})
        assert post(f"{guarded}/{path}", json=form | {"api_key": "first"}).status_code == 200
    assert get(f"{guarded}/metrics").status_code == 403
    bearer = {"Authorization": "Bearer second"}
    assert get(f"{guarded}/metrics", headers=bearer).status_code == 200


def test_cors_is_off_unless_asked_for(url, guarded):
    origin = {"Origin": "https://a.example"}
    allow = "access-control-allow-origin"
    assert allow not in get(f"{url}/languages", headers=origin).headers
    assert get(f"{guarded}/languages", headers=origin).headers[allow] == "https://a.example"
    other = {"Origin": "https://b.example"}
    assert allow not in get(f"{guarded}/languages", headers=other).headers


@pytest.mark.parametrize("path", ["/", "/page.css", "/page.js", "/icon.svg"])
def test_the_page_is_served(url, path):
    answer = get(url + path)
    assert answer.status_code == 200 and len(answer.content) > 200
    assert "default-src 'self'" in answer.headers["content-security-policy"]


def metric(url, name):
    text = get(f"{url}/metrics").text
    return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])


def test_metrics(url):
    post(f"{url}/translate", json=GOOD)
    assert metric(url, 'transformer_jax_requests_total{route="/translate",status="200"}') >= 1
    assert metric(url, "transformer_jax_ready") == 1
    assert metric(url, "transformer_jax_waiting_sentences") == 0


def test_a_full_queue_answers_429(engines):
    with served(engines, queue=0) as url:
        answer = post(f"{url}/translate", json=GOOD)
        assert (answer.status_code, list(answer.json())) == (429, ["error"])
        answer = post(f"{url}/v2/translate", json={"text": ["a"], "target_lang": "DE"})
        assert (answer.status_code, list(answer.json())) == (429, ["message"])


def test_a_client_that_goes_away_is_forgotten(engines):
    """Its sentence waits for others, for longer than the test; then the queue is empty."""
    with served(engines, ready=True, window=600.0) as url:
        with contextlib.suppress(httpx.ReadTimeout):
            post(f"{url}/translate", json=GOOD, timeout=0.5)
        wait_until(lambda: metric(url, "transformer_jax_waiting_sentences") == 0)


def test_it_is_not_healthy_before_all_programs_are_compiled(engines, monkeypatch, caplog):
    from transformer_jax.commands.serve import service

    caplog.set_level("INFO")
    said = f"1 of {2 * len(engines)} programs"
    go = threading.Event()
    monkeypatch.setattr(type(engines[0]), "warm_up", lambda self: [int, lambda: go.wait(60)])
    monkeypatch.setattr(service, "SECONDS_OF_SILENCE", 0)
    with served(engines) as url:
        answer = {"error": f"The models are being compiled: {said}"}
        assert get(f"{url}/health").status_code == 503
        wait_until(lambda: get(f"{url}/health").json() == answer)
        assert f"compiled {said}" in caplog.text
        go.set()
        wait_until(lambda: get(f"{url}/health").json() == {"status": "ok"})


def test_ready_means_that_nothing_is_compiled_any_more(url, ask, sentences):
    from transformer_jax.translation.model_calls import decode_batch
    from transformer_jax.viewing.attention import _teacher_forced

    before = decode_batch._cache_size(), _teacher_forced._cache_size()
    for most in (1, 3, 10, 40):
        ask(sentences[:most])
    place = GOOD | {"q": sentences[0], "tokens": []}
    for path in ("explain", "choices"):
        assert post(f"{url}/page/{path}", json=place).status_code == 200
    assert (decode_batch._cache_size(), _teacher_forced._cache_size()) == before


def test_the_page_gets_alignments_where_it_asks(url, translators, sentences):
    form = GOOD | {"q": "\n".join(sentences[:2])}
    plain = post(f"{url}/page/translate", json=form).json()
    answer = post(f"{url}/page/translate", json=form | {"alignments": True}).json()
    links = [sentence.pop("alignment") for sentence in answer["sentences"]]
    assert answer == plain
    translator = translators["en", "de"]
    best = [[*each["translations"][0]["tokens"], 2] for each in plain["sentences"]]
    expected = translator.align(sentences[:2], best)
    assert links == [[list(link) for link in each] for each in expected]


def test_alignments_are_not_refused_after_the_translation(url, sentences, monkeypatch):
    """The queue is full as soon as one has been taken."""
    from transformer_jax.commands.serve.batcher import Batcher, QueueFull

    taken = []

    def admit(batcher):
        if taken:
            raise QueueFull
        taken.append(batcher)

    monkeypatch.setattr(Batcher, "_admit", admit)
    form = GOOD | {"q": sentences[0], "alignments": True}
    assert post(f"{url}/page/translate", json=form).status_code == 200
    assert post(f"{url}/page/translate", json=form).status_code == 429


def test_both_forms_translate_markup(ask, ask_deepl, best, sentences):
    """As plain text is translated, with the tags around the words that come from theirs."""
    first, second = sentences[:2]
    words = first.split(" ")
    words[1] = f"<b>{words[1]}</b>"
    marked = f"<p>{' '.join(words)}</p>\n<p>{second}</p>"

    def by_libretranslate(text):
        answer = ask(text, source="auto", format="html")
        assert answer["detectedLanguage"]["language"] == "en"
        return answer["translatedText"]

    def by_deepl(text, kind):
        (answer,) = ask_deepl(text, tag_handling=kind, source_lang="EN")
        return answer["text"]

    plain = [escape(best(each)[0], quote=False) for each in (first, second)]
    of_deepl = [partial(by_deepl, kind=kind) for kind in ("html", "xml")]
    for translate in (by_libretranslate, *of_deepl):
        made = translate(marked)
        assert made.count("<b>") == made.count("</b>") == 1
        assert re.sub("</?b>", "", made) == f"<p>{plain[0]}</p>\n<p>{plain[1]}</p>"
        assert translate("") == "" and translate("<p> </p>") == "<p> </p>"
        assert translate(escape(first, quote=False)) == plain[0]
    lines = "\n \n".join(escape(each, quote=False) for each in (first, second))
    assert by_deepl(lines, "xml") == "\n \n".join(plain)
    assert by_libretranslate(f"<pre>{lines}</pre>") == "<pre>{}\n \n{}</pre>".format(*plain)


def test_damaged_xml_is_a_bad_request(url):
    form = {"text": ["<a>"], "target_lang": "DE", "tag_handling": "xml"}
    answer = post(f"{url}/v2/translate", json=form)
    assert answer.status_code == 400
    assert "not well formed" in answer.json()["message"]
