"""MetricX against the published formula on Transformers, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.metrics import folders
from tests.oracles import need
from transformer_jax.errors import UserError
from transformer_jax.metrics.metricx import MetricX
from transformer_jax.metrics.registry import METRICS

TRIPLES = [
    *folders.TRIPLES,
    ("the dog", "the dog " * 30, "der Hund " * 20),
    ("the dog", " ".join(["the old man reads"] * 400), "der Hund"),  # is cut
]
SOURCES, TRANSLATIONS, REFERENCES = map(list, zip(*TRIPLES, strict=True))

#: The inputs by the published `predict.py`, as functions of one example.
FORMS = {
    "metricx": lambda s, h, r: "source: " + s + " candidate: " + h + " reference: " + r,
    "metricx_qe": lambda s, h, r: "source: " + s + " candidate: " + h,
    "metricx23": lambda s, h, r: "candidate: " + h + " reference: " + r,
    "metricx23_qe": lambda s, h, r: "candidate: " + h + " source: " + s,
}


@pytest.mark.parametrize("name", FORMS)
def test_scores_are_those_of_the_published_formula(name: str, folder: Path) -> None:
    torch, transformers = need("torch"), need("transformers")
    from safetensors.torch import load_file

    config = transformers.MT5Config.from_pretrained(folder)
    model = transformers.MT5ForConditionalGeneration(config).eval()
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    tokenizer = transformers.T5Tokenizer.from_pretrained(folder, extra_ids=0)
    longest = 1024 if "23" in name else 1536
    expected, raw = [], []
    for triple in TRIPLES:
        text = FORMS[name](*triple)
        ids = tokenizer(text, max_length=longest, truncation=True)["input_ids"]
        assert ids[-1] == 1
        with torch.no_grad():
            memory = model.encoder(torch.tensor([ids[:-1]]))[0]
            hidden = model.decoder(torch.tensor([[0]]), encoder_hidden_states=memory)[0]
            score = model.lm_head(hidden)[0, 0, 250089]
        raw.append(float(score))
        expected.append(float(torch.clamp(score, 0, 25)))
    found = METRICS[name](str(folder)).open()(SOURCES, TRANSLATIONS, REFERENCES)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert len({round(score, 3) for score in expected}) > 2, raw


def test_folders_of_another_kind_are_refused(folder: Path, tmp_path: Path) -> None:
    def wrong(path: Path, words: str) -> None:
        with pytest.raises(UserError, match=words) as error:
            MetricX(str(path)).open()
        assert "\n" not in str(error.value)

    wrong(tmp_path / "none", "no such folder; expected the downloaded files of a MetricX model")
    wrong(tmp_path, r"config\.json: cannot be read")
    (tmp_path / "config.json").write_text(json.dumps({"data": {}}))
    wrong(tmp_path, "a run, but MetricX is an mT5")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "marian"}))
    wrong(tmp_path, "model_type='marian', but MetricX is an mT5")
    wrong(
        folders.metricx_folder(tmp_path / "small", pieces=100), "an mT5 of 100 pieces, but MetricX"
    )
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    wrong(
        tmp_path,
        r"spiece\.model or sentencepiece\.model is missing, which MetricX has from mT5; copy it",
    )
    (tmp_path / "spiece.model").write_bytes((folder / "spiece.model").read_bytes())
    wrong(tmp_path, "no weights here")
