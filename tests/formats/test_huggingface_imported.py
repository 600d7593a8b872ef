"""Published models go through: imported, exported in their own form, and run by Transformers."""

import json

import jax
import numpy as np
import pytest

from tests.formats import exporter_suite as suite
from tests.formats.published import CASES, SOURCES, TARGETS
from tests.formats.runtimes import InTransformers, check_texts
from tests.oracles import need
from transformer_jax.errors import UserError
from transformer_jax.formats.export import export
from transformer_jax.formats.exporter import TrainedModel
from transformer_jax.formats.import_model import import_model

need("torch")
need("transformers")

#: One case of each tokenizer; the others take a minute.
QUICK = ("marian", "nllb", "t5")


@pytest.fixture(
    params=[
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in CASES
        if not name.startswith(("mbart", "marian, npz"))
    ]
)
def imported(request, tmp_path):
    """(case, the original tokenizer, the run)."""
    case = CASES[request.param]
    (tmp_path / "published").mkdir()
    _, tokenizer = case.build(tmp_path / "published")

    return case, tokenizer, case.imported(tmp_path / "published", tmp_path / "run")


def test_equal_outputs_and_the_same_ids(imported, tmp_path):
    case, tokenizer, run = imported
    export(run, "huggingface", tmp_path / "out", checkpoint="latest")
    model = TrainedModel(run.config, run.params("latest"), run.tokenizers())
    theirs = InTransformers(tmp_path / "out", model)
    print(suite.check_log_probs(model, theirs))
    check_texts(run, case.tag, theirs)
    for text in SOURCES:
        ids = tokenizer(case.tag + text).input_ids
        assert theirs.tokenizer(case.tag + text).input_ids == ids
    for text in TARGETS:
        ids = tokenizer(text_target=text).input_ids
        assert theirs.tokenizer(text_target=text).input_ids == ids
        assert theirs.tokenizer.decode(ids) == tokenizer.decode(ids)

    second = case.imported(tmp_path / "out", tmp_path / "second")
    assert second.config == run.config
    assert second.tokenizers().files() == run.tokenizers().files()
    jax.tree.map(np.testing.assert_array_equal, second.params("latest"), model.params)
    export(second, "huggingface", tmp_path / "out2", checkpoint="latest")
    files = [{p.name: p.read_bytes() for p in (tmp_path / o).iterdir()} for o in ("out", "out2")]
    assert files[0] == files[1]


def test_what_marian_itself_computes_is_refused(tmp_path):
    CASES["marian, npz"].build(tmp_path)
    run = import_model(tmp_path, tmp_path / "run")
    with pytest.raises(UserError, match="form=.tensor2tensor"):
        export(run, "huggingface", tmp_path / "out", checkpoint="latest")


def test_a_padding_id_without_a_piece(tmp_path):
    """As in folders whose vocab.json holds Marian's own pieces alone."""
    CASES["marian"].build(tmp_path)
    ids = json.loads((tmp_path / "vocab.json").read_text())
    pad = ids.pop("<pad>")
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    run = import_model(tmp_path, tmp_path / "run")
    export(run, "huggingface", tmp_path / "out", checkpoint="latest")
    model = TrainedModel(run.config, run.params("latest"), run.tokenizers())
    theirs = InTransformers(tmp_path / "out", model)
    assert theirs.tokenizer.pad_token_id == theirs.model.config.pad_token_id == pad
    suite.check_log_probs(model, theirs)
