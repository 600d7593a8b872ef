"""`distil --translations`: what is chosen of a text, and a student of it."""

import json

import numpy as np
import pytest

import transformer_jax as tj
from tests.commands.distil.test_distil import STUDENT
from transformer_jax.commands.distil import translations
from transformer_jax.commands.main import main
from transformer_jax.data.sources.files import read_scored
from transformer_jax.data.sources.grammar.sentences import generate

OPTIONS = {"most_words": 9, "least": None, "keep_all": False, "num_held_out": 0}


def chosen(rows, **options):
    return translations.choose(rows, ("en", "de"), **(OPTIONS | options))


def counts(table):
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {name: int(count) for name, count in lines if int(count)}


def test_each_row_is_counted_once():
    rows = [
        ("a dog", "ein Hund", 0.1),
        ("a cat", " ", 1.0),
        ("", "nichts", 1.0),
        ("Berlin", "Berlin ", 1.0),
        ("a cat", "eine " * 10, 1.0),
        ("go", "Gehen Sie bitte sofort weg, sonst kommt jemand", 0.0),
        ("a cat", "кошка", 1.0),
        ("a cat", "eine Katze", -3.0),
        ("a dog", "der Hund", 0.2),
        ("a dog ", "Hund", 0.2),
    ]
    use, table = chosen(rows, least=-1)
    assert use.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 1, 0]
    assert counts(table) == {
        "blank": 2,
        "identical": 1,
        "over-long": 2,
        "wrong script": 1,
        "score too low": 1,
        "another is better": 2,
        "trained on": 1,
    }
    assert chosen(rows, least=-1, keep_all=True).use.tolist() == [1, 0, 0, 0, 0, 0, 0, 0, 1, 1]


def test_the_held_out_sources_are_never_trained_on(monkeypatch):
    rows = [(f"source {i % 40}", f"Ziel {i}", float(i % 7)) for i in range(200)]
    wanted = chosen(rows, keep_all=True, num_held_out=5)
    monkeypatch.setattr(translations, "_CHUNK", 7)
    use, table = chosen(rows, keep_all=True, num_held_out=5)
    assert np.array_equal(use, wanted.use)
    sources = np.array([row[0] for row in rows])
    held_out = set(sources[use == 2])
    assert len(held_out) == (use == 2).sum() == 5
    assert not held_out & set(sources[use == 1]) and (use == 1).sum() == 175
    for place in np.flatnonzero(use == 2):
        same = [row[2] for row in rows if row[0] == rows[place][0]]
        assert rows[place][2] == max(same)
    assert counts(table) == {"another is better": 20, "held out": 5, "trained on": 175}
    assert set(sources[chosen(rows, num_held_out=5).use == 2]) == held_out


def test_what_a_tokenizer_reads_alike_is_one_source():
    spellings = ("a dog runs", "a  dog runs", "a\u00a0dog runs", "\ufeffa dog runs")
    rows = [(text, f"ein Hund rennt {i}", float(i)) for i, text in enumerate(spellings)]
    assert chosen(rows, num_held_out=0).use.tolist() == [0, 0, 0, 1]


def test_a_least_score_of_zero_counts_and_rows_without_a_score_have_it(tmp_path):
    (tmp_path / "a.tsv").write_text("the dog 0\tder Hund 0\t-1\nthe dog 1\tder Hund 1\n")
    scored = {"en": "the dog 2", "de": "der Hund 2", "score": 1}
    (tmp_path / "b.jsonl").write_text(json.dumps(scored) + "\n")
    names = (str(tmp_path / name) for name in ("a.tsv", "b.jsonl"))
    rows = [row for name in names for row in read_scored(name, ("en", "de"))]
    assert chosen(rows, least=0.0, num_held_out=0).use.tolist() == [0, 1, 1]
    assert chosen(rows, least=0.5, num_held_out=0).use.tolist() == [0, 0, 1]


