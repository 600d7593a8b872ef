"""`transformer-jax serve`: the session of docs/serving.md, signals, and wrong flags."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest

from tests.malformed.conftest import place, trained  # noqa: F401
from tests.malformed.harness import is_refused
from tests.oracles import apart, missing, need
from tests.pages import blocks
from transformer_jax.errors import UserError

need("starlette")
PROGRAM = "import sys; from transformer_jax.commands.main import main; sys.exit(main())"


@contextlib.contextmanager
def serving(run, *flags):
    """A process that serves a run, once all programs are compiled, and its address."""
    apart("it compiles a server")  # tests/commands/serve has one in ./run test
    command = [sys.executable, "-c", PROGRAM, "serve", f"--workdir={run}", "--port=0", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("ready"):
                break
        found = re.search(r"http://[\d.]+:\d+", "".join(lines))
        assert found, lines
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def server(trained):  # noqa: F811
    with serving(trained) as (process, url):
        yield process, url


def test_the_documented_session(server):
    need("libretranslatepy")
    need("deepl")
    if not shutil.which("curl"):
        missing("no curl")
    _, url = server
    documented = "http://127.0.0.1:5000"
    (curls,) = (block for block in blocks("docs/serving.md", "sh") if "curl" in block)
    commands = re.sub(r"\\\n\s+", "", curls).splitlines()
    answers = [
        subprocess.run(
            ["sh", "-c", command.replace(documented, url)], capture_output=True, check=True
        ).stdout
        for command in commands
    ]
    health, one, several, deepl = map(json.loads, answers)
    assert health == {"status": "ok"}
    assert list(one) == ["translatedText"]
    assert len(several["translatedText"]) == len(several["alternatives"]) == 2
    assert list(deepl["translations"][0]) == ["detected_source_language", "text"]
    for example in blocks("docs/serving.md", "python"):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(example.replace(documented, url), "serving.md", "exec"), {})
        assert out.getvalue().strip() == deepl["translations"][0]["text"].strip()


def test_the_text_of_files_is_shown_to_nobody(server):
    _, url = server
    assert httpx.get(f"{url}/page/examples").json() == {"en": []}


def test_a_signal_finishes_what_is_in_hand(trained):  # noqa: F811
    with serving(trained, "--window_ms=60000") as (process, url):
        answers = []

        def ask():
            form = {"q": "the dog sees a cat", "source": "en", "target": "de"}
            answers.append(httpx.post(f"{url}/translate", json=form, timeout=60).status_code)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        waiting = "transformer_jax_waiting_sentences 3.0"
        while waiting not in httpx.get(f"{url}/metrics").text:
            pass
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert answers == [200, 200, 200]
        assert process.wait(60) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--port=70000", "port=70000"),
        ("--host=256.1.1.1", "host=256.1.1.1"),
        ("--api_keys=/nowhere", "/nowhere: No such file"),
        (f"--api_keys={os.devnull}", "no key"),
        ("--queue=0", "--queue: 0: must be at least 1"),
        ("--window_ms=nan", "--window_ms=nan"),
        ("--char_limit=-1", "--char_limit: -1"),
    ],
)
def test_wrong_flags(trained, flag, words):  # noqa: F811
    assert words in is_refused(trained, "serve", f"--workdir={trained}", "--port=0", flag)


def test_keys_in_a_file_with_a_byte_order_mark(tmp_path):
    from transformer_jax.commands.serve import _keys

    (tmp_path / "keys").write_bytes(b"\xef\xbb\xbffirst\r\n\r\nsecond")
    assert _keys(str(tmp_path / "keys")) == ["first", "second"]


def test_an_address_in_use_is_named(trained):  # noqa: F811
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        line = is_refused(trained, "serve", f"--workdir={trained}", f"--port={port}")
    assert f"port={port}: Address already in use" in line


def test_what_installs_its_packages_is_said(monkeypatch):
    from transformer_jax.commands import serve

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(UserError, match=r"serving needs uvicorn: .*\./run setup serve"):
        serve.run(None)
