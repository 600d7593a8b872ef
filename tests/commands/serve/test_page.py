"""The page in a headless Chromium, driven by keyboard and mouse."""

import json
import re
from urllib.parse import quote, quote_plus

import jax
import numpy as np
import pytest

from tests.commands.serve.conftest import served
from tests.oracles import need

webdriver = need("selenium.webdriver")

from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

import transformer_jax as tj  # noqa: E402
from tests.formats.exporter_suite import language_tokenizers  # noqa: E402
from tests.small import small_model  # noqa: E402
from transformer_jax.viewing.explanation import explain, next_pieces  # noqa: E402


@pytest.fixture
def page(browser, url):
    """The page, freshly loaded; no error may be on its console at the end."""
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(url)
    wait(browser, lambda: all_of(browser, "#target option"))
    yield browser
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []


def wait(browser, condition):
    return WebDriverWait(browser, 60, 0.05).until(lambda _: condition())


def all_of(browser, selector):
    return browser.find_elements(By.CSS_SELECTOR, selector)


def one(browser, selector):
    return browser.find_element(By.CSS_SELECTOR, selector)


def wait_for_words(browser):
    """Until then, a part of the text may have been translated."""
    wait(browser, lambda: all_of(browser, "#words:not(.stale) .word"))


def translated(browser, text):
    """Types a text, and waits until its words can be chosen."""
    one(browser, "#text").send_keys(text)
    wait_for_words(browser)
    assert one(browser, "#status").text == "Translated"
    return one(browser, "#words").get_property("textContent")


def number(browser, element, name):
    """A property of CSS that the script sets."""
    script = "return getComputedStyle(arguments[0]).getPropertyValue(arguments[1])"
    return float(browser.execute_script(script, element, name))


def focused(browser):
    return browser.switch_to.active_element


def marked(browser, selector):
    """The marks in the text once the mouse is over a word, and their shares of the largest."""
    webdriver.ActionChains(browser).move_to_element(one(browser, selector)).perform()
    marks = wait(browser, lambda: all_of(browser, "#looks mark"))
    text = "".join(mark.get_property("textContent") for mark in marks)
    return text, [number(browser, mark, "--share") for mark in marks]


def explained(translator, text):
    """The ids of a text and of its translation, and how the one looks at the other."""
    best = translator.n_best([text], 1)[0][0]
    source = translator.tokenizers.source.encode(text)
    target = [token for token in best.tokens if token != 2]
    return source, target, explain(translator, source, target)


def test_it_loads_only_from_the_server(page, url):
    sent = [json.loads(each["message"])["message"] for each in page.get_log("performance")]
    urls = [
        m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"
    ]
    assert urls and all(each.startswith(url) for each in urls)


def test_it_translates_while_one_types(page, translators, sentences):
    expected = translators["en", "de"].n_best([sentences[0]], 3)[0]
    translated(page, sentences[0])
    assert one(page, "#spoken").get_property("textContent") == expected[0].text
    texts = [each.get_property("textContent") for each in all_of(page, "#list .text")]
    assert texts == [each.text for each in expected]
    scores = [each.text for each in all_of(page, "#list .number")]
    assert scores == [f"{each.score:.2f}" for each in expected]


def shown_examples(page):
    return [each for each in all_of(page, "#examples a") if each.is_displayed()]


def test_an_example_is_clicked(page, translators, sentences):
    """They are offered while there is no text, in the language of the text."""
    expected = [translators["en", "de"].translate([each])[0] for each in sentences[:2]]
    assert [each.text for each in shown_examples(page)] == sentences[:3]
    for sentence, translation in zip(sentences, expected, strict=False):
        page.find_element(By.LINK_TEXT, sentence).click()
        wait_for_words(page)
        assert one(page, "#text").get_property("value") == sentence
        assert one(page, "#spoken").get_property("textContent") == translation
        assert focused(page).get_dom_attribute("id") == "text"
        assert not shown_examples(page)
        one(page, "#clear").click()
    page.back()
    one(page, "#swap").click()
    assert not shown_examples(page)


