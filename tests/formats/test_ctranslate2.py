"""CTranslate2 runs what we export, and computes the same."""

from dataclasses import dataclass, replace

import pytest

import transformer_jax as tj
from tests.formats import exporter_suite as suite
from tests.formats.exporter_suite import both
from tests.formats.runtimes import InCTranslate2
from tests.oracles import need
from transformer_jax.formats.ctranslate2 import EXPRESSED
from transformer_jax.formats.exporter import check_expressed
from transformer_jax.models.quantization import NoQuantization

need("ctranslate2")

NONE = NoQuantization()


MODELS = {
    "default": {},
    "marian": {
        "norm": tj.LayerNorm(epsilon=1e-5),
        "norm_placement": "post",
        "feed_forward": tj.Mlp(activation="silu"),
        "output_bias": True,
        "unused_ids": (0, 5, 7),
        "start_id": 0,
    }
    | both(position=tj.Sinusoidal(form="halves")),
    "starts_with_zeros": {"start_id": None, "unused_ids": (0, 1), "tie_embeddings": "decoder"},
    "t5_1_1": both(mixers=(tj.Full(use_bias=False, score_scale=1.0),), position=tj.T5())
    | {
        "cross": tj.FullCross(use_bias=False, score_scale=0.7),
        "norm": tj.RMSNorm(),
        "feed_forward": tj.Glu(activation="gelu_tanh"),
        "embedding_scale": 1.0,
        "tie_embeddings": "inputs",
    },
    "mbart": {
        "embedding_norm": True,
        "embedding_scale": 3.0,
        "logit_scale": 0.25,
        "feed_forward": tj.Mlp(activation="gelu"),
    }
    | both(position=tj.Sinusoidal(form="tensor2tensor", first=2)),
    "adapter": {"adapter": tj.Lora(rank=2), "cross": tj.FullCross(alignment_head=0)},
    "rms_glu": {"norm": tj.RMSNorm(epsilon=1e-3), "feed_forward": tj.Glu()},
    "geglu": {"feed_forward": tj.Glu(activation="gelu", use_bias=True), "tie_embeddings": "none"},
    "sigmoid_epsilon": {
        "feed_forward": tj.Glu(activation="sigmoid"),
        "norm": tj.LayerNorm(epsilon=0.1, use_bias=False),
        "norm_placement": "post",
    },
    "gelu_concatenated": {"feed_forward": tj.Mlp(activation="gelu"), "tie_embeddings": "decoder"}
    | both(position=tj.Concatenated(width=5)),
    "gelu_tanh_learned": {"feed_forward": tj.Mlp(activation="gelu_tanh", use_bias=False)}
    | both(position=tj.Learned()),
    "silu_head_dim": {"feed_forward": tj.Mlp(activation="silu"), "num_heads": 3, "head_dim": 6},
    "untied_concatenated": both(position=tj.Concatenated()) | {"tie_embeddings": "none"},
    "rope_and_scalar": {
        "encoder": {"position": tj.Rope(base=100.0)},
        "decoder": {"position": tj.Scalar()},
    },
    "t5_post": both(position=tj.T5(num_buckets=8, max_distance=9)) | {"norm_placement": "post"},
    "alibi_of_6_heads": both(position=tj.Alibi()) | {"num_heads": 6, "head_dim": 4},
    "grouped": both(mixers=(tj.Full(num_kv_heads=2), tj.Full(num_kv_heads=1)), position=tj.Rope())
    | {"cross": tj.FullCross(num_kv_heads=1)},
    "grouped_t5": both(mixers=(tj.Full(num_kv_heads=1),), position=tj.T5()),
    "window_rope": both(mixers=(tj.Window(window=3),), position=tj.Rope()),
    "window_t5": both(mixers=(tj.Window(window=2, dilation=3),), position=tj.T5(num_buckets=8)),
    "full_then_window": both(mixers=(tj.Full(), tj.Window(window=2))),
    "strided_alibi": both(mixers=(tj.Strided(stride=3),), position=tj.Alibi()),
    "window_then_full": both(mixers=(tj.Window(window=2), tj.Full()), position=tj.NoPosition()),
}


