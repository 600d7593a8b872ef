"""Several corpora and languages in one model, by the commands a user types."""

import itertools
import json

import jax
import numpy as np
import pytest

from transformer_jax.commands.main import parse
from transformer_jax.config import override
from transformer_jax.recipes import load_recipe
from transformer_jax.runs.folder import open_run
from transformer_jax.training.train import train


def test_a_run_that_was_stopped_ends_with_the_same_parameters(corpora_place, corpora_run, tmp_path):
    config = load_recipe(corpora_place / "recipe.py")
    stops = itertools.count(1)
    train(config, tmp_path / "run", should_stop=lambda: next(stops) == 3)
    assert open_run(tmp_path / "run").checkpoints() == [3]
    train(config, tmp_path / "run")
    one, other = (open_run(folder).params("latest") for folder in (corpora_run, tmp_path / "run"))
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_other_weights_are_another_run(corpora_run, corpora_place):
    config = load_recipe(corpora_place / "recipe.py")
    corpora = tuple(
        override(corpus, {"weight": 1.0}) if corpus.reverse else corpus
        for corpus in config.data.corpora
    )
    with pytest.raises(Exception, match="the training data changed since this run was saved"):
        train(override(config, {"data.corpora": corpora}), corpora_run)


def test_metrics_have_the_share_of_each_corpus_and_the_score_of_each_direction(corpora_run):
    run = open_run(corpora_run)
    records = [record for record in run.metrics() if "loss" in record]
    names = ["1:en-de", "2:de-en", "3:en-fr", "4:en-de<bt>"]
    for record in records:
        shares = [record[f"share.{name}"] for name in names]
        assert sum(shares) == pytest.approx(1)
    assert len(records) == 4
    scores = [record for record in run.metrics() if "validation.bleu" in record]
    directions = ["en-de", "de-en", "en-fr"]
    for record in scores:
        mean = sum(record[f"validation.bleu.{name}"] for name in directions) / 3
        assert record["validation.bleu"] == pytest.approx(mean)
    log = (corpora_run / "log.txt").read_text()
    assert "en -> de, de -> en, en -> fr: " in log
    assert "1:en-de: 280 pairs x 1; 2:de-en: 280 pairs x 0.7" in log


def test_eval_scores_all_directions_or_one(corpora_run, corpora_place, command, refused):
    words = ["eval", f"--workdir={corpora_run}", "--json"]

    def reports(*flags):
        return [json.loads(line) for line in command(*words, *flags)[1].splitlines()]

    found = reports("--split=validation")
    assert [report["direction"] for report in found] == ["en-de", "de-en", "en-fr"]
    found = reports()  # only these two have a test set
    assert [report["direction"] for report in found] == ["en-de", "de-en"]
    assert [report["num_sentences"] for report in found] == [20, 20]
    (found,) = reports("--split=validation", "--direction=en-fr")
    assert found["name"].startswith("validation.en-fr.best")
    assert found["decode"]["target_language"] == "fr"
    # A direction that was not trained, on text of one's own.
    files = [f"--source={corpora_place / 'test.de'}", f"--reference={corpora_place / 'test.en'}"]
    (found,) = reports("--direction=de-fr", *files)
    assert found["direction"] == "de-fr"
    assert any(name.startswith("test.de-en.best") for name in open_run(corpora_run).scores())
    # What is scored against a reference is in its language.
    in_german = "target_language=fr: the set is in de; choose"
    for flags, message in (
        (["--direction=de-es", *files], "target_language=es: the model has no tag for it"),
        (["--direction=fr"], "--direction=fr: expected two languages"),
        (["--direction=de-fr"], "no test set in the config"),
        (["--target_language=fr"], in_german),
        (["--direction=en-de", "--target_language=fr"], in_german),
        ([f"--baseline={corpora_place / 'test.de'}"], "one direction, and there are 2: name one"),
    ):
        assert message in refused([*words, *flags])


def test_translate_into_a_language(corpora_run, command):
    lines = b"the dog sees the house\nwe must read\n"
    words = ["translate", f"--workdir={corpora_run}"]
    german, french = (
        command(*words, f"--target_language={code}", stdin=lines) for code in ("de", "fr")
    )
    assert command(*words, stdin=lines) == german
    tagged = b"<2fr> the dog sees the house\n<2fr> we must read\n"
    assert command(*words, stdin=tagged) == french


def test_a_server_has_an_engine_for_each_direction(corpora_run):
    from transformer_jax.commands.run_flags import chosen_runs
    from transformer_jax.commands.serve.engines import open_engine

    command = ["serve", f"--workdir={corpora_run}"]
    engines = [
        open_engine("jax", run, "best", **decoding)
        for run, decoding in chosen_runs(parse([*command, "--batch_size=2"]))
    ]
    directions = [("en", "de"), ("de", "en"), ("en", "fr")]
    assert [(each.source, each.target) for each in engines] == directions
    first = [each.encode("dog") for each in engines]
    assert len({ids[0] for ids in first}) == 3 and first[0][1:] == first[2][1:]
    (only,) = chosen_runs(parse([*command, "--target_language=fr"]))
    assert only[1] == {"target_language": "fr"}


def test_score_and_contrast_are_in_the_direction_that_is_asked_for(
    corpora_run, corpora_place, tmp_path, command, refused
):
    paths = (corpora_place / f"test.{code}" for code in ("en", "de"))
    lines = [path.read_text().splitlines()[:13] for path in paths]
    rows = list(zip(lines[0], lines[1], lines[1][1:], strict=False))
    sources, *sides = zip(*rows, strict=True)
    items = tmp_path / "items.tsv"
    items.write_text("".join("\t".join(row) + "\n" for row in rows))
    pairs = "".join(f"{source}\t{right}\n" for source, right, _ in rows).encode()
    score, contrast = (
        [name, f"--workdir={corpora_run}", *more]
        for name, more in (("score", []), ("contrast", [f"--input={items}", "--json"]))
    )
    printed = set()
    for code, flags in (("de", []), ("fr", ["--target_language=fr"])):
        translator = open_run(corpora_run).translator(target_language=code)
        right, wrong = (translator.score(sources, side) for side in sides)
        printed.add(command(*score, *flags, stdin=pairs)[1])
        assert "".join(f"{value:.6f}\n" for value in right) in printed
        found = json.loads(command(*contrast, *flags)[1])
        assert found["right"] == sum(right > wrong)
    assert len(printed) == 2
    line = refused([*contrast, "--target_language=es"])
    assert "target_language=es: the model has no tag for it" in line
