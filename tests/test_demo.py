"""The page in docs/demo.html: that of the server, with recorded answers, from the disk."""

import pytest

from tests.oracles import need
from tests.pages import ROOT, load_script

DEMO = ROOT / "docs" / "demo.html"


@pytest.fixture(scope="module")
def maker():
    return load_script("make_demo")


def test_it_is_todays_page(maker):
    """Otherwise: python docs/make_demo.py."""
    demo = DEMO.read_text(encoding="utf-8")
    assert maker.build(maker.recording(demo)) == demo
    assert len(demo) < 500_000


@pytest.fixture
def page(browser):
    """The page, opened from the disk; no error may be on its console at the end."""
    browser.get_log("browser")
    browser.get("about:blank")
    browser.get(DEMO.as_uri())
    yield browser
    assert [e for e in browser.get_log("browser") if e["level"] == "SEVERE"] == []


def wait(browser, condition):
    return need("selenium.webdriver.support.ui").WebDriverWait(browser, 30).until(condition)


def find(browser, selector):
    return [e for e in browser.find_elements("css selector", selector) if e.is_displayed()]


def test_every_sentence_is_recorded(page, maker):
    examples = wait(page, lambda page: find(page, "#examples a"))
    sentences = [example.text for example in examples]
    assert len(set(sentences)) == maker.SENTENCES
    for sentence in sentences:
        page.find_element("link text", sentence).click()
        wait(page, lambda page: find(page, "#words:not(.stale) .word"))
        assert page.find_element("id", "status").text == "Translated"
        assert page.find_element("id", "text").get_property("value") == sentence
        page.find_element("id", "clear").click()


def test_a_word_is_exchanged(page):
    wait(page, lambda page: find(page, "#examples a"))
    page.find_element("link text", "My picture costs forty-five euros.").click()
    first, *_ = wait(page, lambda page: find(page, ".word"))
    assert page.find_element("id", "words").text == "Mein Bild kostet fünfundvierzig Euro."
    first.click()
    other = wait(page, lambda page: find(page, "#menu [role=menuitem]"))[1]
    word = other.find_element("tag name", "strong").text
    other.click()
    chosen = wait(page, lambda page: [e for e in find(page, ".word") if e.text == word])
    need("selenium.webdriver").ActionChains(page).move_to_element(chosen[0]).perform()
    assert wait(page, lambda page: page.find_elements("css selector", "#looks mark"))


def test_another_text_is_said_not_to_be_recorded(page, maker):
    wait(page, lambda page: find(page, "#examples a"))
    page.find_element("id", "text").send_keys("Hello")
    wait(page, lambda page: page.find_element("id", "status").text == maker.NOT_RECORDED)
