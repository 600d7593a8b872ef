"""Files for Bergamot's engine: computed by its equations in NumPy, read again, refused by name.

`test_bergamot_engine.py` runs them in the engine itself.
"""

import json
import struct
from dataclasses import replace

import jax
import numpy as np
import pytest

from tests.formats import exporter_suite as suite
from tests.formats.runtimes import NaiveInNumPy
from tests.quick import quick
from transformer_jax.config import Config
from transformer_jax.data.tokenizer import load_processor
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.errors import UserError
from transformer_jax.formats.export import export, write
from transformer_jax.formats.import_model import import_model
from transformer_jax.formats.marian.bergamot import Bergamot
from transformer_jax.formats.run_folder import write_run
from transformer_jax.layers.feed_forward import Glu, Mlp
from transformer_jax.layers.norms import LayerNorm, RMSNorm
from transformer_jax.mixers.full_attention import Full, FullCross
from transformer_jax.mixers.ssru import SSRU
from transformer_jax.models import api
from transformer_jax.models.lora import Lora
from transformer_jax.models.paths import by_path
from transformer_jax.models.quantization import Int8, NoQuantization
from transformer_jax.ops.matrices import Int8Matrix
from transformer_jax.paths import as_path
from transformer_jax.positions.rope import Rope
from transformer_jax.positions.sinusoidal import Sinusoidal
from transformer_jax.weights.marian_items import Int8 as Int8Item, read_items, stored, to_bytes

T2T = {"position": Sinusoidal(form="tensor2tensor")}
FULL = {
    **{"norm_placement": "post", "start_id": None, "unused_ids": (0, 1), "output_bias": True},
    **{"encoder": T2T, "decoder": T2T},
}
STUDENT = FULL | {"decoder": T2T | {"mixers": (SSRU(),)}}

MODELS = {
    "student": STUDENT,
    "full": FULL | {"tie_embeddings": "decoder"},
    "swish": STUDENT | {"feed_forward": Mlp(activation="silu")},
    "decoder tied": STUDENT | {"tie_embeddings": "decoder"},
    "inputs tied": STUDENT | {"tie_embeddings": "inputs", "logit_scale": 0.5},
    "untied": FULL | {"tie_embeddings": "none", "embedding_scale": 3.0},
    "no biases": STUDENT
    | {
        "output_bias": False,
        "cross": FullCross(use_bias=False, score_scale=0.7, alignment_head=0),
        "feed_forward": Mlp(use_bias=False),
        "unused_ids": (0, 1, 3, 9),
    },
    "adapter": STUDENT | {"adapter": Lora(rank=2)},
}


@pytest.mark.parametrize("name", quick(MODELS, "student", "untied", "no biases"))
def test_equal_outputs(name, tokenizers, tmp_path):
    model = suite.random_model(suite.small(**MODELS[name]), tokenizers)
    theirs = suite.exported(Bergamot(), model, tmp_path / "out", NaiveInNumPy)
    suite.check_log_probs(model, theirs)
    suite.check_greedy(model, theirs)


def test_two_vocabularies(two, tmp_path):
    model = suite.random_model(suite.small(**STUDENT, tie_embeddings="decoder"), two)
    theirs = suite.exported(Bergamot(), model, tmp_path / "out", NaiveInNumPy)
    suite.check_log_probs(model, theirs)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"srcvocab.spm", "trgvocab.spm"} <= names and "vocab.spm" not in names


def test_the_folder_is_one_of_translatelocally(student_folder, tokenizers):
    names = sorted(path.name for path in student_folder.iterdir())
    assert names == ["config.intgemm8bitalpha.yml", "model.bin", "model_info.json", "vocab.spm"]
    assert "shortName" in json.loads((student_folder / "model_info.json").read_text())
    assert (student_folder / "vocab.spm").read_bytes() == tokenizers.source.model


