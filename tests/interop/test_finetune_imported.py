"""Published models are fine-tuned: imported, and trained further on two text files."""

import jax
import numpy as np
import pytest

from tests.interop.published import CASES
from tests.oracles import need
from transformer_jax.cli.main import main
from transformer_jax.interop.import_model import import_model
from transformer_jax.models.paths import by_path
from transformer_jax.runs.folder import open_run

need("torch")
need("transformers")


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_is_fine_tuned(name, tmp_path, monkeypatch):
    case = CASES[name]
    (tmp_path / "published").mkdir()
    case.build(tmp_path / "published")
    monkeypatch.chdir(tmp_path)
    source, target = case.languages
    before = import_model("published", "imported", source_language=source, target_language=target)
    lines = {"en": "the dog sees a cat", "de": "der Hund sieht eine Katze"}
    for language, line in lines.items():
        (tmp_path / f"text.{language}").write_text(f"{line}\n" * 24)
    trained = main(
        [
            "train",
            "--config=finetune",
            "--workdir=tuned",
            "--no_progress",
            "--config.train.init_from=imported",
            "--config.train.frozen=encoder/*",
            "--config.train.steps=4",
            "--config.train.log_every=1",
            "--config.train.schedule=constant(learning_rate=0.01, warmup_steps=0)",
            "--config.data.source.train_source=text.en",
            "--config.data.source.train_target=text.de",
            "--config.data.validation_from_train=4",
            "--config.data.cache_dir=cache",
            "--config.batch.tokens=256",
        ]
    )
    assert trained == 0
    after = open_run("tuned")
    assert after.config.model == before.config.model
    assert after.tokenizers().files() == before.tokenizers().files()
    changed = by_path(
        jax.tree.map(lambda a, b: bool(np.any(a != b)), before.params(), after.params("latest"))
    )
    assert not any(changed[path] for path in changed if path.startswith("encoder/"))
    assert any(changed.values())
    losses = [record["loss"] for record in after.metrics() if "loss" in record]
    assert losses[-1] < losses[0]
    tag = case.tag + lines["en"]
    scores = [run.translator("latest").score([tag], [lines["de"]]) for run in (before, after)]
    assert scores[1] > scores[0]
