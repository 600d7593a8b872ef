"""Input that is meant to hurt: answered with an error of the protocol, and the server goes on."""

import json
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import assume, given, settings, strategies as st

from tests.commands.serve.conftest import get, post, served
from tests.malformed.harness import JSON

POSTS = ["/translate", "/detect", "/v2/translate", "/page/translate", "/page/explain"]
GOOD = {"q": "der Hund", "source": "de", "target": "en"}


@pytest.fixture(scope="module")
def url(engines):
    """A server of the smaller model; what it has to compile takes most of this file's time."""
    with served(engines[1:]) as url:
        yield url


@pytest.fixture(autouse=True)
def goes_on(url):
    """After each test the server still translates."""
    yield
    answer = post(f"{url}/translate", json=GOOD)
    assert answer.status_code == 200


@pytest.fixture
def impatient(engines, monkeypatch):
    """A server that waits two seconds for a head or a body: longer than a thread of ours rests."""
    from transformer_jax.commands.serve import app, http

    monkeypatch.setattr(app, "HEAD_SECONDS", 2.0)
    monkeypatch.setattr(http, "BODY_SECONDS", 2.0)
    with served(engines[1:]) as url:
        yield url


def connect(url, seconds):
    parts = urlsplit(url)
    return socket.create_connection((parts.hostname, parts.port), timeout=seconds)


def is_refusal(answer, path, *statuses):
    assert answer.status_code in statuses, answer.text
    (key,) = answer.json()
    assert key == ("message" if path.startswith("/v2/") else "error")
    assert "Traceback" not in answer.text


def send(url, path, content, kind="application/json"):
    return post(f"{url}{path}", content=content, headers={"Content-Type": kind})


MALFORMED = [
    b"",
    b"{",
    b"\xff\xfe",
    b'{"q": "\xff"}',
    b'{"q": "\\ud800", "source": "de", "target": "en"}',
    b"[" * 100_000,
    b'{"q":' * 10_000,
    b'{"q": ' + b"9" * 50_000 + b"}",
    b"null",
    b'["q"]',
    b'{"q": "a", "q": 1}',
    b"NaN",
]
FORMS = [b"q=%ff&source=de&target=en", b"\xff", b"&".join([b"q=a"] * 5000), b"=", b"%"]
KINDS = {"application/json": MALFORMED, "application/x-www-form-urlencoded": FORMS}


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(("kind", "body"), [(k, b) for k, bodies in KINDS.items() for b in bodies])
def test_malformed_bodies(url, path, kind, body):
    is_refusal(send(url, path, body, kind), path, 400, 413)


@pytest.mark.parametrize("kind", ["text/xml", "multipart/form-data; boundary=a", "", "x" * 1000])
def test_other_kinds_of_body(url, kind):
    is_refusal(send(url, "/translate", b"<q/>", kind), "/translate", 415)


@settings(max_examples=60)
@given(
    path=st.sampled_from(POSTS),
    names=st.lists(
        st.sampled_from(["q", "source", "target", "text", "target_lang", "tokens", "alternatives"]),
        unique=True,
    ),
    data=st.data(),
)
def test_wrong_types(url, path, names, data):
    form = {name: data.draw(JSON) for name in names}
    assume(path != "/detect" or not isinstance(form.get("q"), str))  # this one is right
    is_refusal(send(url, path, json.dumps(form).encode()), path, 400)


@settings(max_examples=40)
@given(st.text(max_size=300))
def test_any_text_is_translated(url, text):
    answer = post(f"{url}/translate", json=GOOD | {"q": text})
    assert answer.status_code == 200 and isinstance(answer.json()["translatedText"], str)


@pytest.mark.parametrize("tokens", [[10**9], [-1], [0], [2], [10] * 24, [10] * 10_001, ["x"], 5])
def test_tokens_that_are_none(url, tokens):
    for path in ("/page/explain", "/page/choices"):
        is_refusal(post(url + path, json=GOOD | {"tokens": tokens}), path, 400)


def test_oversized_bodies(url):
    is_refusal(send(url, "/translate", b"x" * 10_000_000), "/translate", 413)
    chunks = (b"y" * 10_000 for _ in range(1000))  # a body whose length is not declared
    try:
        answer = send(url, "/translate", chunks)
    except httpx.WriteError:  # the server answered and closed before all was sent
        return
    is_refusal(answer, "/translate", 413)


def test_wrong_paths_and_methods(url):
    assert get(f"{url}/static/page.js").json() == {"error": "Not Found"}
    answer = get(f"{url}/translate")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert list(httpx.put(f"{url}/v2/translate").json()) == ["message"]
    assert httpx.delete(f"{url}/").status_code == 405


def test_slow_clients_are_dropped_and_delay_nobody(impatient):
    head = b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n"
    starts = [b"", b"GET / HT", head + b"Content-Type: application/json\r\n\r\n{"]
    began, socks = time.monotonic(), []
    for start in starts:
        socks.append(connect(impatient, 20))
        socks[-1].sendall(start)
    assert get(f"{impatient}/languages").status_code == 200
    answers = []
    for sock in socks:
        with sock, sock.makefile("rb") as file:
            answers.append(file.read())
    assert answers[:2] == [b"", b""]
    assert answers[2].startswith(b"HTTP/1.1 408 ")
    assert b"\r\nconnection: close\r\n" in answers[2].lower()
    assert time.monotonic() - began < 15


def test_an_answered_client_does_not_keep_its_connection(impatient):
    """A late part of a body that nobody reads ends uvicorn's own limit."""
    with connect(impatient, 60) as sock:
        sock.sendall(b"GET /languages HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n")
        answer = b""
        while not answer.endswith(b"]"):
            part = sock.recv(65536)
            assert part, answer
            answer += part
        sock.sendall(b"a")
        while sock.recv(65536):  # raises after 60 s
            pass


def test_a_head_that_trickles_in_is_dropped_too(impatient):
    with connect(impatient, 20) as sock, pytest.raises((BrokenPipeError, ConnectionResetError)):
        for letter in b"GET / HTTP/1.1\r\nX: " + b"y" * 200:
            sock.sendall(bytes([letter]))
            time.sleep(0.05)