@pytest.mark.parametrize(
    "name", quick(["student", "no biases", "adapter", "untied"], "no biases", "untied")
)
def test_import_export_import_is_the_same_to_the_bit(name, tokenizers, two, tmp_path):
    tokenizers = two if name == "untied" else tokenizers
    model = suite.random_model(suite.small(**MODELS[name]), tokenizers)
    first = export(write_run(tmp_path / "a", model), "bergamot", tmp_path / "first")
    once = import_model(first, tmp_path / "b")
    again = export(once, "bergamot", tmp_path / "second")
    twice = import_model(again, tmp_path / "c")
    for name in ("model.bin", *(path.name for path in first.glob("*.spm"))):
        assert (first / name).read_bytes() == (again / name).read_bytes()
    jax.tree.map(np.testing.assert_array_equal, once.params(), twice.params())
    assert once.config.model == twice.config.model
    sources = suite.sentences(2, tokenizers.source.vocab_size)
    ours = model._replace(params=once.params("latest"), config=once.config)
    assert suite.Ours(ours).greedy(sources) == suite.Ours(model).greedy(sources)


def test_an_imported_folder_has_its_pieces_and_search(folder, tokenizers, tmp_path):
    config = folder / "config.intgemm8bitalpha.yml"
    config.write_text(config.read_text().replace("beam-size: 4", "beam-size: 1"))
    run = import_model(folder, tmp_path / "b")
    assert run.config.decode.method == Greedy()
    text = "The dog sleeps."
    assert run.tokenizers().source.encode(text) == tokenizers.source.encode(text)
    assert run.config.model.start_id is None and run.config.model.unused_ids == (0, 1)
    assert run.config.model.norm == LayerNorm(epsilon=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["norm_placement=pre", "start_id=1", "position=sinusoidal", "form='tensor2tensor'"]),
        (STUDENT | {"norm": RMSNorm()}, ["model.norm=rms"]),
        (STUDENT | {"norm": LayerNorm(epsilon=1e-5)}, ["epsilon=1e-05"]),
        (STUDENT | {"encoder": {"position": Rope()}}, ["model.encoder.position=rope"]),
        (STUDENT | {"feed_forward": Glu()}, ["model.feed_forward=glu"]),
        (STUDENT | {"feed_forward": Mlp(activation="gelu")}, ["feed_forward=mlp(activation='gelu"]),
        (STUDENT | {"start_id": 1}, ["model.start_id=1", "model.start_id=None"]),
        (STUDENT | {"embedding_scale": 3.0}, ["model.embedding_scale=3.0"]),
        (STUDENT | {"embedding_norm": True}, ["model.embedding_norm=True"]),
        (FULL | {"decoder": T2T | {"mixers": (SSRU(), Full())}}, ["decoder.mixers=ssru,full"]),
        (FULL | {"encoder": T2T | {"mixers": (Full(num_kv_heads=2),)}}, ["num_kv_heads=2"]),
        (STUDENT | {"head_dim": 6}, ["model.head_dim=6"]),
        (STUDENT | {"cross": FullCross(alignment_head=1)}, ["cross.alignment_head=1", "head 0"]),
    ],
)
def test_what_the_engine_cannot_compute_is_refused_by_name(options, words):
    with pytest.raises(UserError) as refusal:
        Bergamot().check(Config(model=suite.small(**options)))
    message = str(refusal.value)
    assert message.startswith("model.") and "\n" not in message
    assert all(word in message for word in ["Bergamot cannot express it", *words]), message


INT8 = {"d_model": 64, "d_ff": 128, "quantize": Int8()}


def read_stored(path):
    """The items of a file as tensors: matrices of int8 as the floats that they stand for."""
    return {name: stored(item) for name, item in read_items(path).items()}


@pytest.mark.parametrize("tie", ["all", "decoder", "none"])
def test_int8_of_a_model_that_was_trained_for_it(tie, tokenizers, tmp_path):
    """The file has the whole numbers and the factors that training computes with."""
    model = suite.random_model(suite.small(**STUDENT, **INT8, tie_embeddings=tie), tokenizers)
    Bergamot().check(model.config)
    write(Bergamot(), model, as_path(tmp_path / "out"))
    found = read_stored(tmp_path / "out" / "model.intgemm.alphas.bin")
    held = api.for_decoding(model.config.model, model.params)
    up = held["encoder"]["blocks_0"]["feed_forward"]["up"]["kernel"]
    want = up.values * up.scale
    np.testing.assert_allclose(found["encoder_l1_ffn_W1"].read().T, want, rtol=3e-7)
    settings = (tmp_path / "out" / "config.intgemm8bitalpha.yml").read_text()
    assert "int8shiftAlphaAll" in settings and "model.intgemm.alphas.bin" in settings
    alphas = {name for name in found if name.endswith("_QuantMultA")}
    tied = {"all": "Wemb", "decoder": "decoder_Wemb", "none": "decoder_ff_logit_out_W"}[tie]
    assert {f"{tied}_QuantMultA", "none_QuantMultA"} <= alphas
    assert len(alphas) == 2 * (6 + 8) + 2
    assert found["none_QuantMultA"].read() == found[f"{tied}_QuantMultA"].read() == 20
    values = found[tied].read()
    assert max(values.shape) % 8 == 0 and max(values.shape) > tokenizers.target.vocab_size - 2
    if tie != "none":  # the engine quantises these once more, by the largest number
        table = held["target_embedding"]["table"]
        again = np.rint(values * np.float32(127 / np.abs(values).max()))
        piece = tokenizers.source.encode("The")[0]
        spm = load_processor(tokenizers.source.sentencepiece_model, "vocab.spm")
        row = spm.piece_to_id(tokenizers.source.pieces([piece])[0])
        np.testing.assert_array_equal(again[row], np.asarray(table.values)[piece])


