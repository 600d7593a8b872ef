"""`translate --input --output`: a large text, in parts, that a second start continues."""

import json
import os
import re
from pathlib import Path

import jax
import pytest

import transformer_jax as tj
from tests.untrained import untrained_run
from transformer_jax import paths
from transformer_jax.commands import output_file, translate
from transformer_jax.commands.main import main, parse
from transformer_jax.data.sources.grammar.sentences import generate

LINES = 40


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of an untrained model, and a text with an empty and a long line."""
    folder = tmp_path_factory.mktemp("place")
    pairs = generate(3, 200)
    tokenizers = tj.train_tokenizers(tj.TokenizerConfig(vocab_size=350), pairs)
    data = tj.DataConfig(source_language="en", target_language="de")
    decode = tj.DecodeConfig(
        method=tj.Greedy(), batch_size=4, max_length_factor=0.2, max_length_offset=4
    )
    untrained_run(folder / "run", tokenizers, data, decode, max_length=48)
    texts = [source for source, _ in pairs[: LINES - 2]] + ["", "the dog " * 60]
    (folder / "in.en").write_text("".join(text + "\n" for text in texts))
    return folder


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translate, "_BATCHES_PER_CHUNK", 2)  # of 8 lines


def to_file(place: Path, output: Path, *more: str) -> list[str]:
    files = [f"--input={place / 'in.en'}", f"--output={output}"]
    return ["translate", f"--workdir={place / 'run'}", *files, *more]


def test_a_file_has_what_standard_output_has(place, tmp_path, command):
    status, _, error = command(*to_file(place, tmp_path / "out.de"))
    assert status == 0 and f"{LINES}/{LINES}" in error and "longer than" not in error
    stdin = (place / "in.en").read_bytes()
    out = command("translate", f"--workdir={place / 'run'}", stdin=stdin)[1]
    assert (tmp_path / "out.de").read_text() == out
    assert [path.name for path in tmp_path.iterdir()] == ["out.de"]


def test_a_line_is_cut_into_sentences_unless_it_is_one(place, tmp_path, capsys, refused):
    """Models of single sentences translate the beginning of a paragraph."""
    sentences = ["The dog sleeps.", "Anna sings."]
    one, each = tmp_path / "one", tmp_path / "each"
    one.write_text("  " + "  ".join(sentences) + "\n\n")
    each.write_text("".join(f"{sentence}\n" for sentence in sentences))

    def translated(text: Path, *flags: str) -> list[str]:
        files = [f"--input={text}", f"--output={tmp_path / 'out'}"]
        assert main(["translate", f"--workdir={place / 'run'}", *files, *flags]) == 0
        lines = (tmp_path / "out").read_text()
        (tmp_path / "out").unlink()
        return lines.split("\n")[:-1]

    alone = translated(each)
    assert translated(one) == translated(one, "--split_sentences") == ["  ".join(alone), ""]
    whole = translated(one, "--lines=whole")
    assert len(whole) == 2 and whole != ["  ".join(alone), ""]
    capsys.readouterr()
    assert len(translated(place / "in.en", "--n_best=1")) == LINES
    assert "note: 4 of 40 inputs were longer than --max_source_length" in capsys.readouterr().err
    command = ["translate", f"--workdir={place / 'run'}", "--lines=split", "--n_best=1"]
    assert "--lines=split excludes --n_best" in refused(command)


def test_scores_that_are_not_finite_end_with_status_1(place, tmp_path, monkeypatch, command):
    whole = tj.Run.params

    def damaged(self, *args):
        return jax.tree.map(lambda x: x * float("nan"), whole(self, *args))

    monkeypatch.setattr(tj.Run, "params", damaged)
    status, _, error = command(*to_file(place, tmp_path / "out.de"))
    # All but the line without text; four others are cut into two or more.
    count = int(re.search(r"the scores of (\d+) of \d+ inputs", error)[1])
    assert status == 1 and count > LINES
    files = [f"--source={place / 'in.en'}", f"--target={place / 'in.en'}"]
    status, _, error = command("score", f"--workdir={place / 'run'}", *files)
    assert status == 1 and "error: the scores of 40 of 40" in error


@pytest.mark.parametrize(
    "flags", [[], ["--n_best=2", "--method=beam(beam_size=2)"], ["--method=sample(seed=3)"]]
)
def test_a_start_that_was_stopped_is_continued(place, tmp_path, monkeypatch, flags):
    assert main(to_file(place, tmp_path / "whole", *flags)) == 0
    write, starts = translate.answer, []

    def answer(output, items, chunk_size, reply, total):
        starts.append(output.done)

        def stops(chunk, done):
            if done == 16 and len(starts) == 1:
                raise KeyboardInterrupt
            return reply(chunk, done)

        return write(output, items, chunk_size, stops, total)

    monkeypatch.setattr(translate, "answer", answer)
    with pytest.raises(KeyboardInterrupt):
        translate.run(parse(to_file(place, tmp_path / "out", *flags)))
    assert not (tmp_path / "out").exists()
    partial = tmp_path / "out.partial"
    assert json.loads((partial / "progress.json").read_text())["done"] == 16
    with open(partial / "lines", "ab") as file:  # as after a kill
        file.write(b"half a li")
    assert main(to_file(place, tmp_path / "out", *flags)) == 0
    assert starts == [0, 16]
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()
    assert not partial.exists()


def test_another_command_does_not_continue_it(place, tmp_path, monkeypatch, refused):
    def fails(output, items, chunk_size, reply, total):
        output.write(["x"], 8, {})
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(translate, "answer", fails)
        with pytest.raises(KeyboardInterrupt):
            translate.run(parse(to_file(place, tmp_path / "out")))
    before = (tmp_path / "out.partial" / "lines").read_bytes()
    line = refused(to_file(place, tmp_path / "out", "--repetition_penalty=2"))
    assert "out.partial: made with another model, other options" in line
    assert (tmp_path / "out.partial" / "lines").read_bytes() == before
    (tmp_path / "out.partial" / "progress.json").write_text("{")
    assert "progress.json: damaged: remove" in refused(to_file(place, tmp_path / "out"))


def test_a_power_loss_leaves_no_zeros_among_the_lines(tmp_path, monkeypatch):
    """Lines are on the disk before they are noted, and a file that is too short is refused."""
    done, sync, name = [], os.fsync, str(tmp_path / "out")
    monkeypatch.setattr(os, "fsync", lambda file: done.append("lines") or sync(file))
    monkeypatch.setattr(
        paths, "write_whole", lambda path, _: done.append(path.name) or path.write_bytes(_)
    )
    with pytest.raises(KeyboardInterrupt), output_file.output_file(name, "c") as file:
        file.write(["first line"], 1, {})
        raise KeyboardInterrupt
    assert done == ["lines", "progress.json"]
    os.truncate(f"{name}.partial/lines", 5)
    words = r"lines: cut short; remove .*out\.partial to begin again"
    with pytest.raises(tj.UserError, match=words), output_file.output_file(name, "c"):
        pass
    assert os.path.getsize(f"{name}.partial/lines") == 5


def test_mistakes_are_named(place, tmp_path, refused):
    (tmp_path / "out").write_text("mine")
    assert "the file exists; move it away" in refused(to_file(place, tmp_path / "out"))
    assert (tmp_path / "out").read_text() == "mine"
    os.mkfifo(tmp_path / "pipe")
    for words, message in (
        ([f"--input={tmp_path / 'pipe'}", f"--output={tmp_path / 'x'}"], "a pipe is read once"),
        ([f"--input={place / 'in.en'}"], "--input and --output belong together"),
        ([f"--output={tmp_path / 'x'}"], "--input and --output belong together"),
        ([f"--input={tmp_path / 'none'}", f"--output={tmp_path / 'x'}"], "none: cannot be read"),
    ):
        assert message in refused(["translate", f"--workdir={place / 'run'}", *words])
    assert not (tmp_path / "x").exists() and not (tmp_path / "x.partial").exists()
