"""Models by name, from and to a local stand-in of Hugging Face's hub."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import hub_server
from tests.formats import exporter_suite as suite
from tests.oracles import need
from transformer_jax.formats import hub
from transformer_jax.formats.export import export
from transformer_jax.formats.run_folder import write_run
from transformer_jax.runs.folder import open_run

need("huggingface_hub")

NAME = "somebody/model"
SETTINGS = {
    "config.json": b"1",
    "source.spm": b"2",
    "vocab.json": b"3",
    "tokenizer.json": b"4",
    "model.safetensors.index.json": b"5",
}
#: What a model has beside it, and is not ours to read.
OTHERS = {
    "tf_model.h5": b"x",
    "rust_model.ot": b"x",
    "modeling_evil.py": b"print('executed')",
    "README.md": b"x",
    "sub/pytorch_model.pkl": b"x",
}


@pytest.fixture
def server() -> Iterator[hub_server.Server]:
    with hub_server.serve() as server:
        yield server


@pytest.fixture
def ask(server: hub_server.Server, tmp_path: Path):
    """Runs Python code, or a command, that asks the server: (status, stdout, stderr)."""

    def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
            env=os.environ
            | {"HF_ENDPOINT": server.address, "HF_HOME": str(tmp_path / "home")}
            | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_TOKEN": ""}
            | environment,
        )
        return done.returncode, done.stdout, done.stderr

    return run


def fetch(ask, revision: str | None = None, name: str = NAME, **environment: str) -> str:
    """The folder that `fetch` gives, or the message of its error."""
    code = (
        "from transformer_jax.errors import UserError\n"
        "from transformer_jax.formats.hub import fetch\n"
        f"try: print(fetch({name!r}, {revision!r}))\n"
        "except UserError as error: print(error)\n"
    )
    status, out, err = ask("-c", code, **environment)
    assert status == 0, err
    (line,) = out.splitlines()
    return line


@pytest.mark.parametrize(
    ("weights", "fetched"),
    [
        (["model.safetensors", "pytorch_model.bin", "flax_model.msgpack"], ["model.safetensors"]),
        (["pytorch_model.bin", "flax_model.msgpack"], ["pytorch_model.bin"]),
        (["flax_model.msgpack"], ["flax_model.msgpack"]),
        (["model.npz"], ["model.npz"]),
        (
            ["model-1-of-2.safetensors", "model-2-of-2.safetensors", "pytorch_model.bin"],
            ["model-1-of-2.safetensors", "model-2-of-2.safetensors"],
        ),
    ],
)
def test_only_the_best_weights_and_known_files_are_fetched(server, ask, weights, fetched) -> None:
    server.models[NAME] = {"main": SETTINGS | OTHERS | {name: name.encode() for name in weights}}
    folder = Path(fetch(ask))
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert found == SETTINGS | {name: name.encode() for name in fetched}
    assert sorted(server.sent) == sorted(found)


def test_a_revision_and_the_cache(server, ask) -> None:
    new, old = SETTINGS | {"model.safetensors": b"new"}, SETTINGS | {"model.safetensors": b"old"}
    server.models[NAME] = {"main": new, "refs/pr/4": old}
    folder = Path(fetch(ask, "refs/pr/4"))
    assert (folder / "model.safetensors").read_bytes() == b"old"
    assert (Path(fetch(ask)) / "model.safetensors").read_bytes() == b"new"
    sent = len(server.sent)
    assert fetch(ask, folder.name) == str(folder)
    assert fetch(ask, "refs/pr/4") == str(folder)
    assert fetch(ask, "refs/pr/4", HF_HUB_OFFLINE="1") == str(folder)
    assert len(server.sent) == sent


def test_what_is_not_there_is_one_line(server, ask) -> None:
    server.models[NAME] = {"main": SETTINGS | OTHERS}
    server.models["somebody/other"] = {"main": SETTINGS}
    assert fetch(ask).startswith(f"{NAME}: no weights there that can be read; expected one of ")
    assert fetch(ask, "dev") == f"{NAME}: the hub has no revision dev of it"
    assert fetch(ask, name="no/body").startswith(
        "no/body: no such folder, and no such model on the hub; or it is private"
    )
    assert server.sent.count("tf_model.h5") == 0
    message = fetch(ask, name="never/fetched", HF_HUB_OFFLINE="1")
    assert message.startswith("never/fetched: could not be fetched from the hub (")


@pytest.mark.parametrize(
    ("text", "name"), [("a/b", True), ("a-b/c.d_e", True), ("./b", False), ("a/b/c", False)]
)
def test_names_and_paths(text: str, name: bool) -> None:
    assert hub.is_name(text) == name


def test_a_model_is_pushed_and_imported_again_by_name(server, ask, tmp_path: Path) -> None:
    model = suite.random_model(suite.small(), suite.tokenizers())
    write_run(tmp_path / "run", model)
    program = ["-c", "import sys; from transformer_jax.commands.main import main; sys.exit(main())"]
    out = ["--format=safetensors", "--output=out", "--licence=mit", f"--push={NAME}"]
    export_run = [*program, "export", "--workdir=run", *out]
    status, _, error = ask(*export_run[:-1], "--push=model")
    assert (status, error.splitlines()[-1]) == (
        2,
        "error: push=model: expected owner/name, as on Hugging Face's hub",
    )
    assert not (tmp_path / "out").exists()
    status, _, error = ask(*export_run)
    assert status == 2
    assert error.splitlines()[-1].startswith(f"error: push={NAME}: could not be uploaded (")
    (tmp_path / "out").rename(tmp_path / "first")
    status, printed, error = ask(*export_run, HF_TOKEN="hf_x")
    assert status == 0, error
    assert printed.splitlines()[0] == "out"
    assert printed.splitlines()[1].startswith(server.address)
    assert NAME in server.private
    status, printed, error = ask(*program, "import", f"--from={NAME}", "--workdir=again")
    assert (status, printed) == (0, "again\n"), error
    export(open_run(tmp_path / "again"), "safetensors", tmp_path / "second", licence="mit")
    for path in (tmp_path / "first").rglob("*"):
        if path.is_file():
            again = tmp_path / "second" / path.relative_to(tmp_path / "first")
            assert path.read_bytes() == again.read_bytes()
    status, _, error = ask(*program, "import", "--from=first", "--workdir=x", "--revision=main")
    assert status == 2
    assert error.splitlines()[-1].startswith("error: revision=main is of a name on the hub")
