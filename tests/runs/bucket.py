"""A bucket in memory: `gs://...` for etils' paths, and Google's protocol for TensorStore.

It is as strict as a real one: an object is written whole or not at all, nothing can be renamed or
appended to, and folders are only key prefixes. TensorStore's driver is C++ and talks HTTP, so the
second half is a small server.
"""

import fnmatch
import importlib.machinery
import io
import json
import os
import re
import sys
import threading
import types
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from etils.epath import backend, gpath, stat_utils

from transformer_jax import paths


class Store:
    """Objects by `bucket/name`; `after_write` is called with each write or removal."""

    def __init__(self):
        self.objects = {}
        self.after_write = lambda: None
        self._generations = {}
        self._count = 0
        self._lock = threading.RLock()

    def put(self, name, content, generation=None):
        """False where `generation` is given and not the present one."""
        with self._lock:
            if generation is not None and generation != self.generation(name):
                return False
            self._count += 1
            self.objects[name], self._generations[name] = bytes(content), self._count
            self.after_write()
            return True

    def remove(self, name):
        with self._lock:
            if name not in self.objects:
                raise FileNotFoundError(name)
            del self.objects[name]
            self.after_write()

    def generation(self, name):
        return self._generations.get(name, 0) if name in self.objects else 0

    def names(self, prefix=""):
        with self._lock:
            return sorted(name for name in self.objects if name.startswith(prefix))


class Objects(backend.Backend):
    """What etils' paths do, on a store."""

    def __init__(self, store):
        self.store = store

    def open(self, path, mode):
        name = _name(path)
        if mode in ("w", "wb"):
            return _Written(self.store, name, text="b" not in mode)
        if mode not in ("r", "rb"):
            raise NotImplementedError(f"an object cannot be opened with mode={mode!r}")
        if name not in self.store.objects:
            raise FileNotFoundError(path)
        content = self.store.objects[name]
        return io.BytesIO(content) if "b" in mode else io.StringIO(content.decode())

    def exists(self, path):
        return _name(path) in self.store.objects or self.isdir(path)

    def isdir(self, path):
        return bool(self.store.names(_name(path) + "/"))

    def listdir(self, path):
        folder = _name(path) + "/"
        names = {name[len(folder) :].split("/")[0] for name in self.store.names(folder)}
        if not names:
            raise FileNotFoundError(path)
        return sorted(names)

    def glob(self, path):
        folder, pattern = path.rsplit("/", 1)
        names = self.listdir(folder) if self.isdir(folder) else []
        return [f"{folder}/{name}" for name in fnmatch.filter(names, pattern)]

    def walk(self, top, **options):
        raise NotImplementedError

    def makedirs(self, path, *, exist_ok=False, mode=None):
        if not exist_ok and self.exists(path):
            raise FileExistsError(path)

    mkdir = makedirs

    def rmtree(self, path):
        names = self.store.names(_name(path) + "/")
        if not names:
            raise FileNotFoundError(path)
        for name in names:
            self.store.remove(name)

    def remove(self, path):
        self.store.remove(_name(path))

    def rename(self, path, dst):
        raise NotImplementedError("an object cannot be renamed")

    replace = rename

    def copy(self, path, dst, overwrite):
        self.store.put(_name(dst), self.store.objects[_name(path)])

    def stat(self, path):
        length = len(self.store.objects.get(_name(path), b""))
        return stat_utils.StatResult(self.isdir(path), length, 0, None, None, None)


class _Written(io.BytesIO):
    """There when it is closed, whole."""

    def __init__(self, store, name, text):
        super().__init__()
        self._store, self._name, self._text = store, name, text

    def write(self, content):
        return super().write(content.encode() if self._text else content)

    def __exit__(self, kind, *rest):
        if kind is None:
            self._store.put(self._name, self.getvalue())
        return super().__exit__(kind, *rest)


def _name(path):
    return os.fspath(path).removeprefix("gs://").rstrip("/")


