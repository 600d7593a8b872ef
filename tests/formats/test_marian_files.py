"""Marian's own files are read, or refused by name. Bergamot's engine judges the model."""

import json
import shutil

import numpy as np
import pytest

from tests.formats import exporter_suite as suite
from tests.formats.test_bergamot import FULL
from transformer_jax.errors import UserError
from transformer_jax.formats.export import write
from transformer_jax.formats.family import Languages
from transformer_jax.formats.import_model import import_model, open_folder, read_model
from transformer_jax.formats.marian.bergamot import Bergamot
from transformer_jax.paths import as_path
from transformer_jax.translation.translator import Translator
from transformer_jax.weights.marian_items import read_items
from transformer_jax.weights.sentencepiece_model import load_processor


def marian_npz(path, model):
    """A model's files, with other numbers of the pieces than in the SentencePiece models."""
    write(Bergamot(), model, as_path(path / "bergamot"))
    items = dict(read_items(path / "bergamot" / "model.bin"))
    shutil.rmtree(path / "bergamot")
    for name in [name for name in items if name.endswith("Wemb")]:
        items[name] = items[name][::-1]
    items["decoder_ff_logit_out_b"] = items["decoder_ff_logit_out_b"][:, ::-1]
    np.savez(path / "model.npz", **items)
    for side, name in (("source", "src."), ("target", "trg.")):
        content = getattr(model.tokenizers, side).sentencepiece_model
        (path / f"{side}.spm").write_bytes(content)
        processor = load_processor(content, side)
        pieces = [processor.id_to_piece(i) for i in reversed(range(processor.vocab_size()))]
        vocabulary = path / f"opus.{'' if model.tokenizers.joint else name}vocab.yml"
        vocabulary.write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    (path / "decoder.yml").write_text("beam-size: 6\nnormalize: 1\n")
    return path


@pytest.fixture(scope="module")
def folder(tokenizers, tmp_path_factory):
    model = suite.random_model(suite.small(**FULL), tokenizers)
    return marian_npz(tmp_path_factory.mktemp("npz"), model)


@pytest.mark.parametrize("tie", ["all", "decoder"])
def test_the_model_and_the_search_are_those_of_the_files(tie, tokenizers, two, tmp_path):
    """With one vocabulary, and with two."""
    tokenizers = tokenizers if tie == "all" else two
    model = suite.random_model(suite.small(**FULL, tie_embeddings=tie), tokenizers)
    run = import_model(marian_npz(tmp_path, model), tmp_path / "run")
    method = run.config.decode.method
    assert (method.beam_size, method.length_penalty, method.length_penalty_form) == (6, 1, "power")
    ours = Translator(model.config.model, model.params, tokenizers, run.config.decode)
    pairs = ["The dog sleeps.", "A cat."], ["Eine Katze.", "Der Hund."]
    assert ours.score_pairs(*pairs).num_cut == 0
    np.testing.assert_allclose(run.translator().score(*pairs), ours.score(*pairs), rtol=1e-5)


@pytest.fixture
def copy(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def change_option(path, key, value):
    with np.load(path / "model.npz") as old:
        arrays = dict(old)
    text = arrays["special:model.yml"].tobytes().rstrip(b"\0") + f"{key}: {value}\n".encode()
    arrays["special:model.yml"] = np.frombuffer(text, np.int8)
    np.savez(path / "model.npz", **arrays)


def change_array(path, name, value):
    with np.load(path / "model.npz") as old:
        arrays = {key: array for key, array in old.items() if key != name}
    np.savez(path / "model.npz", **arrays, **({} if value is None else {name: value}))


def test_pieces_that_are_values_in_yaml(copy):
    """Marian writes them without quotes."""
    plain = "on off no yes true null ~ 1.50 1_000 010 8 0x10 12:30 .inf 2001-01-01 << = +1"
    pieces = json.loads((copy / "opus.vocab.yml").read_text())
    renamed = dict(zip(pieces, plain.split(), strict=False))
    lines = [f"{renamed.get(p, json.dumps(p))}: {i}\n" for p, i in pieces.items()]
    (copy / "opus.vocab.yml").write_text("".join(lines))
    tokenizer = read_model(open_folder(copy), Languages()).tokenizers.target
    wanted = [renamed.get(piece, piece) for piece in pieces]
    order = [tokenizer.id_of(piece) for piece in wanted]
    assert None not in order and len(set(order)) == len(pieces)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("transformer-decoder-autoreg", "rnn", "dec-cell='gru' cannot be expressed; only 'ssru'"),
        ("transformer-decoder-dim-ffn", "64", "decoder-dim-ffn=64 cannot be expressed; only 24"),
        ("transformer-train-position-embeddings", "true", "position-embeddings=True cannot"),
        ("type", "s2s", "type='s2s' cannot be expressed; only 'transformer'"),
        ("enc-depth", "3", "the tensor encoder_l3_self_Wq is missing"),
        ("dim-emb", "8", "has the shape .* follows from"),
        ("tied-embeddings-all", "no\ntied-embeddings-src: no", "tensor encoder_Wemb is missing"),
    ],
)
def test_options_that_cannot_be_expressed_are_refused(copy, key, value, message):
    change_option(copy, key, value)
    with pytest.raises(UserError, match=message):
        import_model(copy, copy / "run")
    assert not (copy / "run").exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("special:model.yml", None, "has no special:model.yml, so it is not a model of Marian"),
        ("special:model.yml", np.frombuffer(b"!!python/object:os.x {}", np.int8), "not valid YAML"),
        ("special:model.yml", np.frombuffer(b"[1]", np.int8), "not a mapping in YAML"),
        ("Wemb", None, "the tensor Wemb is missing"),
        ("encoder_l1_more", np.zeros((1, 2)), "reads the tensors encoder_l1_more"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(copy, name, value, message):
    change_array(copy, name, value)
    with pytest.raises(UserError, match=message):
        found = open_folder(copy)
        read = read_model(found, Languages())
        read.table.to_params(read.model, found.weights)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.npz", b"abc", "not a NumPy archive"),
        ("a.src.vocab.yml", b"a: 0\n", "expected one vocabulary, .*; found 2"),
        ("opus.vocab.yml", b"a: 0\nb: 2\n", "does not number its pieces from 0 without a gap"),
        ("second.npz", b"abc", "holds several models"),
        ("decoder.yml", b"beam-size: many\n", "beam-size='many' is not of type int"),
    ],
)
def test_damaged_folders_are_refused(copy, name, content, message):
    (copy / name).unlink(missing_ok=True)
    if content is not None:
        (copy / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        import_model(copy, copy / "run")


def test_two_vocabularies_of_one_matrix_are_refused(copy, two):
    (copy / "opus.vocab.yml").unlink()
    (copy / "target.spm").write_bytes(two.target.model)
    with pytest.raises(UserError, match="one matrix, and their vocabularies differ"):
        import_model(copy, copy / "run")


def test_arrays_of_objects_are_not_unpickled(copy):
    change_array(copy, "Wemb", np.array([object()], dtype=object))
    with pytest.raises(UserError, match="not a NumPy archive .*allow_pickle"):
        open_folder(copy)
