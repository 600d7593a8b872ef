"""eval, translate and score on the command line, over a run folder with an untrained model."""

import errno
import io
import json
import os
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import transformer_jax as tj
from tests.untrained import untrained_run
from transformer_jax.commands.main import main
from transformer_jax.paths import as_path
from transformer_jax.runs import evaluation
from transformer_jax.viewing import attention, plots

TEXT = "the dog sees a cat and the old man reads his long book here today"


def sentences(seed: int, count: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(TEXT.split(), size=rng.integers(2, 9))) for _ in range(count)]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A folder with test.en and test.de."""
    text = tmp_path_factory.mktemp("text")
    sources, references = sentences(0, 12), sentences(1, 12)
    for name, lines in {"test.en": sources, "test.de": references}.items():
        (text / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return text


@pytest.fixture(scope="module")
def folder(text, tmp_path_factory):
    """A run folder."""
    folder = tmp_path_factory.mktemp("run")
    files = {"test_source": (str(text / "test.en"),), "test_target": (str(text / "test.de"),)}
    tokenizer = tj.TokenizerConfig(vocab_size=34, byte_fallback=False)
    tokenizers = tj.train_tokenizers(
        tokenizer, zip(sentences(0, 12), sentences(1, 12), strict=True)
    )
    source = tj.Files(train_source=("unused.en",), train_target=("unused.de",), **files)
    data = tj.DataConfig(source, "en", "de")
    decode = tj.DecodeConfig(method=tj.Greedy(), batch_size=4, max_length_factor=1.0)
    untrained_run(folder, tokenizers, data, decode, max_length=32)
    return folder


@pytest.fixture
def command(monkeypatch, capsysbinary):
    """command(*arguments, stdin) -> exit status, standard output, standard error."""

    def command(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = main([str(argument) for argument in arguments])
        captured = capsysbinary.readouterr()
        return status, captured.out.decode(), captured.err.decode()

    return command


def test_eval_prints_one_json_object_alone(folder, text, command):
    status, out, _ = command("eval", f"--workdir={folder}", "--json", "--ter")
    assert status == 0
    report = json.loads(out)
    assert report["direction"] == "en-de"
    assert (report["num_sentences"], report["num_cut"]) == (12, 0)
    assert report["sentences_per_second"] > 0
    assert set(report["scores"]) == {"bleu", "chrf", "ter"}
    for score in report["scores"].values():
        assert "version:" in score["signature"]
    assert json.loads((folder / "scores.json").read_text())["test.best"] == report
    translations = (folder / "translations" / "test.best.txt").read_text().split("\n")
    assert len(translations) == 13

    # The same sentences from files, with the translations themselves as the baseline.
    files = [f"--source={text / 'test.en'}", f"--reference={text / 'test.de'}", "--checkpoint=0"]
    baseline = f"--baseline={folder / 'translations' / 'test.best.txt'}"
    status, out, _ = command("eval", f"--workdir={folder}", *files, baseline, "--lowercase")
    assert status == 0
    assert all(words in out for words in ("against", "chrF2++", "BLEU-lc"))
    scores = json.loads((folder / "scores.json").read_text())
    assert set(scores) == {"test.best", "test.en.0"}
    assert scores["test.en.0"]["scores"]["bleu"] == report["scores"]["bleu"]
    baseline = scores["test.en.0"]["baseline"]["bleu"]
    assert baseline["baseline_score"] == report["scores"]["bleu"]["score"]


def test_a_baseline_and_a_set_from_files_overwrite_no_other_scores(folder, text, command, tmp_path):
    other, files = tmp_path / "other", tmp_path / "validation"
    shutil.copytree(folder, other)
    (other / "scores.json").write_text('{"test.best": 1}')
    files.write_bytes((text / "test.en").read_bytes())
    before = {path: path.read_bytes() for path in other.rglob("*") if path.is_file()}
    given = [f"--source={files}", f"--reference={text / 'test.de'}", f"--baseline={other}"]
    status, out, _ = command("eval", f"--workdir={folder}", *given)
    assert status == 0 and "p = 1.0000" in out  # the same model
    assert {path: path.read_bytes() for path in before} == before
    scores = json.loads((folder / "scores.json").read_text())
    assert "file-validation.best" in scores and "validation.best" not in scores


def test_int8_weights_in_translate_score_and_eval(folder, command):
    lines = sentences(0, 12)
    translator = tj.open_run(folder).translator(weights="int8")
    want, flags = translator.translate(lines), (f"--workdir={folder}", "--weights=int8")
    assert command("translate", *flags, stdin="\n".join(lines).encode())[1].split("\n")[:-1] == want
    pairs = "".join(f"{line}\t{line}\n" for line in lines).encode()
    scores = [float(line) for line in command("score", *flags, stdin=pairs)[1].split()]
    np.testing.assert_allclose(scores, translator.score(lines, lines), atol=1e-4)
    assert json.loads(command("eval", *flags, "--json")[1])["decode"]["weights"] == "int8"


def test_translate_keeps_lines_in_order(folder, command):
    lines = sentences(0, 12)
    lines[2] = lines[9] = ""
    stdin = "\n".join(lines).encode()  # without a last line end
    status, out, _ = command("translate", f"--workdir={folder}", stdin=stdin)
    assert status == 0
    assert out.endswith("\n")
    translations = out[:-1].split("\n")
    assert len(translations) == 12
    assert translations[2] == translations[9] == ""
    command("eval", f"--workdir={folder}")
    expected = (folder / "translations" / "test.best.txt").read_text().split("\n")
    for number in (0, 1, 3, 11):
        assert translations[number] == expected[number]
    # Other line ends than LF and CR LF belong to the text; nothing in, nothing out.
    status, out, _ = command(
        "translate", f"--workdir={folder}", stdin="the dog\u2028sees\r\na cat\n".encode()
    )
    assert out.count("\n") == 2
    assert command("translate", f"--workdir={folder}")[:2] == (0, "")


def test_translate_n_best_and_sampling(folder, command):
    arguments = ["translate", f"--workdir={folder}", "--n_best=3", "--method=beam"]
    status, out, _ = command(*arguments, stdin=b"the dog\n\na cat\n")
    assert status == 0
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[0] for row in rows] == ["1"] * 3 + ["2"] + ["3"] * 3
    assert rows[3] == ["2", "0.000000", "0.000000", ""]
    scores = [float(row[1]) for row in rows[:3]]
    assert scores == sorted(scores, reverse=True)

    sample = ["translate", f"--workdir={folder}", "--method=sample(top_k=5)"]
    stdin = "\n".join(sentences(4, 6)).encode()
    first = command(*sample, "--method.seed=1", stdin=stdin)
    assert command(*sample, "--method.seed=1", "--batch_size=1", stdin=stdin) == first
    assert command(*sample, "--method.seed=2", stdin=stdin) != first


@pytest.fixture(scope="module")
def other_folder(folder, tmp_path_factory):
    """A run of another architecture with the vocabulary of the first."""
    other, run = tmp_path_factory.mktemp("runs") / "other", tj.open_run(folder)
    options = {"d_model": 8, "decoder": tj.StackConfig(num_layers=2), "max_length": 32}
    untrained_run(other, run.tokenizers(), run.config.data, run.config.decode, seed=1, **options)
    return other


def test_several_runs_translate_together(folder, text, other_folder, command):
    one, other = f"--workdir={folder}", f"--workdir={other_folder}"
    pairs = b"the dog\ta cat\n"
    scores = {
        name: float(command("score", *workdirs, stdin=pairs)[1])
        for name, workdirs in {
            "one": [one],
            "other": [other],
            "log_probs": [one, other],
            "probs": [one, other, "--ensemble_mean=probs"],
        }.items()
    }
    assert len(set(scores.values())) == 4
    # Jensen: the mean of probabilities is at least the geometric mean, which sums to at most 1.
    assert scores["probs"] >= (scores["one"] + scores["other"]) / 2
    assert scores["log_probs"] >= (scores["one"] + scores["other"]) / 2

    status, out, _ = command("eval", one, other, "--json")
    report = json.loads(out)
    assert (status, report["name"]) == (0, "test.best+other")
    assert report["checkpoint"] == "step-0+other:step-0"
    assert (folder / "translations" / "test.best+other.txt").is_file()
    assert json.loads((folder / "scores.json").read_text())["test.best+other"] == report
    # `translate` opens the same ensemble: it finds what `eval` has written.
    sources = (text / "test.en").read_bytes()
    status, out, _ = command("translate", one, other, stdin=sources)
    assert (status, out) == (0, (folder / "translations" / "test.best+other.txt").read_text())


def test_translate_and_score_with_a_prefix(folder, command):
    stdin = b"the dog\n\na cat\n"
    prefix = "--target_prefix=his book"
    status, out, _ = command("translate", f"--workdir={folder}", prefix, stdin=stdin)
    assert status == 0
    lines = out.splitlines()
    assert lines[0].startswith("his book") and lines[1] == "" and lines[2].startswith("his book")
    # Given the prefix, the rest is more probable than all of it.
    given = command("score", f"--workdir={folder}", prefix, stdin=b"the dog\tsees\n")[1]
    whole = command("score", f"--workdir={folder}", stdin=b"the dog\this book sees\n")[1]
    assert float(whole) < float(given) < 0
    status, _, err = command(
        "translate", f"--workdir={folder}", f"--target_prefix={'the ' * 40}", stdin=stdin
    )
    assert status == 2
    assert "target_prefix of sentence 1: 40 pieces, at most 31 fit" in err


def test_score_agrees_with_translate(folder, command, tmp_path):
    sources, targets = sentences(5, 6), sentences(6, 6)
    tsv = "".join(f"{s}\t{t}\n" for s, t in zip(sources, targets, strict=True)).encode()
    status, out, _ = command("score", f"--workdir={folder}", stdin=tsv)
    assert status == 0
    values = [float(line) for line in out.splitlines()]
    assert len(values) == 6
    assert all(value < 0 for value in values)
    for name, lines in {"s": sources, "t": targets}.items():
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    files = [f"--source={tmp_path / 's'}", f"--target={tmp_path / 't'}"]
    assert command("score", f"--workdir={folder}", *files)[1] == out
    per_token = command("score", f"--workdir={folder}", *files, "--per_token")[1]
    assert all(
        value < float(line) < 0 for value, line in zip(values, per_token.split(), strict=True)
    )


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        ("eval --source={text}/test.en", b"", "--source and --reference belong together"),
        ("eval --split=test --source=a --reference=b", b"", "not both"),
        ("eval --source={text}/test.en --reference={text}/short", b"", "12 lines and {text}/short"),
        ("eval --baseline={text}/short", b"", "has 2 lines, but test has 12"),
        ("eval --source={text}/none --reference={text}/none", b"", "no such file"),
        ("eval --split=validation", b"", "no validation set"),
        ("eval --checkpoint=77", b"", "checkpoint=77: not kept here; there are steps 0"),
        ("eval --checkpoint=average:9", b"", "only 1 checkpoints are kept"),
        ("eval --workdir={text}", b"", "no run here"),
        ("translate", b"fine\n\xff\n", "standard input:2: not UTF-8 (byte 0xff at column 1)"),
        ("translate --n_best=2", b"", "greedy decoding finds one"),
        ("translate --alignments --n_best=2", b"", "--alignments and --n_best"),
        ("translate --alignments --documents", b"", "--alignments and --documents"),
        ("score --alignments --per_token", b"", "--alignments and --per_token"),
        ("score", b"a\tb\nno tab\n", "standard input:2: expected source TAB target, got 0 tabs"),
        ("score --source={text}/test.en", b"", "--source and --target belong together"),
        ("score --source={text}/test.en --target={text}/short", b"", "12 lines and {text}/short"),
        ("contrast --input={text}/none.tsv", b"", "none.tsv: cannot be read"),
        ("contrast --input={text}/short.tsv", b"", "short.tsv:1: expected source TAB right TAB"),
        ("contrast --input=a.tsv --context=2", b"", "--documents and --context belong together"),
        ("contrast --input=a.tsv --documents=d --context=2", b"", "--documents is for a set"),
        (
            "contrast --input=a.json --documents=d --context=0",
            b"",
            "--context: 0: must be at least",
        ),
    ],
)
def test_bad_input_gets_one_line(folder, text, command, arguments, stdin, message):
    for name in ("short", "short.tsv"):
        (text / name).write_text("one\ntwo\n")
    name, *flags = arguments.format(text=text).split()
    status, out, err = command(name, f"--workdir={folder}", *flags, stdin=stdin)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message.format(text=text) in err


def test_eval_without_a_checkpoint(folder, command, tmp_path):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    status, _, err = command("eval", f"--workdir={tmp_path}")
    assert status == 2
    assert "no checkpoint" in err


def test_inspect_draws_every_layer_and_head(folder, tmp_path, monkeypatch, command):
    picture = tmp_path / "maps" / "heat.png"
    titles = []

    def plot(*args):
        titles.append(args[-1])
        return plots.plot_attention(*args)

    monkeypatch.setattr(attention, "plot_attention", plot)
    words = [f"--workdir={folder}", "the old dog", "a cat sees", f"--output={picture}"]
    status, out, err = command("inspect", *words)
    assert (status, out.strip(), err) == (0, str(picture), "")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert titles == ["the old dog\na cat sees"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "has no metrics and no validation set"),
        (["--effective"], "--effective is of one sentence"),
        (["the dog", "--output=heat.jpg"], "--output=heat.jpg: the picture is a PNG"),
        (["the dog " * 40, "a cat"], "the source has .* the model takes only 32"),
        (["the dog", "a cat " * 40], "the target has .* the model takes only 32"),
    ],
)
def test_inspect_says_what_is_wrong(folder, command, more, words):
    status, out, err = command("inspect", f"--workdir={folder}", *more)
    assert (status, out) == (2, "")
    assert re.search(words, err)


def test_a_full_disk_leaves_the_old_translations_and_scores(folder, command, monkeypatch):
    assert command("eval", f"--workdir={folder}")[0] == 0
    files = [folder / "translations" / "test.best.txt", folder / "scores.json"]
    before = [path.read_bytes() for path in files]

    def full(self, *args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr(type(as_path(folder)), "write_bytes", full)
    status, _, error = command("eval", f"--workdir={folder}")
    assert status == 2
    assert error.strip().splitlines()[-1].startswith("error: cannot write ")
    assert os.strerror(errno.ENOSPC) in error and "Traceback" not in error
    assert [path.read_bytes() for path in files] == before
    assert not [p for p in (folder / "translations").iterdir() if p.name.startswith(".")]


def test_scores_of_evals_that_end_together_are_all_kept(tmp_path, monkeypatch):
    write = evaluation.write_whole

    def write_slowly(path, content):
        time.sleep(0.05)  # each has read what is there by then
        write(path, content)

    monkeypatch.setattr(evaluation, "write_whole", write_slowly)
    names = ["one", "two", "three"]
    run = tj.Run(as_path(tmp_path), tj.Config())
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: evaluation.add_to_scores(run, name, {}), names))
    assert set(run.scores()) == set(names)


def test_a_lost_tokenizer_is_read_from_the_checkpoint(folder, command, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(folder, copy)
    expected = command("translate", f"--workdir={copy}", stdin=b"the dog sees\n")[1]
    shutil.rmtree(copy / "tokenizer")
    status, out, error = command("translate", f"--workdir={copy}", stdin=b"the dog sees\n")
    assert (status, out) == (0, expected)
    assert "using the copy in" in error


def test_contrast_agrees_with_score(folder, command, tmp_path):
    lines = sentences(7, 30)
    rows = [lines[i : i + 3] for i in range(0, 30, 3)]
    rows = [row for row in rows if row[1] != row[2]]
    file = tmp_path / "items.tsv"
    file.write_text(
        "".join("\t".join([*row, "odd"][: 3 + i % 2]) + "\n" for i, row in enumerate(rows))
    )
    tsv = "".join(f"{s}\t{right}\n{s}\t{wrong}\n" for s, right, wrong in rows).encode()
    scores = [float(x) for x in command("score", f"--workdir={folder}", stdin=tsv)[1].split()]
    right = [one > other for one, other in zip(scores[::2], scores[1::2], strict=True)]
    status, out, _ = command("contrast", f"--workdir={folder}", f"--input={file}", "--json")
    assert status == 0
    report = json.loads(out)
    assert (report["right"], report["count"], report["num_cut"]) == (sum(right), len(rows), 0)
    assert report["categories"]["odd"]["right"] == sum(right[1::2])
    table = command("contrast", f"--workdir={folder}", f"--input={file}")[1]
    assert [line.split()[0] for line in table.splitlines()] == ["category", "(none)", "odd", "all"]


def test_contrast_says_what_was_cut(folder, command, tmp_path):
    (tmp_path / "long.tsv").write_text(f"{'the ' * 40}\ta cat\ta dog\n")
    flags = [f"--workdir={folder}", f"--input={tmp_path / 'long.tsv'}"]
    assert "note: 2 pairs were longer than the limit" in command("contrast", *flags)[2]


def test_alignments_are_those_of_the_library(folder, command):
    translator, lines = tj.open_run(folder).translator(), [*sentences(3, 5), ""]
    text = "".join(line + "\n" for line in lines).encode()
    best = [found[0] for found in translator.n_best(lines, 1)]
    links = translator.align(lines, [each.tokens for each in best])
    shown = [" ".join(f"{i}-{j}" for i, j in each) for each in links]
    status, out, _ = command("translate", f"--workdir={folder}", "--alignments", stdin=text)
    assert status == 0
    expected = [f"{each.text} ||| {one}" for each, one in zip(best, shown, strict=True)]
    assert out.split("\n")[:-1] == expected
    rows = "".join(f"{line}\t{line}\n" for line in lines).encode()
    status, out, _ = command("score", f"--workdir={folder}", "--alignments", stdin=rows)
    assert status == 0
    given = translator.align(lines, lines)
    assert out.split("\n")[:-1] == [" ".join(f"{i}-{j}" for i, j in each) for each in given]
