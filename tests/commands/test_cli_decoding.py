"""eval, translate and score on the command line, over a run folder with an untrained model."""

import errno
import json
import os
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import transformer_jax as tj
from tests.untrained import untrained_run
from transformer_jax.paths import as_path
from transformer_jax.runs import evaluation

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
    expected = tj.open_run(folder).translator().translate(lines)
    assert (status, out) == (0, "".join(f"{each}\n" for each in expected))
    # Other line ends than LF and CR LF belong to the text; nothing in, nothing out.
    two = "the dog\u2028sees\r\na cat\n".encode()
    assert command("translate", f"--workdir={folder}", stdin=two)[1].count("\n") == 2
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


def test_several_runs_translate_together(folder, text, tmp_path, command):
    """The other has another architecture, and the vocabulary of the first."""
    run, folders = tj.open_run(folder), [folder, tmp_path / "other"]
    options = {"d_model": 8, "decoder": tj.StackConfig(num_layers=2), "max_length": 32}
    data, decode = run.config.data, run.config.decode
    untrained_run(folders[1], run.tokenizers(), data, decode, seed=1, **options)
    one, other = (f"--workdir={each}" for each in folders)
    for mean in ("log_probs", "probs"):
        flags = [one, other, f"--ensemble_mean={mean}"]
        score = float(command("score", *flags, stdin=b"the dog\ta cat\n")[1])
        together = tj.open_ensemble(folders, mean=mean).translator()
        assert score == pytest.approx(together.score(["the dog"], ["a cat"])[0], abs=1e-4)

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
    flags = [f"--workdir={folder}", "--target_prefix=his book"]
    first, empty, last = command("translate", *flags, stdin=b"the dog\n\na cat\n")[1].splitlines()
    assert first.startswith("his book") and empty == "" and last.startswith("his book")
    # Given the prefix, the rest is more probable than all of it.
    given = command("score", *flags, stdin=b"the dog\tsees\n")[1]
    whole = command("score", f"--workdir={folder}", stdin=b"the dog\this book sees\n")[1]
    assert float(whole) < float(given) < 0


def test_score_agrees_with_the_library(folder, text, command):
    sources, targets = (
        (text / f"test.{language}").read_text().splitlines() for language in ("en", "de")
    )
    scored = tj.open_run(folder).translator().score_pairs(sources, targets)
    tsv = "".join(f"{s}\t{t}\n" for s, t in zip(sources, targets, strict=True)).encode()
    status, out, _ = command("score", f"--workdir={folder}", stdin=tsv)
    assert status == 0
    np.testing.assert_allclose([float(line) for line in out.split()], scored.log_probs, atol=1e-4)
    files = [f"--source={text / 'test.en'}", f"--target={text / 'test.de'}"]
    assert command("score", f"--workdir={folder}", *files)[1] == out
    per_token = command("score", f"--workdir={folder}", *files, "--per_token")[1].split()
    means = scored.log_probs / scored.num_tokens
    np.testing.assert_allclose([float(line) for line in per_token], means, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "stdin", "message"),
    [
        ("eval --source={text}/test.en", b"", "--source and --reference belong together"),
        ("eval --split=test --source=a --reference=b", b"", "not allowed with argument --split"),
        ("eval --source={text}/test.en --reference={text}/short", b"", "12 lines and {text}/short"),
        ("eval --baseline={text}/short", b"", "has 2 lines, but test has 12"),
        ("eval --source={text}/none --reference={text}/none", b"", "no such file"),
        ("eval --split=validation", b"", "no validation set"),
        ("eval --checkpoint=77", b"", "checkpoint=77: not kept here; there are steps 0"),
        ("eval --checkpoint=average:9", b"", "only 1 checkpoints are kept"),
        ("eval --workdir={text}", b"", "no run here"),
        ("translate", b"fine\n\xff\n", "standard input:2: not UTF-8 (byte 0xff at column 1)"),
        ("translate --n_best=2", b"", "greedy decoding finds one"),
        ("translate --alignments --n_best=2", b"", "not allowed with argument --alignments"),
        ("translate --alignments --documents", b"", "not allowed with argument --alignments"),
        ("score --alignments --per_token", b"", "not allowed with argument --alignments"),
        ("score", b"a\tb\nno tab\n", "standard input:2: expected source TAB target, got 0 tabs"),
        ("score --source={text}/test.en", b"", "--source and --target belong together"),
        ("score --source={text}/test.en --target={text}/short", b"", "12 lines and {text}/short"),
        ("contrast --input={text}/none.tsv", b"", "none.tsv: cannot be read"),
        ("contrast --input={text}/short.tsv", b"", "short.tsv:1: expected source TAB right TAB"),
        ("contrast --input=a.tsv --context=2", b"", "--documents and --context belong together"),
        ("contrast --input=a.tsv --documents=d --context=2", b"", "--documents is for a set"),
        ("contrast --input=a.json --documents=d --context=0", b"", "--context: 0: must be at"),
        ("eval --workdir={text}/untrained", b"", "no checkpoint"),
        ("inspect dog --output=heat.jpg", b"", "--output=heat.jpg: the picture is a PNG"),
    ],
)
def test_bad_input_gets_one_line(folder, text, command, arguments, stdin, message):
    for name in ("short", "short.tsv"):
        (text / name).write_text("one\ntwo\n")
    (text / "untrained").mkdir(exist_ok=True)
    shutil.copy(folder / "config.json", text / "untrained")
    name, *flags = arguments.format(text=text).split()
    workdir = [] if "--workdir" in arguments else [f"--workdir={folder}"]
    status, out, err = command(name, *workdir, *flags, stdin=stdin)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message.format(text=text) in err


