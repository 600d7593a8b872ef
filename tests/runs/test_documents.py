"""A run on blocks: documents are translated line for line, and scored as such."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

import transformer_jax as tj
from transformer_jax.commands.main import main
from transformer_jax.config import override
from transformer_jax.data.splits import first_documents, read_documents
from transformer_jax.decoding.sample import Sample
from transformer_jax.errors import UserError
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.runs.pretrained import starting_from
from transformer_jax.runs.start import begin_new
from transformer_jax.training.evaluator import make_evaluator
from transformer_jax.translation.documents import Tally
from transformer_jax.translation.pieces import Pieces
from transformer_jax.translation.run_batches import Timing
from transformer_jax.translation.translator import Decoded, Translation

TRAIN = [
    "train",
    "--config=quickstart",
    "--workdir=run",
    "--no_progress",
    "--config.data.source=grammar_documents(documents=40, held_out=6, most=9)",
    "--config.data.blocks=blocks(tokens=64),blocks(sentences=[1])",
    "--config.data.cache_dir=cache",
    "--config.tokenizer.vocab_size=400",
    "--config.tokenizer.byte_fallback=true",
    "--config.batch.max_length=64",
    "--config.batch.num_buckets=2",
    "--config.batch.tokens=256",
    "--config.model.max_length=80",
    "--config.model.d_model=16",
    "--config.model.d_ff=16",
    "--config.model.encoder.num_layers=1",
    "--config.model.decoder.num_layers=1",
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
def test_one_line_for_each_line(run, text, command):
    status, out, _ = command("translate", "--workdir=run", "--documents", stdin=text)
    assert status == 0
    lines = out.split("\n")
    given = text.decode().split("\n")
    assert len(lines) - 1 == len(given) - (given[-1] == "")
    for line, source in zip(lines, given, strict=False):
        assert not line.strip() or source.strip()  # what is empty stays empty


@pytest.mark.parametrize(
    ("name", "value"), [("target_prefix", "Der"), ("no_repeat_ngram", 3), ("repetition_penalty", 2)]
)
def test_what_is_of_single_sentences_is_refused(run, name, value):
    with pytest.raises(UserError, match=f"{name}={value}.*: is for single sentences"):
        run.translator().translate_documents([["The dog sleeps."]], **{name: value})


def test_a_block_that_the_limit_ended_is_divided(run, monkeypatch):
    translator, tally = run.translator(), Tally()
    (whole,) = translator.decode(["The dog sleeps."], max_length_offset=3).translations[0]
    limit = tj.DecodeConfig(max_length_offset=3).max_target_length(
        len(translator.tokenizers.source.encode("The dog sleeps.")) + 1
    )
    assert whole.is_cut and len(whole.tokens) == limit and whole.own_tokens == whole.tokens[:-1]
    separator = translator.tokenizers.target.separator

    def decode(self, sources, **options):
        found = [[Translation("", 0.0, 0.0, (9, separator, 9, 1), True)] for _ in sources]
        return Decoded(found, 0, Timing())

    monkeypatch.setattr(tj.Translator, "decode", decode)
    translator.translate_documents([["The dog sleeps.", "It sleeps."]], tally=tally)
    assert (tally.blocks, tally.divided, tally.alone) == (1, 1, 2)


def test_a_token_that_begins_targets_is_forced_once(run, monkeypatch):
    translator, seen = run.translator(context_tokens=10, block_tokens=24), []
    separator = translator.tokenizers.target.separator
    monkeypatch.setattr(Pieces, "prefixes", lambda *given: [[7]])

    def decode(sources, target_prefix, **options):
        seen.extend(target_prefix)
        found = [[Translation("", 0.0, 0.0, (*each, 9, 1))] for each in target_prefix]
        return Decoded(found, 0, Timing())

    monkeypatch.setattr(translator, "decode", decode)
    translator.translate_documents([["Go."] * 5])
    contexts = [each for each in seen if separator in each]
    assert contexts and not any(each.count(7) > 1 for each in seen)
    assert all(each == [7] for each in seen if each not in contexts)
    assert {each[0] for each in contexts} == {7, 9}, "with the first sentence, and without it"


def test_samples_of_a_document_do_not_depend_on_the_others(run):
    translator = run.translator(method=Sample(seed=3))
    one, other = ["The dog sleeps.", "It sleeps."], ["Here is the lamp."] * 9
    (alone,) = translator.translate_documents([one], first_ids=[40])
    _, beside = translator.translate_documents([other, one], first_ids=[1, 40])
    assert alone == beside
    assert translator.translate_documents([one], first_ids=[41]) != [alone]


def test_the_note_of_a_text_that_was_continued_is_of_all_of_it(run, monkeypatch, command, tmp_path):
    text = tmp_path / "in.en"
    text.write_text("The dog sleeps.\nIt sleeps.\n\n" * 70)
    words = ["translate", "--workdir=run", "--documents", f"--input={text}"]
    note = command(*words, f"--output={tmp_path / 'whole'}")[2].splitlines()[-1]
    assert "of 70 blocks" in note
    translate, calls = tj.Translator.translate_documents, []

    def stops(self, documents, **options):
        calls.append(len(documents))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return translate(self, documents, **options)

    with monkeypatch.context() as patch:
        patch.setattr(tj.Translator, "translate_documents", stops)
        assert command(*words, f"--output={tmp_path / 'out'}")[0] != 0
    assert calls == [32, 32]
    assert command(*words, f"--output={tmp_path / 'out'}")[2].splitlines()[-1] == note
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


def test_the_blocks_of_the_training_are_those_of_the_translation(run):
    decode = run.config.decode
    assert (decode.block_tokens, decode.block_sentences) == (64, None)
    blocks = (tj.Blocks(sentences=(1, 2)), tj.Blocks(sentences=(3,)))
    config = replace(run.config, data=replace(run.config.data, blocks=blocks))
    open_keys = {"decode.block_tokens": "none", "decode.block_sentences": "none"}
    decode = begin_new(override(config, open_keys)).decode
    assert (decode.block_tokens, decode.block_sentences) == (64, 3)
    tuned = starting_from(config, "run")
    assert (tuned.decode.block_tokens, tuned.decode.block_sentences) == (None, None)
    assert run.tokenizers().target.separator is not None


def test_no_separator_is_in_the_translation_of_a_line(run, command):
    out = command("translate", "--workdir=run", stdin=b"the dog <sep> sees\n\n")[1].splitlines()
    assert len(out) == 2 and not any("<sep>" in line for line in out)
    assert run.tokenizers().target.separator == 399


def test_the_bleu_while_training_is_that_of_the_documents(run, monkeypatch):
    documents = first_documents(run.config.data, "validation", 5)
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
    validation = {("en", "de"): documents}
    data = SimpleNamespace(config=run.config, tokenizers=run.tokenizers(), validation=validation)
    evaluate = make_evaluator(data, mesh)
    assert evaluate(run.params("latest"), 2)["bleu"] == pytest.approx(100)


def test_documents_are_scored_by_sentence_and_whole(run):
    report = tj.evaluate(run, documents=True)
    assert report.name == "test.documents.best" and report.documents.documents == 6
    scores = report.documents
    assert sum(part.sentences for part in scores.by_place) == report.num_sentences
    assert sum(part.sentences for part in scores.by_length) == report.num_sentences
    assert scores.blocks >= 6
    given = [["The dog sleeps.", "Der Hund schläft."], [" ", ""], ["It sleeps.", "Er schläft."]]
    again = tj.evaluate(run, given, documents=True, baseline=["Der Hund schläft.", "", "Er."])
    assert (again.num_sentences, again.documents.documents) == (2, 2)
    assert "d-BLEU" in str(again) and "blocks" in str(again)


def test_a_model_of_sentences_says_what_it_lacks(toy_run, command):
    words = ["translate", f"--workdir={toy_run}", "--documents"]
    status, _, error = command(*words, stdin=b"The dog sleeps.\n")
    assert status == 2 and "no separator piece" in error
