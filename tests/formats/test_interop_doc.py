"""docs/interop.md works as written: the export commands, and the programs that read the folders."""

import sys
from pathlib import Path

import pytest

from tests.formats import exporter_suite as suite
from tests.oracles import need
from tests.pages import blocks, commands
from transformer_jax.commands.main import main, parse
from transformer_jax.config import override
from transformer_jax.formats.run_folder import write_run
from transformer_jax.recipes import load_recipe

PAGE = "docs/interop.md"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with the runs that the page names."""
    place = tmp_path_factory.mktemp("place")
    runs = {"mine": {}}
    for args in map(parse, (words for words in commands(PAGE) if words[0] == "train")):
        recipe = load_recipe(args.config)
        chosen = override(recipe, args.flags).model
        # What the flags of the page choose, in a small model.
        runs[Path(args.workdir).name] = {
            key: vars(value) if key in ("encoder", "decoder") else value
            for key, value in vars(chosen).items()
            if value != getattr(recipe.model, key)
        }
    assert set(runs) == {"mine", "quickstart", "marian", "ssru"} and runs["marian"]
    for name, options in runs.items():
        model = suite.random_model(suite.small(**options), suite.tokenizers())
        write_run(place / "runs" / name, model)
    return place


@pytest.mark.parametrize(
    ("package", "command", "program"),
    [
        ("ctranslate2", "--output=quickstart-ct2", "ctranslate2.Translator"),
        ("onnxruntime", "--output=quickstart-onnx", "onnxruntime.InferenceSession"),
        ("transformers", "--workdir=runs/marian", "MarianMTModel"),
    ],
)
def test_export_and_translate(package, command, program, place, monkeypatch, capsys):
    need(package)
    monkeypatch.chdir(place)
    (arguments,) = [c for c in commands(PAGE) if c[0] == "export" and command in c]
    assert main(arguments) == 0
    (code,) = [block for block in blocks(PAGE, "python") if program in block]
    capsys.readouterr()
    exec(compile(code, PAGE, "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2 and all(printed)


@pytest.mark.parametrize("format", ["onnx", "ctranslate2"])
def test_a_package_that_is_missing_is_named(format, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setitem(sys.modules, format, None)
    assert main(["export", "--workdir=runs/mine", f"--format={format}", "--output=x"]) == 2
    assert capsys.readouterr().err == (
        f"error: format={format} needs {format}: pip install 'transformer-jax[{format}]' (in a "
        f"clone ./run setup {format})\n"
    )


def test_export_for_bergamot_and_import(place, monkeypatch):
    monkeypatch.chdir(place)
    (arguments,) = [c for c in commands(PAGE) if c[0] == "export" and "--format=bergamot" in c]
    assert main(arguments) == 0
    assert main(["import", "--from=ssru", "--workdir=runs/again"]) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format=ctranslate2(quantization=int4)", "--output=x"], "quantization=int4"),
        (["--format=safetensors", "--output=runs/mine/config.json/x"], "output=runs/mine"),
        (["--format=safetensors", "--output=gs://bucket/x"], "gs://bucket/x"),
        (["--format=safetensors", "--output=x", "--checkpoint=7"], "checkpoint=7: not kept here"),
    ],
)
def test_mistakes_end_in_one_line(arguments, words, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert main(["export", "--workdir=runs/mine", *arguments]) == 2
    error = capsys.readouterr().err.splitlines()
    assert len(error) == 1 and error[0].startswith("error: ") and words in error[0]
    assert not (place / "x").exists()
    assert not list(place.rglob(".*"))
