"""Runs the programs of `--format=stablehlo` with nothing but JAX and safetensors.

    python jax_alone.py FOLDER INPUT.json OUTPUT.json

makes a process in which `transformer_jax` cannot be imported.
"""

import json
import sys
from pathlib import Path

import numpy as np

BOS, EOS = 1, 2


class Programs:
    """The programs of a folder. Sentences are lists of ids without EOS."""

    def __init__(self, folder):
        from jax import export
        from safetensors.numpy import load_file

        self.params = load_file(str(folder / "model.safetensors"))
        self.programs = {
            path.stem: export.deserialize(path.read_bytes()) for path in folder.glob("*.stablehlo")
        }
        self.sizes = self.programs["encode"].in_avals[-2].shape

    def log_probs(self, sources, targets):
        """log p of each target's tokens and of EOS."""
        arrays = self.padded(sources)
        targets = [[*ids, EOS] for ids in targets]
        batch = len(arrays[0])
        sentence, state = self.programs["encode"].call(self.params, *arrays)
        tokens, rows = np.full(batch, BOS, np.int32), [[] for _ in targets]
        for position in range(max(map(len, targets))):
            logits, state = self.programs["decode_step"].call(
                self.params, tokens, np.int32(position), state, sentence
            )
            logits = np.asarray(logits, np.float64)
            high = logits.max(axis=-1, keepdims=True)
            logits -= high + np.log(np.exp(logits - high).sum(axis=-1, keepdims=True))
            tokens = np.zeros(batch, np.int32)
            for row, target in enumerate(targets):
                if position < len(target):
                    tokens[row] = target[position]
                    rows[row].append(float(logits[row, target[position]]))
        return rows

    def greedy(self, sources):
        """Translations."""
        return self.search("greedy", sources)

    def search(self, name, sources):
        """The best translation of each sentence by one of the searches."""
        tokens, lengths, _, _ = self.programs[name].call(self.params, *self.padded(sources))
        best = zip(np.asarray(tokens)[:, 0], np.asarray(lengths)[:, 0], strict=True)
        return [row[: length - 1].tolist() for row, length in best][: len(sources)]

    def padded(self, sentences):
        """Ids [b, s] and lengths [b], of the sizes that the programs take."""
        sentences = [[*ids, EOS] for ids in sentences]
        least = (len(sentences), max(map(len, sentences)))
        batch, length = (
            size if isinstance(size, int) else need
            for size, need in zip(self.sizes, least, strict=True)
        )
        ids, lengths = np.zeros((batch, length), np.int32), np.zeros(batch, np.int32)
        for row, sentence in enumerate(sentences):
            ids[row, : len(sentence)], lengths[row] = sentence, len(sentence)
        return ids, lengths


class Block:
    """Lets nothing of this repository be imported."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("transformer_jax", "tests", "flax"):
            raise ImportError(f"{name} is not here")


if __name__ == "__main__":
    sys.meta_path.insert(0, Block)
    programs = Programs(Path(sys.argv[1]))
    given = json.loads(Path(sys.argv[2]).read_text())
    found = {
        "log_probs": programs.log_probs(given["sources"], given["targets"]),
        "greedy": programs.greedy(given["sources"]),
        "beam": programs.search("beam", given["sources"]),
    }
    assert not any(name.partition(".")[0] == "transformer_jax" for name in sys.modules)
    Path(sys.argv[3]).write_text(json.dumps(found))
