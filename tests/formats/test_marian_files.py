"""Marian's own files: what is missing, damaged or cannot be expressed."""

import json
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from tests.formats.published import marian_npz
from tests.oracles import need
from transformer_jax.errors import UserError
from transformer_jax.formats.family import Languages
from transformer_jax.formats.import_model import import_model, open_folder, read_model
from transformer_jax.positions.sinusoidal import sinusoids

need("torch")
need("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("npz")
    marian_npz(path)
    return path


@pytest.fixture
def copy(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def change_option(path, key, value):
    with np.load(path / "model.npz") as old:
        arrays = dict(old)
    text = arrays["special:model.yml"].tobytes().rstrip(b"\0").decode()
    arrays["special:model.yml"] = np.frombuffer(
        f"{text[:-1]}, '{key}': {value}}}".encode(), np.int8
    )
    np.savez(path / "model.npz", **arrays)


def change_array(path, name, value):
    with np.load(path / "model.npz") as old:
        arrays = {key: array for key, array in old.items() if key != name}
    np.savez(path / "model.npz", **arrays, **({} if value is None else {name: value}))


def test_the_search_of_decoder_yml_is_used(folder, tmp_path):
    method = import_model(folder, tmp_path / "run").config.decode.method
    assert (method.beam_size, method.length_penalty, method.length_penalty_form) == (6, 1, "power")


def test_positions_and_norms_are_those_of_marian(folder):
    """What Transformers computes instead of them differs."""
    model = read_model(open_folder(folder), Languages()).model
    assert model.norm.epsilon == 1e-6
    h = model.d_model // 2
    angles_LR = np.arange(60)[:, None] * np.exp(-np.arange(h) * np.log(10000.0) / (h - 1))
    wanted_LD = np.concatenate([np.sin(angles_LR), np.cos(angles_LR)], axis=1)
    for stack in (model.encoder, model.decoder):
        assert stack.position.first == 0
        found_LD = sinusoids(jnp.arange(60), model.d_model, stack.position.form)
        np.testing.assert_allclose(found_LD, wanted_LD, atol=1e-5)


def test_pieces_that_are_values_in_yaml(copy):
    """Marian writes them without quotes."""
    plain = "on off no yes true null ~ 1.50 1_000 010 8 0x10 12:30 .inf 2001-01-01 << = +1"
    pieces = json.loads((copy / "opus.vocab.yml").read_text())
    renamed = dict(zip(reversed(pieces), plain.split(), strict=False))
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
        ("transformer-decoder-autoreg", "average", "autoreg='average' cannot be expressed"),
        ("transformer-decoder-dim-ffn", "64", "decoder-dim-ffn=64 cannot be expressed; only 32"),
        ("transformer-preprocess", "n", "transformer-preprocess='n' cannot be expressed"),
        ("transformer-train-position-embeddings", "true", "position-embeddings=True cannot"),
        ("type", "s2s", "type='s2s' cannot be expressed; only 'transformer'"),
        ("transformer-ffn-activation", "tanh", "ffn-activation='tanh' cannot be expressed"),
        ("enc-depth", "3", "the tensor encoder_l3_self_Wq is missing"),
        ("dim-emb", "8", "has the shape .* follows from"),
        ("tied-embeddings-all", "false", "the tensor encoder_Wemb is missing"),
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
        ("special:model.yml", np.frombuffer(b"[1", np.int8), "not valid YAML"),
        ("special:model.yml", np.frombuffer(b"!!python/object:os.x {}", np.int8), "not valid YAML"),
        ("special:model.yml", np.frombuffer(b"[1]", np.int8), "not a mapping in YAML"),
        ("Wemb", None, "the tensor Wemb is missing"),
        ("encoder_l1_more", np.zeros((1, 2)), "reads the tensors encoder_l1_more"),
        ("decoder_ff_logit_out_W", np.zeros((2, 2)), "reads the tensors decoder_ff_logit_out_W"),
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
        ("opus.vocab.yml", None, "their vocabularies differ"),
        ("a.src.vocab.yml", b"a: 0\n", "expected one vocabulary, .*; found 2"),
        ("opus.vocab.yml", b"a: 0\nb: x\n", "does not number its pieces from 0 without a gap"),
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


def test_arrays_of_objects_are_not_unpickled(copy):
    change_array(copy, "Wemb", np.array([object()], dtype=object))
    with pytest.raises(UserError, match="not a NumPy archive .*allow_pickle"):
        open_folder(copy)
