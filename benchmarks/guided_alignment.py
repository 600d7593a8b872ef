"""What a guided head gains: the alignment error and BLEU of the quickstart without and with it.

    pip install eflomal
    python benchmarks/guided_alignment.py --workdir=runs/guided

Trains the quickstart on its text as files, three times: without guidance, guided by the alignments
of that first model, and by those of eflomal (Östling and Tiedemann 2016), if it is installed. What
is there is not made again. See `alignment_error.py` for the error.
"""

import argparse
import contextlib
import json
import shutil
import subprocess
from pathlib import Path

from alignment_error import of_run

from transformer_jax.commands.main import main as command
from transformer_jax.data.sources.base import SPLITS
from transformer_jax.data.sources.grammar.sentences import split_pairs

WEIGHT, HEAD = 0.1, "full(alignment_head=0)"


def write_text(folder):
    """The embedded corpus as files; returns the flags that name them."""
    names = {}
    for split in SPLITS:
        for place, (side, language) in enumerate((("source", "en"), ("target", "de"))):
            path = names[f"{split}_{side}"] = folder / f"{split}.{language}"
            path.write_text("".join(pair[place] + "\n" for pair in split_pairs(split)))
    return ["--config.data.source=files(" + ",".join(f"{k}={v}" for k, v in names.items()) + ")"]


def trained(folder, text, alignment=None):
    """A run of the quickstart, guided by a file of alignments if there is one."""
    flags = ["--config=quickstart", f"--workdir={folder}", "--no_progress", *text]
    if alignment:
        flags += [f"--config.data.source.train_alignment={alignment}"]
        flags += [f"--config.train.alignment_weight={WEIGHT}", f"--config.model.cross={HEAD}"]
    assert command(["train", *flags]) == 0
    assert command(["eval", f"--workdir={folder}"]) == 0
    _, error = of_run(folder)
    scores = json.loads((folder / "scores.json").read_text())["test.best"]["scores"]
    print(json.dumps({"run": folder.name, "error": error, "bleu": scores["bleu"]["score"]}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", default="runs/guided", type=Path)
    folder = parser.parse_args().workdir.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    text = write_text(folder)
    trained(folder / "unguided", text)
    sides = [f"--source={folder}/train.en", f"--target={folder}/train.de"]
    own = folder / "own.align"
    if not own.exists():
        score = ["transformer-jax", "score", f"--workdir={folder}/unguided", *sides, "--alignments"]
        with open(own, "w") as file:
            subprocess.run(score, stdout=file, check=True)
    trained(folder / "by_itself", text, own)
    if program := shutil.which("eflomal-align"):
        aligned = folder / "eflomal.align"
        if not aligned.exists():
            files = ["-s", folder / "train.en", "-t", folder / "train.de", "-f", aligned]
            subprocess.run([program, *files], check=True)
        trained(folder / "by_eflomal", text, aligned)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
