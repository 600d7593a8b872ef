"""COMET-22 and CometKiwi against the published formulas on Transformers and PyTorch."""

import argparse
import os
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.metrics import folders
from tests.oracles import need
from transformer_jax.errors import UserError
from transformer_jax.metrics.comet import Comet, CometKiwi
from transformer_jax.metrics.registry import METRICS

torch = need("torch")
transformers = need("transformers")

TRIPLES = [
    *folders.TRIPLES,
    ("the dog", " ".join(["the old man reads"] * 150), "der Hund"),  # is cut
    (" ".join(["an old book"] * 200), " ".join(["the man reads"] * 80), "x"),  # cut together
]
SOURCES, TRANSLATIONS, REFERENCES = map(list, zip(*TRIPLES, strict=True))
WIDTH = 128
HPARAMS = {
    "comet": {"class_identifier": "regression_metric", "layer": "mix", "pool": "avg"},
    "cometkiwi": {
        "class_identifier": "unified_metric",
        "sent_layer": "mix",
        "input_segments": ["mt", "src"],
    },
}


class Unsafe:
    """What a file may hold that calls a function when it is read: it makes a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def published(path: Path, name: str, **changes):
    """Writes a folder; gives (encoder, weights of the mix, gamma, regressor)."""
    generator = torch.Generator().manual_seed(3)

    def noise(*shape):
        return torch.randn(shape, generator=generator)

    (path / "sentencepiece.bpe.model").write_bytes(folders.sentencepiece_model())
    config = transformers.XLMRobertaConfig(
        vocab_size=100, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=96, max_position_embeddings=514, type_vocab_size=1,
        layer_norm_eps=1e-5, pad_token_id=1,
    )  # fmt: skip
    encoder = transformers.XLMRobertaModel(config, add_pooling_layer=False).eval()
    with torch.no_grad():
        for x in encoder.parameters():
            x.copy_(1 + 0.3 * noise(*x.shape) if x.ndim == 1 else 0.1 * noise(*x.shape))
    size = WIDTH * (6 if name == "comet" else 1)
    regressor = torch.nn.Sequential(
        torch.nn.Linear(size, 24), torch.nn.Tanh(), torch.nn.Dropout(0.1),
        torch.nn.Linear(24, 8), torch.nn.Tanh(), torch.nn.Dropout(0.1),
        torch.nn.Linear(8, 1),
    ).eval()  # fmt: skip
    with torch.no_grad():
        for x in regressor.parameters():
            x.copy_(noise(*x.shape) / x.shape[-1] ** 0.5)
    scalars, gamma = torch.tensor([0.4, 0.9, -0.8]), torch.tensor([1.3])
    state = {f"encoder.model.{key}": x for key, x in encoder.state_dict().items()}
    state |= {f"estimator.ff.{key}": x for key, x in regressor.state_dict().items()}
    state |= {f"layerwise_attention.scalar_parameters.{i}": x[None] for i, x in enumerate(scalars)}
    state |= {"layerwise_attention.gamma": gamma, "layerwise_attention.dropout_mask": noise(3)}
    (path / "checkpoints").mkdir()
    checkpoint = {
        "epoch": 3,
        "pytorch-lightning_version": "1.7.0",
        "hyper_parameters": argparse.Namespace(layer="mix"),
        "callbacks": {"stop": [Path("x"), Unsafe(path / "made")]},
        "state_dict": state,
    }
    torch.save(checkpoint, path / "checkpoints" / "model.ckpt")
    usual = {
        "encoder_model": "XLM-RoBERTa",
        "activations": "Tanh",
        "final_activation": None,
        "layer_norm": False,
        "layer_transformation": "sparsemax",
        "hidden_sizes": [24, 8],
    }
    (path / "hparams.yaml").write_text(yaml.safe_dump(usual | HPARAMS[name] | changes))
    return encoder, scalars, gamma, regressor


@pytest.mark.parametrize("name", HPARAMS)
@pytest.mark.parametrize("transformation", ["sparsemax", "softmax"])
def test_scores_are_those_of_the_published_formula(name, transformation, tmp_path):
    encoder, scalars, gamma, regressor = published(
        tmp_path, name, layer_transformation=transformation
    )
    tokenizer = transformers.XLMRobertaTokenizer.from_pretrained(tmp_path)
    shares = torch.softmax(scalars, 0)
    if transformation == "sparsemax":
        shares = nearest_distribution(scalars)
        assert (shares == 0).any()

    def ids(text):
        return tokenizer(text, truncation=True, max_length=510)["input_ids"]

    def mix(numbers):
        with torch.no_grad():
            layers = encoder(torch.tensor([numbers]), output_hidden_states=True).hidden_states
        assert len(layers) == 3
        return gamma * sum(share * x[0] for share, x in zip(shares, layers, strict=True))

    expected = []
    for source, translation, reference in TRIPLES:
        if name == "comet":
            s, t, r = (mix(ids(text)).mean(0) for text in (source, translation, reference))
            features = torch.cat([t, r, t * r, (t - r).abs(), t * s, (t - s).abs()])
        else:
            both = [*ids(translation), 2, *ids(source)[1:-1], 2]
            features = mix(both[:512])[0]
        expected.append(float(regressor(features)[0].detach()))
    found = METRICS[name](str(tmp_path)).open()(SOURCES, TRANSLATIONS, REFERENCES)
    assert not (tmp_path / "made").exists(), "what the checkpoint names was called"
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert len({round(score, 3) for score in expected}) == len(expected), expected


def nearest_distribution(x):
    """Sparsemax by bisection: max(x - tau, 0) whose sum is 1."""
    low, high = x.min() - 1, x.max()
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (x - middle).clamp(min=0).sum() > 1 else (low, middle)
    return (x - low).clamp(min=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"class_identifier": "unified_metric"}, "a unified_metric, but COMET-22 is a regression"),
        ({"encoder_model": "XLM-RoBERTa-XL"}, "encoder_model='XLM-RoBERTa-XL' cannot be expressed"),
        ({"layer_norm": True}, "layer_norm=True cannot be expressed"),
        ({"pool": "max"}, "pool='max' cannot be expressed; only 'avg'"),
        ({"hidden_sizes": [24]}, "nothing in this architecture reads the tensors estimator.ff.6"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(changes, words, tmp_path):
    published(tmp_path, "comet", **changes)
    with pytest.raises(UserError, match=words) as error:
        Comet(str(tmp_path)).open()
    assert "\n" not in str(error.value)


def test_files_that_are_missing_are_named(tmp_path):
    def missing(words):
        with pytest.raises(UserError, match=words):
            CometKiwi(str(tmp_path)).open()

    missing(r"hparams\.yaml: cannot be read .*; expected the downloaded files of a COMET model")
    published(tmp_path, "cometkiwi")
    (tmp_path / "sentencepiece.bpe.model").rename(tmp_path / "other")
    missing("sentencepiece.bpe.model is missing, which COMET has from XLM-R")
    (tmp_path / "other").rename(tmp_path / "sentencepiece.bpe.model")
    (tmp_path / "checkpoints" / "model.ckpt").unlink()
    missing("model.ckpt: no such file")
