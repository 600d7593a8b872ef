"""Runs that start on a prepared text: what the recipe, the text's size and another run choose."""

import shutil

import pytest

from tests.toy_run import FEW, text_flags
from transformer_jax.commands.main import main
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.runs.folder import open_run

SMALL = [*FEW, "--config.train.steps=1"]


@pytest.fixture(scope="module")
def place(texts, toy_run):
    """With a trained run in `mine`."""
    shutil.copytree(toy_run, texts / "mine")
    return texts


def test_the_commands_of_the_page(place):
    """`from_files` names a vocabulary, and chooses another one by the size of the text."""
    folder, large = place / "by_pairs", place / "large"
    large.mkdir()
    for language, lines in zip(("en", "de"), zip(*generate(6, 3000), strict=True), strict=True):
        (large / f"train.{language}").write_text("".join(f"{line}\n" for line in lines))
    command = ["prepare", "--config=from_files", f"--output={folder}", "--shards=1"]
    command += text_flags(large)
    assert main(command) == 0
    small = ["--config.model.d_model=16", "--config.model.d_ff=16", "--config.model.num_heads=2"]
    small += [f"--config.model.{stack}.num_layers=1" for stack in ("encoder", "decoder")]
    small += ["--config.decode.method=greedy"]
    train = ["train", "--config=from_files", f"--config.data.prepared={folder}"]
    assert main([*train, f"--workdir={place / 'news'}", *SMALL, *small]) == 0
    assert open_run(place / "news").model.target_vocab_size < 8000


def test_another_run_goes_on_with_it(place, refused):
    """It is prepared with the tokenizer of `mine`."""
    folder, moved = place / "there", place / "elsewhere"
    prepare = ["prepare", "--config=finetune", f"--config.train.init_from={place / 'mine'}"]
    held_out = "--config.data.validation_from_train=20"
    assert main([*prepare, f"--output={folder}", *text_flags(place), held_out, "--shards=1"]) == 0
    train = ["train", "--config=finetune", f"--config.train.init_from={place / 'mine'}", *SMALL]
    train += [f"--config.data.prepared={folder}", held_out]
    assert main([*train, f"--workdir={place / 'tuned'}"]) == 0
    mine, tuned = (open_run(place / name) for name in ("mine", "tuned"))
    assert not tuned.tokenizers().differ_in(mine.tokenizers())
    assert tuned.config.data.parts[0].source != mine.config.data.parts[0].source

    model = place / "mine" / "tokenizer" / "joint.model"
    other = place / "other.model"
    shutil.copyfile(model, other)
    with other.open("ab") as file:
        file.write(b"\0")
    named = f"--config.tokenizer.source_model={other}"
    line = refused([*train, f"--workdir={place / 'refused'}", named])
    assert f"tokenizer.source_model={other}" in line and "with another model" in line

    # It continues where its text was moved, and with it the text's tokenizer, which is its own.
    shutil.move(folder, moved)
    assert main([*train, f"--workdir={place / 'tuned'}", f"--config.data.prepared={moved}"]) == 0
