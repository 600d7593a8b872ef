"""What lies beside the weights of a published model is read, or refused by name."""

import gzip
import json

import numpy as np
import pytest

from transformer_jax.commands.main import main
from transformer_jax.errors import UserError
from transformer_jax.formats.family import Languages
from transformer_jax.formats.import_model import import_model, open_folder, read_model
from transformer_jax.weights.layout import ModelFolder
from transformer_jax.weights.marian_items import read_items, to_bytes
from transformer_jax.weights.sentencepiece_model import load_processor
from transformer_jax.weights.settings import Settings
from transformer_jax.weights.weights import Weights


def read(folder, languages=Languages()):  # noqa: B008
    return read_model(open_folder(folder), languages)


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
    assert read(folder, Languages("xx")).languages == ("xx", want[1])


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


def in_text(folder, name="vocab.txt"):
    """The folder with a vocabulary of Marian's form, one piece a line."""
    spm = (folder / "vocab.spm").read_bytes()
    processor = load_processor(spm, "")
    pieces = [processor.id_to_piece(i) for i in range(processor.vocab_size())]
    (folder / name).write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    for side in ("source.spm", "target.spm"):
        (folder / side).write_bytes(spm)
    (folder / "vocab.spm").unlink()


def test_a_vocabulary_of_one_piece_a_line(folder, student_folder):
    in_text(folder)
    one, other = (read(each).tokenizers.target for each in (folder, student_folder))
    found, want = (each.pieces(each.encode("The dog sleeps.")) for each in (one, other))
    assert found == want


def test_a_damaged_tokenizer_is_named(folder):
    in_text(folder)
    (folder / "source.spm").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"source\.spm is not a SentencePiece model"):
        read(folder)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(value, folder, tmp_path):
    items = read_items(folder / "model.bin")
    items["encoder_l1_ffn_W1"] = np.array(items["encoder_l1_ffn_W1"])
    items["encoder_l1_ffn_W1"][0, 1] = value
    (folder / "model.bin").write_bytes(to_bytes(items))
    with pytest.raises(UserError, match=r"model\.bin: 1 of \d+ .* encoder_l1_ffn_W1 are"):
        import_model(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_stands_for_a_file_is_named(folder, tmp_path):
    pointer = "version https://git-lfs/spec/v1\noid sha256:0\nsize 1\n"
    (folder / "model.bin").write_text(pointer)
    with pytest.raises(UserError, match=r"model\.bin: a pointer of Git LFS"):
        import_model(folder, tmp_path / "run")
    (folder / "model.bin").unlink()
    (folder / "model.bin.gz").write_bytes(gzip.compress(b"?"))
    with pytest.raises(UserError, match=r"model\.bin\.gz: is compressed: unpack it"):
        import_model(folder, tmp_path / "run")


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
