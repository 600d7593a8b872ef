"""A run on blocks: documents are translated line for line, and scored as such."""

import io
import sys

import pytest

import transformer_jax as tj
from transformer_jax.cli.main import main
from transformer_jax.data.splits import read_documents
from transformer_jax.data.training_text import TrainingText
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.training.evaluator import make_evaluator

TRAIN = [
    "train",
    "--config=quickstart",
    "--workdir=run",
    "--no_progress",
    "--config.data.source=grammar_documents(documents=40, held_out=6, most=9)",
    "--config.data.blocks=blocks(tokens=64),blocks(sentences=[1])",
    "--config.data.cache_dir=cache",
    "--config.tokenizer.vocab_size=400",
    "--config.batch.max_length=64",
    "--config.batch.num_buckets=2",
    "--config.batch.tokens=256",
    "--config.model.max_length=80",
    "--config.model.d_model=16",
    "--config.model.d_ff=16",
    "--config.train.steps=2",
    "--config.train.evaluate_every=2",
    "--config.train.evaluate_sentences=2",
    "--config.train.schedule.warmup_steps=1",
    "--config.decode.method=greedy",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("documents"))
        assert main(TRAIN) == 0
        yield tj.open_run("run")


def translated(text: bytes, monkeypatch, capsys, *flags: str) -> str:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main(["translate", "--workdir=run", "--documents", *flags]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        b"The dog sleeps.\nIt sleeps.\n\nThe dog sleeps.\n",
        b"\n\nThe dog sleeps.\n\n\n",
        b"The dog sleeps.\r\nThe dog sleeps.\r\n\r\n \r\nThe dog sleeps.",
        b"The dog sleeps.\n" * 40,
        b"dog " * 5000 + b"\nThe dog sleeps.\n",
        b"",
    ],
    ids=["two", "empty", "windows", "forty", "long", "nothing"],
)
def test_one_line_for_each_line(run, text, monkeypatch, capsys):
    lines = translated(text, monkeypatch, capsys).split("\n")
    given = text.decode().split("\n")
    assert len(lines) - 1 == len(given) - (given[-1] == "")
    for line, source in zip(lines, given, strict=False):
        assert not line.strip() or source.strip()  # what is empty stays empty


def test_a_prefix_of_the_call_is_as_one_of_the_config(run):
    documents = [["The dog sleeps."], ["It sleeps."]]
    found = run.translator().translate_documents(documents, target_prefix="Der")
    assert found == run.translator(target_prefix="Der").translate_documents(documents)


def test_the_blocks_of_the_training_are_those_of_the_translation(run):
    assert run.config.decode.block_tokens == 64
    assert run.tokenizers().target.separator is not None


def test_the_bleu_while_training_is_that_of_the_documents(run, monkeypatch):
    with TrainingText(run.config.data) as text:
        documents = text.validation(5)
    whole = list(read_documents(run.config.data, "validation"))
    assert sum(map(len, documents)) == 5 and documents[:-1] == whole[: len(documents) - 1]
    assert documents[-1] == whole[len(documents) - 1][: len(documents[-1])]
    references = {tuple(s for s, _ in each): [t for _, t in each] for each in documents}
    monkeypatch.setattr(
        tj.Translator,
        "translate_documents",
        lambda self, texts: [references[tuple(each)] for each in texts],
    )
    mesh = make_mesh(run.config.mesh)
    evaluate = make_evaluator(run.config, run.tokenizers(), {("en", "de"): documents}, mesh)
    assert evaluate(run.params("latest"), 2)["bleu"] == pytest.approx(100)


def test_documents_are_scored_by_sentence_and_whole(run, capsys):
    report = tj.evaluate(run, documents=True)
    assert report.name == "test.documents.best" and report.documents.documents == 6
    scores = report.documents
    assert sum(part.sentences for part in scores.by_place) == report.num_sentences
    assert sum(part.sentences for part in scores.by_length) == report.num_sentences
    assert scores.blocks >= 6
    given = [("The dog sleeps.", "Der Hund schläft."), ("", ""), ("It sleeps.", "Er schläft.")]
    again = tj.evaluate(run, given, documents=True)
    assert (again.num_sentences, again.documents.documents) == (2, 2)
    assert "d-BLEU" in str(again) and "blocks" in str(again)


def test_a_model_of_sentences_says_what_it_lacks(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = [each for each in TRAIN if "blocks" not in each and "source" not in each]
    assert main(flags) == 0
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"The dog sleeps.\n")))
    assert main(["translate", "--workdir=run", "--documents"]) == 2
    assert "no separator piece" in capsys.readouterr().err
