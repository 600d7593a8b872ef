"""Published models go through: imported, exported in their own form, and run by Transformers."""

import jax
import numpy as np
import pytest

from tests.interop import exporter_suite as suite
from tests.interop.published import CASES, SOURCES, TARGETS
from tests.interop.runtimes import InTransformers
from tests.oracles import need
from transformer_jax.interop.export import export
from transformer_jax.interop.exporters.base import TrainedModel
from transformer_jax.interop.import_model import import_model

need("torch")
need("transformers")


@pytest.fixture(params=[name for name in CASES if not name.startswith("mbart")])
def imported(request, tmp_path):
    """(case, the original tokenizer, the run, what imports a folder)."""
    case = CASES[request.param]
    (tmp_path / "published").mkdir()
    _, tokenizer = case.build(tmp_path / "published")

    def again(folder, workdir):
        names = dict(zip(("source_language", "target_language"), case.languages, strict=True))
        return import_model(tmp_path / folder, tmp_path / workdir, **names)

    return case, tokenizer, again("published", "run"), again


def test_equal_outputs_and_the_same_ids(imported, tmp_path):
    case, tokenizer, run, again = imported
    export(run, "huggingface", tmp_path / "out", checkpoint="latest")
    model = TrainedModel(run.config, run.params("latest"), run.tokenizers())
    theirs = InTransformers(tmp_path / "out", model)
    print(suite.check_log_probs(model, theirs))
    sources = suite.sentences(2, model.tokenizers.source.vocab_size)
    assert theirs.greedy(sources) == suite.Ours(model).greedy(sources)
    for text in SOURCES:
        ids = tokenizer(case.tag + text).input_ids
        assert theirs.tokenizer(case.tag + text).input_ids == ids
    for text in TARGETS:
        ids = tokenizer(text_target=text).input_ids
        assert theirs.tokenizer(text_target=text).input_ids == ids
        assert theirs.tokenizer.decode(ids) == tokenizer.decode(ids)

    second = again("out", "second")
    assert second.config == run.config
    assert second.tokenizers().files() == run.tokenizers().files()
    jax.tree.map(np.testing.assert_array_equal, second.params("latest"), model.params)
    export(second, "huggingface", tmp_path / "out2", checkpoint="latest")
    files = [{p.name: p.read_bytes() for p in (tmp_path / o).iterdir()} for o in ("out", "out2")]
    assert files[0] == files[1]