def test_inspect_draws_a_sentence(folder, tmp_path, command):
    picture = tmp_path / "maps" / "heat.png"
    words = ["the old dog", "a cat sees", f"--output={picture}"]
    assert command("inspect", f"--workdir={folder}", *words) == (0, f"{picture}\n", "")
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "has no metrics and no validation set"),
        (["--effective"], "--effective is of one sentence"),
        (["the dog " * 40, "a cat"], "the source has .* the model takes only 32"),
        (["a cat", "the dog " * 40], "the target has .* the model takes only 32"),
    ],
)
def test_inspect_says_what_is_wrong(folder, command, words, message):
    status, out, err = command("inspect", f"--workdir={folder}", *words)
    assert (status, out) == (2, "")
    assert re.search(message, err)


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


def test_contrast_prints_a_table_and_what_was_cut(folder, command, tmp_path):
    file = tmp_path / "items.tsv"
    file.write_text(f"{'the ' * 40}\ta cat\ta dog\nthe dog\ta cat\tsees\todd\n")
    status, table, error = command("contrast", f"--workdir={folder}", f"--input={file}")
    assert status == 0 and "note: 2 pairs were longer than the limit" in error
    assert [line.split()[0] for line in table.splitlines()] == ["category", "(none)", "odd", "all"]


def test_alignments_are_those_of_the_library(folder, command):
    translator, lines = tj.open_run(folder).translator(), [*sentences(3, 5), ""]
    text = "".join(line + "\n" for line in lines).encode()
    best = [found[0] for found in translator.n_best(lines, 1)]
    links = translator.align(lines, [each.tokens for each in best])
    shown = [" ".join(f"{i}-{j}" for i, j in each) for each in links]
    status, out, _ = command("translate", f"--workdir={folder}", "--alignments", stdin=text)
    expected = [f"{each.text} ||| {one}" for each, one in zip(best, shown, strict=True)]
    assert out.split("\n")[:-1] == expected
    rows = "".join(f"{line}\t{line}\n" for line in lines).encode()
    status, out, _ = command("score", f"--workdir={folder}", "--alignments", stdin=rows)
    given = translator.align(lines, lines)
    assert out.split("\n")[:-1] == [" ".join(f"{i}-{j}" for i, j in each) for each in given]
