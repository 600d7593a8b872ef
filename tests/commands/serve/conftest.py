"""Two directions of a small model with random parameters, in a server of its own thread."""

import contextlib
import threading
import time
from functools import partial

import httpx
import jax
import pytest

import transformer_jax as tj
from tests.oracles import need
from tests.small import small_model
from transformer_jax.data.sources.grammar.sentences import generate

#: A program of the request may still be compiled, after the one that is compiled now: httpx waits
#: for 5 s by default.
get, post = (partial(method, timeout=300) for method in (httpx.get, httpx.post))


@pytest.fixture(scope="session")
def translators():
    """(source, target) -> a translator. That from English takes 48 pieces: every sentence here."""
    need("starlette")
    pairs = generate(3, 400)
    small = tj.StackConfig(num_layers=1)
    decode = tj.DecodeConfig(method=tj.Beam(beam_size=3), batch_size=2, max_length_offset=3)
    found = {}
    for seed, (source, target) in enumerate([("en", "de"), ("de", "en")]):
        texts = pairs if source == "en" else [(de, en) for en, de in pairs]
        tokenizers = tj.train_tokenizers(tj.TokenizerConfig(vocab_size=400), texts)
        config = small_model(400, both=small, d_ff=16, max_length={"en": 48, "de": 24}[source])
        params = tj.init(config, jax.random.key(seed))
        # Flat distributions would make every translation run to its limit.
        params = jax.tree.map(lambda x: 3 * x, params)
        found[source, target] = tj.Translator(config, params, tokenizers, decode)
    return found


@pytest.fixture(scope="session")
def sentences():
    """Forty English sentences."""
    return [english for english, _ in generate(9, 40)]


@pytest.fixture(scope="session")
def engines(translators):
    from transformer_jax.commands.serve.jax_engine import JaxEngine

    return [JaxEngine(translator, *pair) for pair, translator in translators.items()]


def wait_until(condition):
    """The first value of `condition()` that is true."""
    for _ in range(6000):
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it did not become true")


@contextlib.contextmanager
def served(engines, *, ready=False, **options):
    """The address of a server that runs in a thread, if `ready` with its programs compiled."""
    from transformer_jax.commands.serve.app import listen, make_app, make_server

    sock = listen("127.0.0.1", 0)
    server = make_server(make_app(engines, **options))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        wait_until(lambda: server.started)
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        if ready:
            wait_until(lambda: get(f"{url}/health").status_code == 200)
        yield url
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def url(engines, sentences):
    """The address of a server of both directions."""
    with served(engines, ready=True, examples={"en": sentences[:3]}) as url:
        yield url
