"""Marian's own files, and what lies beside the weights of a model, are read or refused by name.

Bergamot's engine judges the model that they hold.
"""

import gzip
import json
import shutil

import numpy as np
import pytest

from tests.formats import exporter_suite as suite
from tests.formats.test_bergamot import FULL
from transformer_jax.commands.main import main
from transformer_jax.errors import UserError
from transformer_jax.formats.export import write
from transformer_jax.formats.family import Languages
from transformer_jax.formats.import_model import import_model, open_folder, read_model
from transformer_jax.formats.marian.bergamot import Bergamot
from transformer_jax.paths import as_path
from transformer_jax.translation.translator import Translator
from transformer_jax.weights.layout import ModelFolder
from transformer_jax.weights.marian_items import read_items, to_bytes
from transformer_jax.weights.sentencepiece_model import load_processor
from transformer_jax.weights.settings import Settings
from transformer_jax.weights.weights import Weights


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
def npz(tokenizers, tmp_path_factory):
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
def copy(npz, tmp_path):
    return shutil.copytree(npz, tmp_path / "copy")


def read(folder, *languages):
    return read_model(open_folder(folder), Languages(*languages))


def option(key, value):
    """Adds an option to those in the model's file."""

    def change(path):
        with np.load(path / "model.npz") as old:
            arrays = dict(old)
        text = arrays["special:model.yml"].tobytes().rstrip(b"\0") + f"{key}: {value}\n".encode()
        np.savez(path / "model.npz", **arrays | {"special:model.yml": np.frombuffer(text, np.int8)})

    return change


def array(name, value):
    """Another array; None: it is missing."""

    def change(path):
        with np.load(path / "model.npz") as old:
            arrays = {**old, name: value}
        kept = {key: each for key, each in arrays.items() if each is not None}
        np.savez(path / "model.npz", **kept)

    return change


def file(name, content):
    return lambda path: (path / name).write_bytes(content)


def test_pieces_that_are_values_in_yaml(copy):
    """Marian writes them without quotes."""
    plain = "on off no yes true null ~ 1.50 1_000 010 8 0x10 12:30 .inf 2001-01-01 << = +1"
    pieces = json.loads((copy / "opus.vocab.yml").read_text())
    renamed = dict(zip(pieces, plain.split(), strict=False))
    lines = [f"{renamed.get(p, json.dumps(p))}: {i}\n" for p, i in pieces.items()]
    (copy / "opus.vocab.yml").write_text("".join(lines))
    tokenizer = read(copy).tokenizers.target
    wanted = [renamed.get(piece, piece) for piece in pieces]
    order = [tokenizer.id_of(piece) for piece in wanted]
    assert None not in order and len(set(order)) == len(pieces)


YML = "special:model.yml"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (option("transformer-decoder-autoreg", "rnn"), "dec-cell='gru' .* expressed; only 'ssru'"),
        (option("transformer-decoder-dim-ffn", "64"), "dim-ffn=64 cannot be expressed; only 24"),
        (option("transformer-train-position-embeddings", "true"), "embeddings=True cannot"),
        (option("type", "s2s"), "type='s2s' cannot be expressed; only 'transformer'"),
        (option("enc-depth", "3"), "the tensor encoder_l3_self_Wq is missing"),
        (option("dim-emb", "8"), "has the shape .* follows from"),
        (option("tied-embeddings-all", "no\ntied-embeddings-src: no"), "encoder_Wemb is missing"),
        (array(YML, None), "has no special:model.yml, so it is not a model of Marian"),
        (array(YML, np.frombuffer(b"!!python/object:os.x {}", np.int8)), "not valid YAML"),
        (array(YML, np.frombuffer(b"[1]", np.int8)), "not a mapping in YAML"),
        (array("Wemb", None), "the tensor Wemb is missing"),
        (array("encoder_l1_more", np.zeros((1, 2))), "reads the tensors encoder_l1_more"),
        (array("Wemb", np.array([object()])), "not a NumPy archive .*allow_pickle"),
        (file("model.npz", b"abc"), "not a NumPy archive"),
        (file("a.src.vocab.yml", b"a: 0\n"), "expected one vocabulary, .*; found 2"),
        (file("opus.vocab.yml", b"a: 0\nb: 2\n"), "number its pieces from 0 without a gap"),
        (file("second.npz", b"abc"), "holds several models"),
        (file("decoder.yml", b"beam-size: many\n"), "beam-size='many' is not of type int"),
    ],
)
def test_damaged_and_other_models_are_refused(copy, refuses, change, message):
    change(copy)
    refuses(copy, message)


