"""The suite of export formats rejects broken ones."""

from dataclasses import dataclass

import jax
import numpy as np
import pytest

from tests.formats import exporter_suite as suite
from tests.formats.runtimes import RUNTIMES, in_this_package
from tests.oracles import need
from transformer_jax.formats.ctranslate2 import CTranslate2
from transformer_jax.formats.safetensors import Safetensors


@dataclass(frozen=True)
class Rounds(Safetensors):
    """Its weights have 11 bits."""

    def write(self, model, folder):
        rounded = jax.tree.map(lambda x: np.asarray(x, np.float16).astype(x.dtype), model.params)
        super().write(model._replace(params=rounded), folder)


@dataclass(frozen=True)
class ForgetsABias(Safetensors):
    def write(self, model, folder):
        def without(path, leaf):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            return leaf * 0 if name == "decoder/blocks_1/mixer/heads/value/bias" else leaf

        params = jax.tree_util.tree_map_with_path(without, model.params)
        super().write(model._replace(params=params), folder)


class StopsEarly:
    def __init__(self, folder, model):
        self.runtime = in_this_package(folder, model)

    def log_probs(self, sources, targets):
        return [row[:-1] for row in self.runtime.log_probs(sources, targets)]

    def greedy(self, sources):
        return [ids[:-1] for ids in self.runtime.greedy(sources)]


@pytest.fixture(scope="module")
def model():
    return suite.random_model(suite.small(), suite.tokenizers())


@pytest.mark.parametrize("exporter", [Rounds(), ForgetsABias()])
def test_rejects_other_weights(exporter, model, tmp_path):
    theirs = suite.exported(exporter, model, tmp_path / "out", in_this_package)
    with pytest.raises(AssertionError, match="log-probabilities differ"):
        suite.check_log_probs(model, theirs)


def test_rejects_int8_as_not_exact(model, tmp_path):
    package, load = RUNTIMES["ctranslate2"]
    need(package)
    theirs = suite.exported(CTranslate2(quantization="int8"), model, tmp_path / "out", load)
    with pytest.raises(AssertionError, match="log-probabilities differ"):
        suite.check_log_probs(model, theirs)


def test_rejects_missing_tokens(model, tmp_path):
    theirs = suite.exported(Safetensors(), model, tmp_path / "out", StopsEarly)
    with pytest.raises(AssertionError):
        suite.check_log_probs(model, theirs)
    with pytest.raises(AssertionError):
        suite.check_greedy(model, theirs)