def test_a_text_in_other_scripts_is_refused():
    with pytest.raises(tj.UserError, match="2 of 2 rows are not in the scripts of en and de"):
        chosen([("кошка", "die Katze", 0.0), ("собака", "der Hund", 0.0)])
    with pytest.raises(tj.UserError, match="no row is left to train on: blank 1"):
        chosen([("a", "", 0.0)])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "one\n", "a.tsv:1: expected source TAB translation, .* got 0 tabs"),
        ("a.tsv", "a\tb\nc\td\t1\te\n", "a.tsv:2: expected source TAB .* got 3 tabs"),
        ("a.tsv", "a\tb\tgood\n", "a.tsv:1: the score 'good' is not a number"),
        ("a.tsv", "a\tb\tnan\n", "the score 'nan' is not a number"),
        ("a.tsv", "a\tb\t1_0\n", "the score '1_0' is not a number"),
        ("a.jsonl", '{"en": "a", "de": "b", "score": true}\n', "the score True is not"),
        ("a.jsonl", '{"en": "a"}\n', 'a.jsonl:1: no key "de"'),
        ("a.jsonl", '{"en": "a", "de": "b", "score": [1]}\n', "a.jsonl:1: the score"),
        ("a.jsonl", "[]\n", "a.jsonl:1: expected a JSON object"),
        ("a.txt", "a\tb\n", "its name must end in .tsv or .jsonl"),
        ("a.tsv", "", "the file is empty"),
    ],
)
def test_damaged_files_end_in_one_line(name, content, message, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(tj.UserError, match=message) as error:
        list(read_scored(str(path), ("en", "de")))
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("place")
    pairs = generate(3, 60)
    tsv = [f"{source}\t{target}\t{i}\n" for i, (source, target) in enumerate(pairs)]
    (folder / "llm.tsv").write_text("".join(tsv) + "a dog\t\n")
    lines = [json.dumps({"en": s, "de": f"{t} Nein.", "score": -9}) for s, t in pairs[:5]]
    (folder / "more.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "student.py").write_text(STUDENT.replace("FOLDER", str(folder)))
    return folder


LANGUAGES = ["--config.data.source_language=en", "--config.data.target_language=de"]


def command(place, workdir, *more):
    given = [f"--translations={place / name}" for name in ("llm.tsv", "more.jsonl")]
    words = [*given, f"--config={place / 'student.py'}", f"--workdir={workdir}", *LANGUAGES]
    held_out = "--config.data.validation_from_train=6"
    return ["distil", *words, held_out, "--config.tokenizer.vocab_size=330", "--no_progress", *more]


def test_a_student_of_a_text(place, tmp_path, capsys, refused):
    assert main(command(place, tmp_path)) == 0
    text = tmp_path / "distillation" / "text"
    train, validation = (
        [(text / f"{split}.{side}").read_text().splitlines() for side in ("source", "target")]
        for split in ("train", "validation")
    )
    targets = dict(generate(3, 60))
    for sources, found in (train, validation):
        assert [targets[source] for source in sources] == found
    assert len(validation[0]) == 6 and not set(validation[0]) & set(train[0])
    assert len({*train[0], *validation[0]}) == len(targets)
    assert "| blank | 1 |" in (text / "translations.md").read_text()
    table = capsys.readouterr().out
    assert "| student | greedy |" in table and "| teacher" not in table
    assert tj.open_run(tmp_path).translator().translate(["The dog is new."])
    # What is there is not made again, and another choice does not continue it.
    made = (text / "train.source").stat().st_mtime_ns
    assert main(command(place, tmp_path)) == 0
    assert (text / "train.source").stat().st_mtime_ns == made
    line = refused(command(place, tmp_path, "--candidates=all"))
    assert "text: made with another keep_all:" in line


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--teacher=x"], "give --teacher=DIR or --translations=FILE, one of them"),
        (["--method=greedy"], "--method is for a --teacher: leave it out with --translations"),
        (["--nearest_of=2"], "--nearest_of is for a --teacher"),
        (["--references"], "--references is for a --teacher"),
        (["--config.data.source=files(train_source=a.tsv)"], "the config names another one"),
        (["--config.data.target_language=none"], "--translations: name the languages by"),
        (["--min_score=99"], "no row is left to train on: blank 1, score too low 65"),
    ],
)
def test_what_cannot_work_ends_in_one_line(place, tmp_path, refused, flags, message):
    assert message in refused(command(place, tmp_path / "run", *flags))
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_tokenizer_of_another_alphabet_is_refused(place, tmp_path, refused):
    model = tj.train_tokenizers(tj.TokenizerConfig(vocab_size=350), generate(3, 60)).source.model
    (tmp_path / "joint.model").write_bytes(model)
    words = ["собака", "кошка", "книга"]
    rows = [f"the dog {i}\t{' '.join(words[: 1 + i % 3])} {i}\n" for i in range(20)]
    (tmp_path / "ru.tsv").write_text("".join(rows))
    flags = [f"--translations={tmp_path / 'ru.tsv'}", f"--workdir={tmp_path / 'run'}"]
    flags += [f"--config={place / 'student.py'}", "--config.data.source_language=en"]
    flags += ["--config.data.target_language=ru", "--config.data.validation_from_train=2"]
    flags += [f"--config.tokenizer.source_model={tmp_path / 'joint.model'}"]
    line = refused(["distil", *flags])
    assert "joint.model does not know the alphabet of" in line and "train.target" in line