def test_two_vocabularies_of_one_matrix_are_refused(copy, refuses, two):
    (copy / "opus.vocab.yml").unlink()
    (copy / "target.spm").write_bytes(two.target.model)
    refuses(copy, "one matrix, and their vocabularies differ")


def test_other_files_of_bergamot_are_no_models(folder):
    (folder / "qualityModel.enpt.bin").write_bytes(b"?")
    (folder / "lex.50.50.enpt.s2t.bin").write_bytes(b"?")
    assert read(folder).model.cross.alignment_head == 0  # that which Marian guides and reads


@pytest.mark.parametrize(
    ("about", "vocabulary", "want"),
    [
        ({}, "vocab.spm", (None, None)),
        ({}, "vocab.enpt.spm", ("en", "pt")),
        ({"shortName": "en-pt-tiny", "src": "English"}, "vocab.spm", ("en", "pt")),
        ({"srcTags": {"pt-BR": "pt"}, "trgTag": "de"}, "vocab.enpt.spm", ("pt-BR", "de")),
        ({"srcTags": {"und": "und"}, "trgTag": "und"}, "vocab.spm", (None, None)),
        ({"shortName": "und-und-tiny"}, "vocab.spm", (None, None)),
    ],
)
def test_languages_are_those_of_the_files(about, vocabulary, want, folder):
    (folder / "vocab.spm").rename(folder / vocabulary)
    (folder / "model_info.json").write_text(json.dumps(about))
    assert read(folder).languages == want
    assert read(folder, "xx").languages == ("xx", want[1])


def test_a_run_without_languages_says_what_to_do(folder, tmp_path, capsys):
    (folder / "model_info.json").unlink()
    run = tmp_path / "run"
    assert main(["import", f"--from={folder}", f"--workdir={run}"]) == 0
    flags = "--source_language=CODE --target_language=CODE"
    assert f"no file names the languages: {flags}" in capsys.readouterr().err
    assert main(["serve", f"--workdir={run}"]) != 0
    assert flags in capsys.readouterr().err


def test_the_search_beside_a_model_is_taken(folder):
    (folder / "model.bin.decoder.yml").write_text("beam-size: 3\nmax-length-factor: 2.5\n")
    generation = open_folder(folder).generation
    assert generation.number("num_beams") == 3
    assert generation.get("max_length_factor", float) == 2.5
    (folder / "model.bin.decoder.yml").write_text("word-penalty: 0.5\n")
    with pytest.raises(UserError, match="word-penalty=0.5 cannot be expressed"):
        open_folder(folder)


def test_a_vocabulary_of_one_piece_a_line(folder, refuses, student_folder):
    spm = (folder / "vocab.spm").read_bytes()
    processor = load_processor(spm, "")
    pieces = [processor.id_to_piece(i) for i in range(processor.vocab_size())]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    for side in ("source.spm", "target.spm"):
        (folder / side).write_bytes(spm)
    (folder / "vocab.spm").unlink()
    one, other = (read(each).tokenizers.target for each in (folder, student_folder))
    found, want = (each.pieces(each.encode("The dog sleeps.")) for each in (one, other))
    assert found == want
    (folder / "source.spm").write_bytes(b"damaged")
    refuses(folder, r"source\.spm is not a SentencePiece model")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(value, folder, refuses):
    items = read_items(folder / "model.bin")
    items["encoder_l1_ffn_W1"] = np.array(items["encoder_l1_ffn_W1"])
    items["encoder_l1_ffn_W1"][0, 1] = value
    (folder / "model.bin").write_bytes(to_bytes(items))
    refuses(folder, r"model\.bin: 1 of \d+ .* encoder_l1_ffn_W1 are")


def test_what_stands_for_a_file_is_named(folder, refuses):
    pointer = "version https://git-lfs/spec/v1\noid sha256:0\nsize 1\n"
    (folder / "model.bin").write_text(pointer)
    refuses(folder, r"model\.bin: a pointer of Git LFS")
    (folder / "model.bin").unlink()
    (folder / "model.bin.gz").write_bytes(gzip.compress(b"?"))
    refuses(folder, r"model\.bin\.gz: is compressed: unpack it")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("added_tokens.json", {"<brand>": 102, "<pad>": 0}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"102": {"content": "<brand>"}}}),
        ("tokenizer.json", {"added_tokens": [{"content": "<brand>", "id": 102}]}),
    ],
)
def test_added_tokens_are_refused(name, content, tmp_path):
    nothing = Settings("", {})
    folder = ModelFolder(tmp_path, nothing, nothing, Weights("", {}))
    folder.check_added({"<pad>": 0})
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(UserError, match="has added tokens, which cannot be expressed: <brand>$"):
        folder.check_added({"<pad>": 0})
    folder.check_added({"<pad>": 0, "<brand>": 102})
