"""A local stand-in for OPUS, which the real OpusTools asks: its list of corpora, its archives."""

import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.running_server import running
from transformer_jax.data.sources.base import Pair

#: The name that OpusTools asks.
OPUS = "https://opus.nlpl.eu"


class Server(ThreadingHTTPServer):
    """English-German corpora by name and version."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.archives: dict[tuple[str, str], bytes] = {}
        self.requests: list[str] = []
        self.cut = 0  #: bytes of each archive that are not sent

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, name: str, pairs: list[Pair]) -> None:
        """A corpus, as OPUS packs them."""
        corpus, _, version = name.rpartition("-v")
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("README", f"Corpus Name: {corpus}\n")
            for side, language in ((1, "de"), (0, "en")):
                lines = "".join(pair[side] + "\n" for pair in pairs)
                archive.writestr(f"{corpus}.de-en.{language}", lines)
        self.archives[corpus, f"v{version}"] = content.getvalue()


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.server.requests.append(self.path)
        if url.path == "/opusapi":
            asked = {key: values[0] for key, values in parse_qs(url.query).items()}
            assert asked["preprocessing"] == "moses"
            found = [
                self._about(corpus, version)
                for corpus, version in self.server.archives
                if asked.get("corpus", corpus) == corpus
                and asked.get("version", version) == version
                and {asked["source"], asked["target"]} == {"de", "en"}
            ]
            self._send(json.dumps({"corpora": found}).encode())
        else:
            _, place, version, *_ = url.path.split("/")
            content = self.server.archives[place.removeprefix("OPUS-"), version]
            self._send(content, self.server.cut)

    def _about(self, corpus: str, version: str) -> dict[str, object]:
        url = f"{self.server.address}/OPUS-{corpus}/{version}/moses/de-en.txt.zip"
        size = len(self.server.archives[corpus, version]) // 1000
        about = {"id": 1, "corpus": corpus, "version": version, "preprocessing": "moses"}
        counted = ("documents", "alignment_pairs", "source_tokens", "target_tokens")
        counts = dict.fromkeys(counted, "")
        return about | counts | {"source": "de", "target": "en", "url": url, "size": size}

    def _send(self, content: bytes, cut: int = 0) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) - cut])

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve(patch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Starts a server, which OpusTools then asks in place of OPUS."""
    import opustools

    server = Server()

    class Redirected(opustools.OpusGet):  # type: ignore[misc, name-defined]
        def __init__(self, **options: object) -> None:
            super().__init__(**options)
            assert self.url.startswith(OPUS)
            self.url = server.address + self.url.removeprefix(OPUS)

    patch.setattr(opustools, "OpusGet", Redirected)
    with running(server):
        yield server
