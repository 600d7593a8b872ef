"""Published models go through: imported, exported, and run by CTranslate2."""

import pytest

from tests.formats import exporter_suite as suite
from tests.formats.published import CASES
from tests.formats.runtimes import InCTranslate2
from tests.oracles import need
from transformer_jax.formats.ctranslate2 import CTranslate2
from transformer_jax.formats.exporter import TrainedModel

need("ctranslate2")
need("transformers")


@pytest.mark.parametrize("name", CASES)
def test_equal_outputs(name, tmp_path):
    case = CASES[name]
    (tmp_path / "published").mkdir()
    case.build(tmp_path / "published")
    run = case.imported(tmp_path / "published", tmp_path / "run")
    model = TrainedModel(run.config, run.params("latest"), run.tokenizers())
    theirs = suite.exported(CTranslate2(), model, tmp_path / "out", InCTranslate2)
    suite.check_log_probs(model, theirs)
    sources = suite.sentences(2, model.tokenizers.source.vocab_size)
    assert theirs.greedy(sources) == suite.Ours(model).greedy(sources)
