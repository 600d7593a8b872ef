"""The tutorials' commands work one after the other, in one folder, with short trainings."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.formats.published import nllb, write_opus_mt
from tests.oracles import apart, need
from tests.pages import ROOT, blocks
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.models.paths import by_path
from transformer_jax.runs.folder import open_run
from transformer_jax.weights.settings import read_json

MAIN = "from transformer_jax.commands.main import main; raise SystemExit(main())"
#: Stands for `transformer-jax`: what the page says, but few steps. The last flag of a name decides.
SHORT = f"""#!/bin/sh
case "$1" in
train) set -- "$@" --no_progress --config.train.minutes=none --config.train.steps=4 \\
    --config.train.evaluate_every=4 --config.train.evaluate_sentences=8 \\
    --config.batch.num_buckets=2 ;;
compare) set -- "$@" --seeds=1 --config.train.steps=2 --config.train.evaluate_every=2 \\
    --config.model.d_model=16 --config.decode.method=greedy --config.decode.max_length_factor=0.1 \\
    --config.decode.max_length_offset=2 ;;
eval) set -- "$@" --method=greedy --max_length_factor=0.1 --max_length_offset=2 ;;
esac
exec {sys.executable} -c '{MAIN}' "$@"
"""


def follow(page: str, folder: Path, *of_training: str) -> str:
    """What the page's `sh` blocks print in the folder. Fails at the first command that fails.

    Args:
        page: its path.
        folder: an empty one, but for the files that the page has you get.
        of_training: further flags of `train`.
    """
    command = folder / "bin" / "transformer-jax"
    command.parent.mkdir()
    short = SHORT.replace("--no_progress", " ".join(["--no_progress", *of_training]))
    command.write_text(short, encoding="utf-8")
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e", "-c", "\n".join(blocks(page, "sh"))],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def captions(shared_data: Path, tmp_path: Path) -> Path:
    """A folder with the text of the first tutorial."""
    (tmp_path / "multi30k").mkdir()
    for path in (shared_data / "multi30k").glob("*.gz"):
        (tmp_path / "multi30k" / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    return tmp_path


def test_own_text_to_a_server(captions: Path) -> None:
    need("ctranslate2")
    printed = follow("docs/tutorial_server.md", captions)
    assert printed.count(": OK\n") == 6, "the page's checksums"
    assert "1000 sentences scored" in printed and "BLEU" in printed
    assert len(printed[printed.index("translations:") :].splitlines()) == 4
    assert (captions / "exported" / "model.bin").is_file()


def test_fine_tune_a_published_model(captions: Path) -> None:
    need("ctranslate2")
    write_opus_mt(captions / "opus-mt-en-de")  # random weights
    printed = follow("docs/tutorial_finetune.md", captions)
    assert printed.count("1000 sentences scored") == 2 and ", p = " in printed
    assert (captions / "tuned-ct2" / "model.bin").is_file()
    layout = read_json(captions / "opus-mt-en-de" / "config.json")
    assert read_json(captions / "tuned-hf" / "config.json")["model_type"] == layout["model_type"]


def test_a_new_language(tmp_path: Path) -> None:
    need("torch")
    need("transformers")
    known = ("deu_Latn", "ces_Latn", "eng_Latn")
    (tmp_path / "nllb-200-distilled-600M").mkdir()
    nllb(tmp_path / "nllb-200-distilled-600M", known)  # random weights
    (tmp_path / "text").mkdir()
    sides = list(zip(*generate(7, 240), strict=True))
    for name, *languages in (
        ("new", "deu_Latn", "hsb_Latn"),
        ("old", "deu_Latn", "ces_Latn"),
        ("test", "hsb_Latn", "ces_Latn"),
    ):
        for language, lines in zip(languages, reversed(sides), strict=True):
            text = "".join(f"{line}\n" for line in lines)
            (tmp_path / "text" / f"{name}.{language}").write_text(text, encoding="utf-8")
    (tmp_path / "text" / "mono.hsb_Latn").write_text("Ein Hund.\n", encoding="utf-8")
    held_out = "--config.data.validation_from_train=20"
    printed = follow("docs/new_language.md", tmp_path, held_out, "--config.data.cache_dir=cache")
    table = printed[printed.index("direction  ") :].splitlines()[:5]
    assert table[0].split() == ["direction", "before", "after", "change", "p-value"]
    assert [line.split()[0] for line in table[1:]] == [
        "deu_Latn-hsb_Latn",
        "hsb_Latn-deu_Latn",
        "deu_Latn-ces_Latn",
        "ces_Latn-deu_Latn",
    ]
    for line in table[1:]:
        before, after, change = map(float, line.split()[1:4])
        assert after - before == pytest.approx(change, abs=0.011)
    assert len((tmp_path / "text" / "made.deu_Latn").read_text().splitlines()) == 1
    tokenizer = read_json(tmp_path / "nllb-sorbian" / "tokenizer_config.json")
    assert tokenizer["additional_special_tokens"] == [*known, "hsb_Latn"]
    before, after = (
        by_path(open_run(tmp_path / "runs" / name).params("latest")) for name in ("nllb", "sorbian")
    )
    changed = {path for path, x in after.items() if (np.asarray(x) != before[path]).any()}
    assert "target_embedding/table" in changed and any(path.endswith("kernel") for path in changed)


def test_compare_architectures(tmp_path: Path) -> None:
    apart("it trains six models")
    follow("docs/tutorial_compare.md", tmp_path)
    output = tmp_path / "runs" / "mixers"
    table = (output / "table.md").read_text(encoding="utf-8").splitlines()
    assert [line.split()[1] for line in table[2:4]] == ["full", "linear"]
    assert sum(line.endswith("| yes |") for line in table) == 2
    assert {"scores.png", "cost.png", "curves.png"} < {path.name for path in output.iterdir()}


@pytest.mark.parametrize("page", sorted(path.name for path in ROOT.glob("docs/tutorial_*.md")))
def test_each_tutorial_has_a_picture_and_at_most_120_lines(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120 and "](figures/" in text