@pytest.mark.parametrize("tie", ["all", "none"])
def test_a_file_of_int8_is_decoded_with_its_whole_numbers(tie, tokenizers, tmp_path):
    """Of every matrix, with the factors of the file; `weights=float` has the floats."""
    model = suite.random_model(suite.small(**STUDENT, **INT8, tie_embeddings=tie), tokenizers)
    write(Bergamot(), model, as_path(tmp_path / "out"))
    run = import_model(tmp_path / "out", tmp_path / "run")
    assert run.config.decode.weights == "int8"
    held = run.translator().params
    want = api.for_decoding(model.config.model, model.params)
    assert matrices(want).keys() == matrices(held).keys()
    for path, w in matrices(want).items():
        found = matrices(held)[path]
        np.testing.assert_array_equal(found.scale[0], w.scale[0], path)
        if w.shape == found.shape:  # tables have other rows
            np.testing.assert_array_equal(found.values, w.values, path)
        if w.static is not None:
            assert (found.static.alpha, found.static.unit) == (w.static.alpha, w.static.unit)
    size = sum(w.values[: len(w.scale)].nbytes for w in matrices(held).values())
    assert run.config.model.quantize == NoQuantization()
    floats = by_path(run.translator(weights="float").params)
    assert 4 * size == sum(floats[path].nbytes for path in matrices(held))
    up = "encoder/blocks_0/feed_forward/up/kernel"
    exact = matrices(want)[up].values * matrices(want)[up].scale
    np.testing.assert_allclose(floats[up].T, exact, rtol=3e-7)


def matrices(params):
    """By path, those of int8."""

    def is_int8(x):
        return isinstance(x, Int8Matrix)

    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=is_int8)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in leaves
        if is_int8(leaf)
    }


def test_int8_needs_sentences_or_a_model_that_was_trained_for_it(tmp_path):
    floats, trained = (
        Config(model=suite.small(**STUDENT, **(INT8 | {"quantize": kind()})))
        for kind in (NoQuantization, Int8)
    )
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.write_text("\n \n")
    for config, options, words in (
        (floats, {"sentences": str(empty)}, r"sentences=FILE is for int8: give quantization=int8"),
        (floats, {"quantization": "int8", "sentences": str(missing)}, rf"={missing}: cannot be"),
        (floats, {"quantization": "int8", "sentences": str(empty)}, rf"={empty}: holds no sent"),
        (trained, {"quantization": "float32"}, r"model\.quantize=int8.*leave out"),
        (trained, {"quantization": "int8", "sentences": str(empty)}, r"quantize=int8.*leave out"),
        (
            replace(trained, model=replace(trained.model, d_ff=96)),
            {},
            r"model\.d_ff=96: Bergamot's int8 needs a multiple of 64",
        ),
    ):
        with pytest.raises(UserError, match=words) as refusal:
            Bergamot(**options).check(config)
        assert "\n" not in str(refusal.value)