def test_the_address_holds_a_text(page, url, sentences):
    page.get("about:blank")
    page.get(f"{url}/#text={quote(sentences[3])}")
    wait_for_words(page)
    assert one(page, "#text").get_property("value") == sentences[3]
    one(page, "#text").send_keys(" ")
    assert page.current_url == f"{url}/", "another text is not that of the address"
    page.get(f"{url}/#text={quote_plus(sentences[4])}")
    wait(page, lambda: one(page, "#text").get_property("value") == sentences[4])


def test_a_word_that_was_never_seen_is_marked(page, translators, sentences, monkeypatch):
    translator = translators["en", "de"]
    word = sentences[0].split()[1]
    unseen = frozenset(translator.tokenizers.source.encode(word))
    monkeypatch.setattr(translator, "unseen", unseen)
    expected = [w for w in sentences[0].split() if w in translator.unseen_words(sentences[0])]
    assert word in expected
    one(page, "#text").send_keys(sentences[0])
    wait_for_words(page)
    assert one(page, "#status").text.startswith("Translated. The model has never seen: ")
    assert word in one(page, "#status").text
    assert [each.get_property("textContent") for each in all_of(page, "#looks u")] == expected


def test_the_request_for_an_older_text_is_cancelled(page, sentences):
    """The first text's request is under way when the second one is typed."""
    page.execute_script(
        """
        const send = window.fetch;
        window.log = [];
        window.fetch = async (path, options) => {
          if (path !== "page/translate") return send(path, options);
          const entry = { q: JSON.parse(options.body).q, aborted: false };
          window.log.push(entry);
          options.signal.addEventListener("abort", () => { entry.aborted = true; });
          if (window.log.length === 1) {
            await new Promise((_, no) => options.signal.addEventListener("abort",
              () => no(options.signal.reason)));
          }
          return send(path, options);
        };
        """
    )
    one(page, "#text").send_keys("Anna")
    wait(page, lambda: page.execute_script("return window.log.length") == 1)
    one(page, "#text").send_keys(" sleeps.")
    wait(page, lambda: one(page, "#status").text == "Translated")
    log = page.execute_script("return window.log")
    assert log == [{"q": "Anna", "aborted": True}, {"q": "Anna sleeps.", "aborted": False}]


def test_a_word_shows_where_the_model_looks(page, translators, sentences):
    """In the text itself; the marks cover exactly the pieces of its sentence."""
    translated(page, f"{sentences[1]}\n{sentences[0]}")
    wait(page, lambda: all_of(page, "[data-word='1.0']"))
    text, shares = marked(page, "[data-word='1.0']")
    assert text == sentences[0].replace(" ", "")
    pieces = all_of(page, "[data-word='1.0'] .piece")
    *_, explanation = explained(translators["en", "de"], sentences[0])
    looks_S = explanation.looks_TS[: len(pieces)].sum(axis=0)
    assert shares == pytest.approx((looks_S / looks_S.max()).tolist(), abs=2e-3)
    webdriver.ActionChains(page).move_to_element(one(page, "h1")).perform()
    wait(page, lambda: not all_of(page, "#looks mark"))


def test_words_are_shaded_by_probability(page, translators, sentences):
    translated(page, sentences[0])
    *_, explanation = explained(translators["en", "de"], sentences[0])
    doubts = [number(page, p, "--doubt") for p in all_of(page, ".piece")]
    assert doubts == pytest.approx((1 - np.exp(explanation.log_probs_T[:-1])).tolist(), abs=2e-3)

    def colours():
        return {p.value_of_css_property("background-color") for p in all_of(page, ".piece")}

    assert len(colours()) > 1
    one(page, "#shade").click()
    assert colours() == {"rgba(0, 0, 0, 0)"}


