"""A page that translates in the browser, offline once it is loaded: static files for any server.

    index.html, page.js, page.css, icon.svg, worker.js    two panes; nothing is sent anywhere
    settings.json                                         languages, the engine's settings
    model/                                                what the format `bergamot` writes
    engine/                                               Bergamot's engine, in WebAssembly

The engine is Mozilla's and Bergamot's work under another licence, the MPL 2.0, so it is not part of
this package: it is taken from npm when a page is made, or from a folder.
"""

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import yaml
from etils import epath

from transformer_jax.config import Config
from transformer_jax.errors import UserError
from transformer_jax.formats.exporter import TrainedModel
from transformer_jax.formats.marian.bergamot import CONFIG, Bergamot
from transformer_jax.paths import as_path

_PACKAGE = "@browsermt/bergamot-translator@0.4.9"
#: The engine's files, and the SHA-256 of those in the package. This worker was written for them.
_ENGINE = {
    "bergamot-translator-worker.js": (
        "748b2418418a2ffc6e70721aeb10098d8e6fb589ea156b91f4ae8bc3490d8f7a"
    ),
    "bergamot-translator-worker.wasm": (
        "95a2b58dd6773bf1b3f345d71f9149928b9f75f4ec9c9064c0b3e42c298671b2"
    ),
}
#: Settings that the engine in a browser does not take: files are given to it as bytes.
_OF_FILES = ("relative-paths", "models", "vocabs", "shortlist")


@dataclass(frozen=True)
class Web(Bergamot):
    """A folder of static files; `python -m http.server` is enough to try it."""

    engine: str | None = None
    #: a folder with the two files of Bergamot's engine; None = those in its npm package

    def check(self, config: Config) -> None:
        super().check(config)
        if self.engine is None and shutil.which("npm") is None:
            raise UserError(
                "format=web takes Bergamot's engine from npm, which is not installed: install it "
                "(Debian, Ubuntu: npm), or give engine=FOLDER"
            )
        for name in _ENGINE:
            if self.engine is not None and not (as_path(self.engine) / name).is_file():
                raise UserError(f"engine={self.engine}: has no {name}")

    def write(self, model: TrainedModel, folder: epath.Path) -> None:
        (folder / "engine").mkdir()
        for name, content in (_from_npm() if self.engine is None else _in(self.engine)).items():
            (folder / "engine" / name).write_bytes(content)
        (folder / "model").mkdir()
        super().write(model, folder / "model")
        settings = yaml.safe_load((folder / "model" / CONFIG).read_text())
        given = {name: value for name, value in settings.items() if name not in _OF_FILES}
        given |= {"cpu-threads": 0, "quiet": True, "quiet-translation": True}
        data = model.config.data
        about = {
            "languages": [data.source_language or "", data.target_language or ""],
            "model": settings["models"][0],
            "vocabs": list(dict.fromkeys(settings["vocabs"])),
            "shortlist": settings.get("shortlist", [None])[0],
            "config": yaml.safe_dump(given),
        }
        (folder / "settings.json").write_text(json.dumps(about, indent=2) + "\n")
        own = files("transformer_jax.formats.marian") / "page"
        (folder / "engine" / "LICENSE.txt").write_bytes((own / "engine_license.txt").read_bytes())
        # The style of the server's page.
        shared = files("transformer_jax.commands.serve") / "static"
        page = [own / name for name in ("index.html", "page.js", "worker.js")]
        for file in (*page, shared / "page.css", shared / "icon.svg"):
            (folder / file.name).write_bytes(file.read_bytes())


def _in(folder: str) -> dict[str, bytes]:
    """The engine's files in a folder."""
    return {name: (as_path(folder) / name).read_bytes() for name in _ENGINE}


def _from_npm() -> dict[str, bytes]:
    """The engine's files in its npm package, whose content is checked."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", _PACKAGE, "--silent", "--pack-destination", folder]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        packed = sorted(Path(folder).glob("*.tgz"))
        if done.returncode or len(packed) != 1:
            lines = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
            raise UserError(
                f"format=web: npm could not get {_PACKAGE} ({lines[-1]}); give engine=FOLDER"
            )
        found = {}
        with tarfile.open(fileobj=io.BytesIO(packed[0].read_bytes())) as archive:
            for name, digest in _ENGINE.items():
                member = archive.extractfile(f"package/worker/{name}")
                found[name] = member.read() if member else b""
                if hashlib.sha256(found[name]).hexdigest() != digest:
                    raise UserError(f"format=web: {name} in {_PACKAGE} is not the expected one")
    return found