def test_vocabularies_that_the_engine_cannot_read_are_refused(two, tmp_path):
    model = suite.random_model(suite.small(**STUDENT, tie_embeddings="decoder"), two)
    tied = model._replace(config=Config(model=suite.small(**STUDENT)))
    with pytest.raises(UserError, match="model.tie_embeddings=all: with two SentencePiece models"):
        suite.exported(Bergamot(), tied, tmp_path / "out", NaiveInNumPy)
    languages = suite.random_model(suite.small(**STUDENT), suite.language_tokenizers())
    languages = languages._replace(tokenizers=Tokenizers(*[languages.tokenizers.source] * 2))
    with pytest.raises(UserError, match="the piece 'eng_Latn' begins every text"):
        suite.exported(Bergamot(), languages, tmp_path / "out", NaiveInNumPy)
    assert not list(tmp_path.iterdir())


def test_a_matrix_of_int8_is_read_as_its_floats(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.integers(-127, 128, (16, 8)).astype(np.int8)
    items = {
        "a_Wq": Int8Item(values, 50.0),
        "Wemb": Int8Item(values, 25.0),
        "b": np.float32([[1, 2]]),
    }
    (tmp_path / "x.bin").write_bytes(to_bytes(items))
    found = read_stored(tmp_path / "x.bin")
    np.testing.assert_array_equal(found["a_Wq"].read(), values / np.float32(50))
    np.testing.assert_array_equal(found["Wemb"].read(), values / np.float32(25))
    np.testing.assert_array_equal(found["b"].read(), items["b"])
    # Bytes of a matrix are transposed, those of a table are not.
    content = (tmp_path / "x.bin").read_bytes()
    assert values.T.tobytes() in content and values.tobytes() in content


def number_at(place, value, kind="Q"):
    def change(content):
        packed = struct.pack(f"<{kind}", value)
        return content[:place] + packed + content[place + len(packed) :]

    return change


def shape_of_16_by_24(*other):
    shapes = struct.pack("<2i", 16, 24), struct.pack("<2i", *other)
    return lambda content: content.replace(*shapes, 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (number_at(0, 2), "does not begin with the version 1"),
        (lambda content: b"PK\3\4" + content[4:], "does not begin with the version 1"),
        (lambda content: b"", "does not begin with the version 1"),
        (number_at(8, 2**63), "names 9223372036854775808 items, more than it has room for"),
        (number_at(16, 2**62), "within its parts"),
        (number_at(24, 0x10001), "is of the type 0x10001; known are"),
        (number_at(32, 2**61), "an item has 2305843009213693952 axes"),
        (number_at(40, 2**64 - 1), "within its parts"),
        (lambda content: content[:-1], "within its parts"),
        (lambda content: content[: len(content) // 2], "within its parts"),
        (lambda content: content[:100], "more than it has room for"),
        (lambda content: content.replace(b"Wemb\0", b"W\xff\xffb\0"), "a name is not text"),
        (lambda content: content.replace(b"Wemb\0", b"Wembb"), "a name is not text"),
        (shape_of_16_by_24(2**31 - 1, 2**31 - 1), "which do not fit"),
        (shape_of_16_by_24(-16, 24), "which do not fit"),
        (lambda content: content.replace(b"_l1_rnn_Wf", b"_l1_rnn_Wx"), "decoder_l1_rnn_Wf is"),
        (lambda content: content.replace(b"model.yml", b"model.yMl"), "has no special:model.yml"),
        (lambda content: content.replace(b"dan\n", b"dbn\n"), "'dbn' cannot be expressed"),
    ],
)
def test_damaged_files_end_in_one_line(change, words, folder, tmp_path):
    content = (folder / "model.bin").read_bytes()
    assert change(content) != content
    (folder / "model.bin").write_bytes(change(content))
    with pytest.raises(UserError) as refusal:
        import_model(folder, tmp_path / "run")
    assert words in str(refusal.value) and "\n" not in str(refusal.value)
    assert "model.bin" in str(refusal.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("vocab.spm", None, "expected one *.spm, or one with .src."),
        ("vocab.spm", b"abc", "vocab.spm"),
        ("second.bin", b"", "holds several models"),
        ("config.intgemm8bitalpha.yml", b"beam-size: [", "not valid YAML"),
    ],
)
def test_folders_that_do_not_fit_end_in_one_line(name, content, words, folder, tmp_path):
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(UserError) as refusal:
        import_model(folder, tmp_path / "run")
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


def test_the_vocabulary_of_another_model_is_refused(folder, two, tmp_path):
    (folder / "vocab.spm").write_bytes(two.target.model)
    with pytest.raises(UserError, match="embeddings of 350 pieces, but the vocabulary has 330"):
        import_model(folder, tmp_path / "run")