def test_another_word_is_chosen_with_the_keyboard(page, translators, sentences):
    """Tab to the words, an arrow to the second, Enter for the menu, an arrow, Enter."""
    before = translated(page, sentences[0])
    one(page, "#text").send_keys(Keys.TAB)
    for _ in range(10):
        if focused(page).get_dom_attribute("data-word") == "0.0":
            break
        focused(page).send_keys(Keys.TAB)
    focused(page).send_keys(Keys.ARROW_RIGHT)
    for key in (Keys.ESCAPE, Keys.ARROW_DOWN):
        assert focused(page).get_dom_attribute("data-word") == "0.1"
        assert not one(page, "#menu").is_displayed()
        focused(page).send_keys(Keys.ENTER)
        wait(page, lambda: focused(page).get_dom_attribute("role") == "menuitem")
        focused(page).send_keys(key)
    rest = focused(page).find_element(By.CSS_SELECTOR, ".rest").get_property("textContent")
    word = focused(page).find_element(By.CSS_SELECTOR, "strong").text
    focused(page).send_keys(Keys.ENTER)
    wait(page, lambda: "your words" in one(page, "#list").text)
    spoken = one(page, "#spoken").get_property("textContent")
    assert spoken.endswith(word + rest) and spoken != before
    first = before.split(" ")[0]
    assert spoken.startswith(first)
    # It is what the model continues from one of the most probable pieces at the word's place.
    translator = translators["en", "de"]
    source, tokens, _ = explained(translator, sentences[0])
    pieces = translator.tokenizers.target.pieces(tokens)
    place = [i for i, piece in enumerate(pieces) if i and piece.startswith("▁")][0]
    found = next_pieces(translator, source, tokens[:place], 8)
    prefixes = [[*tokens[:place], piece] for piece, _ in found]
    continued = translator.n_best([sentences[0]] * len(prefixes), 1, target_prefix=prefixes)
    assert spoken in [best.text for (best,) in continued]


def test_an_alternative_is_chosen(page, sentences):
    """Its button stays when the explanation arrives, so that no press is lost."""
    translated(page, sentences[0])
    page.execute_script(
        """
        const send = window.fetch;
        window.fetch = async (path, options) => {
          if (path === "page/explain") await new Promise((go) => { window.go = go; });
          return send(path, options);
        };"""
    )
    second = all_of(page, "#list button")[1]
    text = second.find_element(By.CSS_SELECTOR, ".text").get_property("textContent")
    second.click()
    wait(page, lambda: one(page, "#spoken").get_property("textContent") == text)
    buttons = all_of(page, "#list button")
    assert not all_of(page, "#words .word")
    page.execute_script("window.go()")
    wait(page, lambda: all_of(page, "#words .word"))
    pressed = [b.get_dom_attribute("aria-pressed") for b in buttons]
    assert pressed == ["false", "true", "false"]
    assert focused(page).get_dom_attribute("aria-pressed") == "true"


def test_swapping_translates_back(page, sentences):
    translated(page, sentences[0])
    german = one(page, "#spoken").get_property("textContent")
    one(page, "#swap").click()
    assert one(page, "#text").get_property("value") == german
    assert one(page, "#source").get_property("value") == "de"
    assert one(page, "#target").get_property("value") == "en"


def test_too_long_a_text_is_said_to_be(page):
    page.execute_script(
        "const t = document.getElementById('text'); t.value = 'a'.repeat(5001);"
        "t.dispatchEvent(new Event('input'));"
    )
    wait(page, lambda: "exceed the limit" in one(page, "#status").text)
    assert "over" in one(page, "#count").get_dom_attribute("class")
    page.get_log("browser")  # Chromium notes every answer of 400


def test_a_text_is_never_taken_for_markup(page):
    translated(page, "<img src=x onerror=document.title='broken'> the dog")
    assert page.title.startswith("Translate")
    assert not all_of(page, "#looks img, #words img, #list img")


