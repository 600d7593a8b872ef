"""A local stand-in for Hugging Face's hub, which its real libraries ask (HF_ENDPOINT)."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from tests.running_server import running

Files = dict[str, bytes]


class Server(ThreadingHTTPServer):
    """Models and sets by name; each revision is a group of files."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models: dict[str, dict[str, Files]] = {}
        self.private: set[str] = set()
        self.sent: list[str] = []  #: files whose contents were asked for

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files(self, name: str, revision: str) -> tuple[str, Files] | None:
        """The commit and the files of a branch or commit."""
        for branch, files in self.models[name].items():
            commit = _commit(files)
            if revision in (branch, commit):
                return commit, files
        return None


def _commit(files: Files) -> str:
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


def _tree(files: Files) -> list[dict[str, object]]:
    """The entries of a list of files."""
    return [
        {"type": "file", "path": path, "size": len(x), "oid": hashlib.sha1(x).hexdigest()}
        for path, x in files.items()
    ]


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path.strip("/").removeprefix("datasets/")
        if path.startswith(("api/models/", "api/datasets/")):
            owner, model, kind, revision, *_ = [*path.split("/")[2:], "", "main"][:5]
            self._about(f"{owner}/{model}", kind, unquote(revision or "main"))
            return
        if path.count("/") < 4:  # what the library asks for itself
            self._send(b"", {}, 404)
            return
        owner, model, _, revision, file = path.split("/", 4)
        found = self._found(f"{owner}/{model}", unquote(revision))
        if found is None:
            return
        commit, files = found
        if file not in files:
            self._send(b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, 404)
            return
        if self.command == "GET":
            self.server.sent.append(file)
        etag = hashlib.sha1(files[file]).hexdigest()
        self._send(files[file], {"X-Repo-Commit": commit, "ETag": f'"{etag}"'})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length")
        body = self.rfile.read(int(length)) if length else b""
        parts = urlsplit(self.path).path.strip("/").split("/")
        if "Authorization" not in self.headers:
            self._send(b"{}", {}, 401)
            return
        if parts == ["api", "repos", "create"]:
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            self.server.models.setdefault(name, {"main": {}})
            if asked.get("visibility") == "private" or asked.get("private"):
                self.server.private.add(name)
            self._json({"url": f"{self.server.address}/{name}"})
            return
        if parts == ["api", "validate-yaml"]:  # the head of the model card
            self._json({"errors": [], "warnings": []})
            return
        name, kind = "/".join(parts[2:4]), parts[4]
        if kind == "preupload":
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in json.loads(body)["files"]
            ]
            self._json({"files": files})
        elif kind == "commit":
            files = self.server.models[name]["main"]
            for line in body.splitlines():
                item = json.loads(line)
                if item["key"] == "file":
                    content = base64.b64decode(item["value"]["content"])
                    files[item["value"]["path"]] = content
            address = f"{self.server.address}/{name}/commit/{_commit(files)}"
            self._json({"commitUrl": address, "commitOid": _commit(files)})

    def _about(self, name: str, kind: str, revision: str) -> None:
        found = self._found(name, revision)
        if found is None:
            return
        commit, files = found
        if kind == "tree":
            self._json(_tree(files))
        else:
            siblings = [{"rfilename": path} for path in files]
            self._json({"id": name, "sha": commit, "siblings": siblings})

    def _found(self, name: str, revision: str) -> tuple[str, Files] | None:
        code, found = "RepoNotFound", None
        if name in self.server.models:
            code, found = "RevisionNotFound", self.server.files(name, revision)
        if found is None:
            self._send(b"", {"X-Error-Code": code}, 404)
        return found

    def _json(self, value: object) -> None:
        self._send(json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, content: bytes, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve() -> Iterator[Server]:
    """Starts a hub without models."""
    server = Server()
    with running(server):
        yield server