@pytest.mark.parametrize("name", MODELS)
def test_equal_outputs(name, tokenizers, tmp_path):
    model = suite.random_model(suite.small(**MODELS[name]), tokenizers)
    theirs = suite.exported(tj.CTranslate2(), model, tmp_path / "out", InCTranslate2)
    print(name, suite.check_log_probs(model, theirs))
    suite.check_greedy(model, theirs)


@pytest.mark.parametrize(
    "quantization", ["float16", "int16", "int8", "int8_float32", "int8_float16"]
)
def test_smaller_weights_load_and_stay_near(quantization, tokenizers, tmp_path):
    model = suite.random_model(suite.small(**both(position=tj.T5())), tokenizers)
    exact = suite.exported(tj.CTranslate2(), model, tmp_path / "float32", InCTranslate2)
    small = suite.exported(tj.CTranslate2(quantization), model, tmp_path / "small", InCTranslate2)
    size, full = ((tmp_path / name / "model.bin").stat().st_size for name in ("small", "float32"))
    assert size < 0.75 * full
    suite.check_log_probs(model, small, tolerance=0.5)
    assert len(small.greedy([[5, 6], [7]])) == len(exact.greedy([[5, 6], [7]]))


@pytest.mark.parametrize("name", ["default", "marian", "rms_glu", "grouped", "untied_concatenated"])
def test_int8_is_what_training_simulates(name, tokenizers, tmp_path):
    """A number that is nearly halfway between two whole ones may be rounded to the other."""
    config = suite.small(**MODELS[name], quantize=tj.Int8Dynamic())
    model = suite.random_model(config, tokenizers)
    theirs = suite.exported(tj.CTranslate2("int8"), model, tmp_path / "out", InCTranslate2)
    print(name, suite.check_log_probs(model, theirs, tolerance=0.1))
    suite.check_greedy(model, theirs)
    floats = model._replace(config=tj.Config(model=replace(model.config.model, quantize=NONE)))
    with pytest.raises(AssertionError):
        suite.check_log_probs(floats, theirs, tolerance=0.1)


def test_int8_of_a_simulation_is_not_exported_as_floats(tokenizers, tmp_path):
    model = suite.random_model(suite.small(quantize=tj.Int8Dynamic()), tokenizers)
    with pytest.raises(tj.UserError, match=r"quantize=int8_dynamic: give .*quantization=int8"):
        tj.CTranslate2().check(model.config)
    static = suite.random_model(suite.small(quantize=tj.Int8()), tokenizers)
    with pytest.raises(tj.UserError, match=r"model\.quantize=int8: CTranslate2 cannot express it"):
        tj.CTranslate2("int8").check(static.config)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            both(mixers=(tj.Window(window=2), tj.Window(window=3)), position=tj.Rope()),
            "one table of biases",
        ),
        (both(mixers=(tj.Window(window=2), tj.Full()), position=tj.Alibi()), "one table of biases"),
        (both(mixers=(tj.Window(window=2),)), "position=sinusoidal does; train with position=rope"),
        ({"cross": tj.FullCross(alignment_head=1)}, "cross.alignment_head=1: CTranslate2 cannot"),
        ({"start_id": None}, "start_id=none: CTranslate2 starts from the embedding of a piece"),
    ],
)
def test_what_it_cannot_express_is_refused_by_name(options, words):
    config = tj.Config(model=suite.small(**options))
    with pytest.raises(tj.UserError, match=words) as refusal:
        tj.CTranslate2().check(config)
    assert str(refusal.value).startswith("model.") and "\n" not in str(refusal.value)


def test_an_option_that_it_does_not_know_is_refused():
    """As an option would be that is added to the model later."""

    @dataclass(frozen=True)
    class Later(tj.ModelConfig):
        softcap: float = 0.0

    expressed = EXPRESSED | {Later: EXPRESSED[tj.ModelConfig]}
    check_expressed(Later(), expressed, "CTranslate2")
    with pytest.raises(tj.UserError, match="model.softcap=30.0: CTranslate2 cannot express it"):
        check_expressed(Later(softcap=30.0), expressed, "CTranslate2")
