"""Small folders of learned metrics, with random weights, as they are downloaded."""

import io
import json
from pathlib import Path

import numpy as np
import sentencepiece
from safetensors.numpy import save_file

from transformer_jax.models.api import abstract_params
from transformer_jax.models.paths import by_path, from_paths
from transformer_jax.weights.arrangement import Arrangement
from transformer_jax.weights.settings import Settings
from transformer_jax.weights.t5 import LAYOUT

TEXT = [
    "source: the dog sees a cat candidate: der Hund sieht eine Katze",
    "reference: ein Hund sieht die Katze, und ein alter Mann liest ein Buch",
    "an old man reads a long book. schöne Grüße aus Köln. Привет мир",
] * 8


TRIPLES = [
    ("the dog sees a cat", "der Hund sieht eine Katze", "ein Hund sieht die Katze"),
    ("an old man reads a long book", "ein Buch", "ein alter Mann liest ein langes Buch"),
    ("schöne Grüße", "Привет мир 犬", ""),
    ("", "a", "{source} 50%"),
]


def sentencepiece_model(**options: int) -> bytes:
    """A SentencePiece model of the text."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=model,
        vocab_size=90,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def metricx_folder(path: Path, *, pieces: int = 250112, seed: int = 0) -> Path:
    """A folder of MetricX's form: an mT5 of two layers that is 8 wide."""
    path.mkdir(parents=True, exist_ok=True)
    spm = sentencepiece_model(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (path / "spiece.model").write_bytes(spm)
    values = {
        "model_type": "mt5",
        "architectures": ["MT5ForRegression"],
        "vocab_size": pieces,
        "d_model": 8,
        "d_kv": 6,
        "d_ff": 16,
        "num_layers": 2,
        "num_decoder_layers": 1,
        "num_heads": 2,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }
    (path / "config.json").write_text(json.dumps(values))
    sizes = {"source_vocab_size": pieces, "target_vocab_size": pieces, "tie_embeddings": "inputs"}
    model = LAYOUT.model(Settings("config.json", values), start_id=0, unused_ids=(), **sizes)
    rng = np.random.default_rng(seed)

    def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
        noise = rng.normal(size=shape).astype(np.float32)
        return 1 + 0.2 * noise if name.endswith("scale") else 0.6 * noise

    flat = by_path(abstract_params(model))
    params = from_paths({name: drawn(name, leaf.shape) for name, leaf in flat.items()})
    params["projection"]["kernel"][:, 250089 % pieces] *= 6  # scores of all sizes
    same = Arrangement(np.arange(pieces))
    save_file(LAYOUT.table(model, same, same).to_tensors(params), path / "model.safetensors")
    return path