class _Protocol(BaseHTTPRequestHandler):
    """The part of Cloud Storage's JSON API that TensorStore speaks."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer in one write: the second would wait for a delayed acknowledgement
    store: Store

    def do_GET(self):
        name, query = self._asked()
        if name is None:
            bucket = urllib.parse.urlsplit(self.path).path.split("/")[4]
            names = [n.partition("/")[2] for n in self.store.names(f"{bucket}/")]
            first, end = query.get("startOffset", ""), query.get("endOffset", "\U0010ffff")
            items = [self._metadata(bucket, n) for n in names if first <= n < end]
            return self._answer(200, json.dumps({"items": items}).encode())
        content, generation = self.store.objects.get(name), self.store.generation(name)
        if content is None:
            return self._answer(404)
        if query.get("ifGenerationNotMatch") == str(generation):
            return self._answer(304)
        headers = {"x-goog-generation": str(generation)}
        if part := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, end = int(part[1]), int(part[2] or len(content) - 1) + 1
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(content)}"
            return self._answer(206, content[first:end], headers)
        return self._answer(200, content, headers)

    def do_POST(self):
        content = self.rfile.read(int(self.headers["content-length"]))
        _, query = self._asked()
        bucket, name = urllib.parse.urlsplit(self.path).path.split("/")[5], query["name"]
        wanted = query.get("ifGenerationMatch")
        if not self.store.put(f"{bucket}/{name}", content, None if wanted is None else int(wanted)):
            return self._answer(412)
        return self._answer(200, json.dumps(self._metadata(bucket, name)).encode())

    def do_DELETE(self):
        name, _ = self._asked()
        if name not in self.store.objects:
            return self._answer(404)
        self.store.remove(name)
        return self._answer(204)

    def _asked(self):
        """(`bucket/name`, or None where the bucket is asked; the query)."""
        url = urllib.parse.urlsplit(self.path)
        parts = url.path.split("/")  # /storage/v1/b/BUCKET/o/NAME
        name = f"{parts[4]}/{urllib.parse.unquote(parts[6])}" if len(parts) > 6 else None
        return name, dict(urllib.parse.parse_qsl(url.query))

    def _metadata(self, bucket, name):
        full = f"{bucket}/{name}"
        return {
            "kind": "storage#object",
            "name": name,
            "bucket": bucket,
            "generation": str(self.store.generation(full)),
            "metageneration": "1",
            "size": str(len(self.store.objects.get(full, b""))),
        }

    def _answer(self, status, content=b"", headers=None):
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        pass


def start_server():
    """A server for TensorStore; its `RequestHandlerClass.store` can be changed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Protocol", (_Protocol,), {}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["TENSORSTORE_GCS_HTTP_URL"] = f"http://127.0.0.1:{server.server_port}"
    os.environ["GOOGLE_AUTH_TOKEN_FOR_TESTING"] = "a token"
    return server


def mount(store, monkeypatch):
    """`gs://` means this store, for etils and for what Orbax asks Google's own package."""
    objects = Objects(store)
    plain = gpath._GPath._backend.fget
    monkeypatch.setattr(
        gpath._GPath, "_backend", property(lambda p: objects if p._uri_scheme else plain(p))
    )
    storage = types.ModuleType("google.cloud.storage")
    storage.__spec__ = importlib.machinery.ModuleSpec("google.cloud.storage", None)
    bucket = types.SimpleNamespace(hierarchical_namespace_enabled=False)
    storage.Client = lambda: types.SimpleNamespace(get_bucket=lambda name: bucket)
    cloud = sys.modules.get("google.cloud") or types.ModuleType("google.cloud")
    monkeypatch.setitem(sys.modules, "google.cloud", cloud)
    monkeypatch.setitem(sys.modules, "google.cloud.storage", storage)
    monkeypatch.setattr(cloud, "storage", storage, raising=False)
    paths._check_bucket.cache_clear()
