"""`transformer-jax import`, and the run folder it makes in the other commands."""

import json
import shutil
from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor

from tests.formats.published import write_opus_mt
from tests.oracles import need
from tests.pages import commands
from tests.toy_run import FEW
from transformer_jax.commands.main import main
from transformer_jax.formats import run_folder
from transformer_jax.formats.import_model import import_model
from transformer_jax.models.api import num_params
from transformer_jax.runs.folder import open_run

need("torch")
need("transformers")

#: For `train`; without a validation set nothing is translated.
FEW_STEPS = [
    *FEW,
    "--config.data.cache_dir=cache",
    "--config.data.validation_from_train=none",
    "--config.train.early_stopping=none",
    "--config.train.steps=8",
    "--config.train.schedule=constant(learning_rate=0.01,warmup_steps=1)",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("marian") / "folder"
    write_opus_mt(path)
    return path


def test_an_imported_model_is_a_run(folder, tmp_path, command):
    run = tmp_path / "run"
    assert command("import", f"--from={folder}", f"--workdir={run}")[:2] == (0, f"{run}\n")
    opened = open_run(run)
    data = opened.config.data
    assert (data.source_language, data.target_language) == ("en", "de")
    assert opened.config.decode.method.beam_size == 4
    (want,) = opened.translator().translate(["the dog"])
    found = command("translate", f"--workdir={run}", stdin=b"the dog\n\n")[1]
    assert found == f"{want}\n\n"
    (score,) = opened.translator().score(["the dog"], ["the dog"])
    found = command("score", f"--workdir={run}", stdin=b"the dog\tthe dog\n")[1]
    assert float(found) == pytest.approx(score, rel=1e-4)
    english, german = (str(tmp_path / f"v.{side}") for side in ("en", "de"))
    for name in (english, german):
        Path(name).write_text("the dog\nan old man\n")
    files = [f"--source={english}", f"--reference={german}"]
    assert "BLEU" in command("eval", f"--workdir={run}", *files)[1]
    assert "no test set in the config of this run" in command("eval", f"--workdir={run}")[2]
    plan = ["train", "--config=finetune", f"--config.train.init_from={run}", "--plan"]
    printed = command(*plan, "--plan_no_search", "--plan_length=8")[1]
    assert f"parameters              {num_params(opened.config.model):,};" in printed


def test_the_session_of_the_readme(folder, tmp_path, monkeypatch):
    """A folder is imported, fine-tuned and exported, and CTranslate2 translates with it."""
    shutil.copytree(folder, tmp_path / "opus-mt-en-de")
    monkeypatch.chdir(tmp_path)
    for side in ("en", "de"):
        Path(f"train.{side}").write_text("the dog sees a cat\nan old man\n" * 20)
    session = [
        words
        for words in commands("README.md")
        if any(name in word for word in words for name in ("runs/opus", "runs/tuned"))
    ]
    assert [words[0] for words in session] == ["import", "train", "export"]
    for words in session:
        assert main([*words, *(FEW_STEPS if words[0] == "train" else [])]) == 0
    pair = ["the dog sees a cat"], ["the dog sees a cat"]
    runs = (open_run(name) for name in ("runs/opus", "runs/tuned"))
    before, after = (run.translator().score(*pair)[0] for run in runs)
    assert after > before + 1
    model = need("ctranslate2").Translator("exported")
    pieces = SentencePieceProcessor(model_file="exported/source.model")
    (result,) = model.translate_batch([pieces.encode("the dog", out_type=str)])
    assert result.hypotheses


def test_what_is_left_of_an_interrupted_import_may_be_deleted(
    folder, tmp_path, monkeypatch, refused
):
    run = tmp_path / "run"

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(run_folder, "write_whole", killed)
        import_model(folder, run)
    line = refused(["import", f"--from={folder}", f"--workdir={run}"])
    assert f"{run}: holds checkpoints but no config.json" in line
    assert "an import was interrupted; use another folder" in line
    shutil.rmtree(run)
    import_model(folder, run)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", {"model_type": "bloom"}, "model_type='bloom' cannot be expressed; only 'm"),
        ("config.json", {"normalize_before": True}, "normalize_before=True cannot be expressed"),
        ("config.json", {"activation_function": "mish"}, "activation_function='mish' cannot be"),
        ("config.json", {"encoder_ffn_dim": 64}, "decoder_ffn_dim=32 cannot be expressed; only 64"),
        ("config.json", {"d_model": "16"}, "d_model='16' is not of type int"),
        ("config.json", {"vocab_size": 5}, "has ids up to"),
        ("config.json", {"pad_token_id": None}, "pad_token_id is missing"),
        ("config.json", None, "config.json: cannot be read (No such file or directory)"),
        ("config.json", b"{", "config.json: not valid JSON"),
        ("model.safetensors", b"abc", "model.safetensors: not a safetensors file"),
        ("source.spm", None, "source.spm is missing, the SentencePiece model"),
        ("target.spm", b"abc", "target.spm is not a SentencePiece model"),
        ("vocab.json", b'{"a": "b"}', "vocab.json: missing, or not the ids of pieces"),
        ("vocab.json", b'{"a": 1}', "vocab.json: has no piece <unk>"),
        ("generation_config.json", b'{"num_beams": 0}', "num_beams=0 must be above 0"),
        ("generation_config.json", b'{"bad_words_ids": [[7, 8]]}', "bad_words_ids=[[7, 8]]: only"),
    ],
)
def test_what_is_damaged_or_cannot_be_expressed_is_refused(
    folder, tmp_path, refused, name, content, message
):
    """A dict holds other values of keys."""
    changed = shutil.copytree(folder, tmp_path / "folder")
    if isinstance(content, dict):
        content = json.dumps(json.loads((folder / name).read_text()) | content).encode()
    (changed / name).unlink(missing_ok=True)
    if content is not None:
        (changed / name).write_bytes(content)
    assert message in refused(["import", f"--from={changed}", f"--workdir={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_not_there(tmp_path, refused):
    line = refused(["import", "--from=./opus/mt/en-de", f"--workdir={tmp_path / 'run'}"])
    assert line == "error: ./opus/mt/en-de: no such folder"