def test_everything_has_a_name_and_a_role(page, sentences):
    """What a screen reader is told, by Chromium's own accessibility tree."""
    translated(page, sentences[0])
    nodes = page.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    seen = {}
    for node in nodes:
        if not node["ignored"]:
            role, name = node["role"]["value"], node.get("name", {}).get("value", "")
            seen.setdefault(role, []).append(name)
    for role in ("button", "combobox", "textbox", "checkbox", "region"):
        assert seen[role] and all(seen[role]), (role, seen[role])
    assert "Text to translate" in seen["textbox"]
    assert "Translation, word by word" in seen["group"]
    assert {"Language of the text", "Language of the translation"} <= set(seen["combobox"])
    assert len(seen["status"]) == 2
    assert seen["main"] and seen["heading"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(page, sentences, scheme):
    """Contrast of at least 4.5, the least that WCAG asks for, words shaded at their strongest."""
    features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
    translated(page, sentences[0])
    page.execute_script("document.querySelector('.piece').style.setProperty('--doubt', 1)")
    for selector, behind in (
        ("#text", ".panes > section"),
        (".piece", ".piece"),
        ("#status", "body"),
        ("#count", ".panes > section"),
        (".hint", "body"),
        ("#list .number", "#list button"),
    ):
        ink, paper = (
            colour(one(page, s).value_of_css_property(p))
            for s, p in ((selector, "color"), (behind, "background-color"))
        )
        light, dark = sorted((luminance(ink), luminance(paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (selector, ink, paper)


def colour(text):
    numbers = [float(n) for n in re.findall(r"[\d.]+", text.split("(")[1])]
    return numbers[:3] if text.startswith("color(srgb") else [n / 255 for n in numbers[:3]]


def luminance(rgb):
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_key_is_asked_for(browser, engines, sentences):
    with served(engines, keys=["secret"]) as url:
        browser.get(url)
        wait(browser, lambda: one(browser, "#key").is_displayed())
        one(browser, "#text").send_keys(sentences[0])
        wait(browser, lambda: "needs an API key" in one(browser, "#status").text)
        one(browser, "#key").send_keys("secret")
        wait(browser, lambda: one(browser, "#status").text == "Translated")


@pytest.fixture(scope="module")
def tagged(translators):
    """A model with language tokens, and without any matrix of attention."""
    tokenizers = language_tokenizers()
    linear = tj.StackConfig(num_layers=1, mixers=(tj.Linear(),))
    config = small_model(
        tokenizers.source.vocab_size, both=linear, cross=tj.LinearCross(), max_length=24
    )
    params = jax.tree.map(lambda x: 3 * x, tj.init(config, jax.random.key(20)))
    return tj.Translator(config, params, tokenizers, translators["en", "de"].decode_config)


def test_without_a_matrix_and_with_language_tokens(browser, tagged):
    """Marks are the effective attention, and only text is shown and offered."""
    from transformer_jax.commands.serve.jax_engine import JaxEngine

    text, word = "The dog sleeps.", "[data-word='0.0']"
    source, target, explanation = explained(tagged, text)
    first, tags = tagged.tokenizers.target.prefix, set(tagged.tokenizers.target.vocabulary.tags)
    assert explanation.source[0] == explanation.target[0] == "" and target[0] == first[0]
    with served([JaxEngine(tagged, "en", "de")]) as url:
        browser.get(url)
        wait(browser, lambda: all_of(browser, "#target option"))
        assert translated(browser, text) == tagged.translate([text])[0]
        shown, shares = marked(browser, word)
        assert shown == text.replace(" ", "")
        pieces = all_of(browser, f"{word} .piece")
        looks_S = explanation.looks_TS[1 : 1 + len(pieces)].sum(axis=0)
        assert shares == pytest.approx((looks_S / looks_S.max()).tolist(), abs=2e-3)
        assert len(set(shares)) > 2
        one(browser, word).click()
        wait(browser, lambda: all_of(browser, "#menu [role=menuitem]"))
        assert "_Latn" not in one(browser, "body").text
        for width in (400, 1100):  # nothing is wider than the window, long words neither
            browser.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
            )
            page = "document.documentElement"
            script = f"return {page}.scrollWidth - {page}.clientWidth"
            wait_for_words(browser)
            one(browser, word).click()
            wait(browser, lambda: focused(browser).get_dom_attribute("role") == "menuitem")
            assert browser.execute_script(script) <= 0
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    found = next_pieces(tagged, source, list(first), 64)
    assert len(found) > 8 and not tags & {token for token, _ in found}
