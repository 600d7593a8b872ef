"""Transformers loads what we export, and computes the same; published models go through, too."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.formats import exporter_suite as suite
from tests.formats.exporter_suite import both
from tests.formats.published import CASES, SOURCES, TARGETS
from tests.formats.runtimes import InTransformers, check_texts
from tests.oracles import need
from tests.quick import quick
from transformer_jax.data.mapped_tokenizer import Tags, with_tags
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.formats.export import write
from transformer_jax.formats.exporter import TrainedModel
from transformer_jax.formats.family import search
from transformer_jax.formats.transformers.writer import HuggingFace
from transformer_jax.paths import as_path
from transformer_jax.vocabulary import EOS_ID
from transformer_jax.weights.settings import Settings

need("torch")
need("transformers")


MARIAN = {"norm": tj.LayerNorm(epsilon=1e-5), "norm_placement": "post"}
FAIRSEQ = {"norm": tj.LayerNorm(epsilon=1e-5)} | both(
    position=tj.Sinusoidal(form="tensor2tensor", first=2)
)
UNBIASED = {"cross": tj.FullCross(use_bias=False), "norm": tj.RMSNorm()} | both(
    mixers=(tj.Full(use_bias=False),), position=tj.T5(num_buckets=8, max_distance=9)
)

#: Name -> (the family, options of the model).
MODELS = {
    "marian": ("marian", MARIAN),
    "marian_unlike": (
        "marian",
        MARIAN
        | both(position=tj.Sinusoidal(form="halves"), mixers=(tj.Full(score_scale=0.7), tj.Full()))
        | {
            "norm": tj.LayerNorm(epsilon=1e-5, use_bias=False),
            "cross": tj.FullCross(use_bias=False),
            "feed_forward": tj.Mlp(activation="gelu_tanh", use_bias=False),
            "embedding_scale": 1.0,
            "output_bias": True,
            "unused_ids": (0, 5, 7),
            "start_id": 0,
            "adapter": tj.Lora(rank=2),
        },
    ),
    "marian_tables": ("marian", MARIAN | {"tie_embeddings": "decoder"}),
    "m2m_100": ("m2m_100", FAIRSEQ),
    "t5": ("t5", UNBIASED | {"feed_forward": tj.Mlp(use_bias=False), "head_dim": 6}),
    "t5_1_1": (
        "t5",
        UNBIASED
        | {
            "feed_forward": tj.Glu(activation="gelu_tanh"),
            "tie_embeddings": "inputs",
            "logit_scale": 0.5,
        },
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_equal_outputs(name, tokenizers, tmp_path):
    family, options = MODELS[name]
    model = suite.random_model(suite.small(**options), tokenizers)
    theirs = suite.exported(HuggingFace(), model, tmp_path / "out", InTransformers)
    config = theirs.model.config
    assert config.model_type == family
    if family == "marian":  # its own ids
        assert (config.eos_token_id, theirs.tokenizer.unk_token_id) == (0, 1)
        assert config.pad_token_id == config.vocab_size - 1 == tokenizers.source.vocab_size - 1
    print(name, suite.check_log_probs(model, theirs))
    suite.check_greedy(model, theirs)
    check_tokenizers(model, theirs)


@pytest.mark.parametrize("name", ["marian", "t5"])
def test_a_vocabulary_with_a_separator(name, tokenizers, tmp_path):
    """Of a model that was trained on blocks."""
    tokenizer = with_tags(tokenizers.source, Tags(separator=True))
    options = MODELS[name][1]
    model = suite.random_model(suite.small(**options), Tokenizers(tokenizer, tokenizer))
    theirs = suite.exported(HuggingFace(), model, tmp_path / "out", InTransformers)
    check_tokenizers(model, theirs)


def check_tokenizers(model, theirs):
    """The same ids, text by text, and the same text again."""
    sides = model.tokenizers.source, model.tokenizers.target
    texts = zip(*generate(5, 20), strict=True)
    names = ("text", "text_target")
    for name, ours, order, lines in zip(names, sides, theirs.orders, texts, strict=True):
        for line in lines:
            ids = theirs.tokenizer(**{name: line}).input_ids
            assert ids == order[[*ours.encode(line), EOS_ID]].tolist()
            if name == "text_target":
                text = theirs.tokenizer.decode(ids, skip_special_tokens=True)
                assert text == ours.decode(ours.encode(line))


@pytest.mark.parametrize("patience", [None, 1.0])
def test_the_stop_of_beam_search_survives_export_and_import(patience, tokenizers, tmp_path):
    method = tj.Beam(3, length_penalty=0.5, length_penalty_form="power", patience=patience)
    model = suite.random_model(suite.small(**MARIAN), tokenizers)
    model = model._replace(config=replace(model.config, decode=tj.DecodeConfig(method=method)))
    write(HuggingFace(), model, as_path(tmp_path / "out"))
    path = tmp_path / "out" / "generation_config.json"
    settings = json.loads(path.read_text())
    assert settings.get("early_stopping", False) is (patience == 1.0)
    assert search(Settings(str(path), settings)) == method


@pytest.mark.parametrize("early_stopping", [False, "never", None])
def test_only_an_early_stop_is_patience(early_stopping):
    settings = Settings("x", {"num_beams": 2, "early_stopping": early_stopping})
    assert search(settings) == tj.Beam(beam_size=2, length_penalty=1.0, length_penalty_form="power")


def test_two_vocabularies_of_unequal_sizes(two, tmp_path):
    model = suite.random_model(suite.small(**MARIAN, tie_embeddings="decoder"), two)
    check_tokenizers(model, suite.exported(HuggingFace(), model, tmp_path / "out", InTransformers))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (MARIAN | {"norm": tj.LayerNorm()}, ["model.norm=layer:", "layer(epsilon=1e-05)"]),
        (MARIAN | {"decoder": {"position": tj.Sinusoidal(first=1)}}, ["model.decoder.position="]),
        (MARIAN | both(position=tj.Sinusoidal(form="tensor2tensor")), ["form='tensor2tensor'"]),
        (MARIAN | {"tie_embeddings": "none"}, ["model.tie_embeddings=none"]),
        (MARIAN | {"embedding_scale": 3.0}, ["model.embedding_scale=3.0"]),
        (MARIAN | {"feed_forward": tj.Mlp(activation="sigmoid")}, ["model.feed_forward=mlp"]),
        (MARIAN | {"encoder": {"mixers": (tj.Full(num_kv_heads=2),)}}, ["num_kv_heads=2"]),
        (MARIAN | {"head_dim": 6}, ["model.head_dim=6"]),
        (MARIAN | {"start_id": None}, ["model.start_id=None"]),
        (FAIRSEQ | {"output_bias": True}, ["model.output_bias=True", "m2m_100"]),
        (
            UNBIASED | {"feed_forward": tj.Mlp()},
            ["model.feed_forward=mlp:", "t5, the nearest family"],
        ),
    ],
)
def test_what_it_cannot_express_is_refused_by_name(options, words):
    with pytest.raises(tj.UserError) as refusal:
        HuggingFace().check(tj.Config(model=suite.small(**options)))
    message = str(refusal.value)
    assert message.startswith("model.") and "\n" not in message
    assert all(word in message for word in words), message


def test_a_family_that_is_asked_for_and_does_not_fit(tokenizers):
    with pytest.raises(tj.UserError, match=r"model.norm_placement=post: m2m_100, the nearest"):
        HuggingFace(family="m2m_100").check(tj.Config(model=suite.small(**MARIAN)))


EXPRESSED = [name for name in CASES if not name.startswith("mbart")]


@pytest.mark.parametrize("name", quick(EXPRESSED, "marian", "nllb", "t5"))  # each tokenizer
def test_published_models_go_through(name, tmp_path):
    case = CASES[name]
    (tmp_path / "published").mkdir()
    _, tokenizer = case.build(tmp_path / "published")
    run = case.imported(tmp_path / "published", tmp_path / "run")
    tj.export(run, "huggingface", tmp_path / "out", checkpoint="latest")
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
    tj.export(second, "huggingface", tmp_path / "out2", checkpoint="latest")
    files = [{p.name: p.read_bytes() for p in (tmp_path / o).iterdir()} for o in ("out", "out2")]
    assert files[0] == files[1]


def test_a_padding_id_without_a_piece(tmp_path):
    """As in folders whose vocab.json holds Marian's own pieces alone."""
    CASES["marian"].build(tmp_path)
    ids = json.loads((tmp_path / "vocab.json").read_text())
    pad = ids.pop("<pad>")
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    run = tj.import_model(tmp_path, tmp_path / "run")
    tj.export(run, "huggingface", tmp_path / "out", checkpoint="latest")
    model = TrainedModel(run.config, run.params("latest"), run.tokenizers())
    theirs = InTransformers(tmp_path / "out", model)
    assert theirs.tokenizer.pad_token_id == theirs.model.config.pad_token_id == pad
    suite.check_log_probs(model, theirs)
