"""Several corpora and languages in one model, by the commands a user types."""

import io
import itertools
import json
import sys

import jax
import numpy as np
import pytest

from transformer_jax.commands.main import main, parse
from transformer_jax.config import override
from transformer_jax.recipes import load_recipe
from transformer_jax.runs.folder import open_run
from transformer_jax.training.train import train
from transformer_jax.translation import contrast


def spoken(monkeypatch, text, *command):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(list(command)) == 0


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


def test_eval_scores_all_directions_or_one(corpora_run, corpora_place, capsys, refused):
    command = ["eval", f"--workdir={corpora_run}", "--json"]
    assert main([*command, "--split=validation"]) == 0
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [report["direction"] for report in reports] == ["en-de", "de-en", "en-fr"]
    assert main(command) == 0  # only these two have a test set
    reports = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [report["direction"] for report in reports] == ["en-de", "de-en"]
    assert [report["num_sentences"] for report in reports] == [20, 20]
    assert main([*command, "--split=validation", "--direction=en-fr"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["name"].startswith("validation.en-fr.best")
    assert json.loads(line)["decode"]["target_language"] == "fr"
    # A direction that was not trained, on text of one's own.
    files = [f"--source={corpora_place / 'test.de'}", f"--reference={corpora_place / 'test.en'}"]
    assert main([*command, "--direction=de-fr", *files]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["direction"] == "de-fr"
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
        assert message in refused([*command, *flags])


def test_translate_into_a_language(corpora_run, monkeypatch, capfdbinary):
    lines = "the dog sees the house\nwe must read\n"
    command = ["translate", f"--workdir={corpora_run}"]
    texts = {}
    for name, text, flags in (
        ("default", lines, []),
        ("de", lines, ["--target_language=de"]),
        ("fr", lines, ["--target_language=fr"]),
        ("tag", "<2fr> the dog sees the house\n<2fr> we must read\n", []),
    ):
        spoken(monkeypatch, text, *command, *flags)
        texts[name] = capfdbinary.readouterr().out
    assert texts["default"] == texts["de"]
    assert texts["tag"] == texts["fr"]
    run = open_run(corpora_run)
    translator = run.translator()
    first, second = (
        translator.source_encoder(translator.decode_config.__class__(target_language=code))("dog")
        for code in ("de", "fr")
    )
    assert first[1:] == second[1:] and first[0] != second[0]


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


def test_contrast_is_in_the_direction_that_is_asked_for(
    corpora_run, corpora_place, tmp_path, capsys, refused
):
    paths = (corpora_place / f"test.{code}" for code in ("en", "de"))
    lines = [path.read_text().splitlines()[:13] for path in paths]
    rows = list(zip(lines[0], lines[1], lines[1][1:], strict=False))
    items = tmp_path / "items.tsv"
    items.write_text("".join("\t".join(row) + "\n" for row in rows))
    command = ["contrast", f"--workdir={corpora_run}", f"--input={items}", "--json"]
    flags = {"de": [], "en": ["--target_language=en"], "fr": ["--target_language=fr"]}
    margins = {}
    for code, given in flags.items():
        translator = open_run(corpora_run).translator(target_language=code)
        found = contrast.scorer(translator)(*zip(*(row[:2] for row in rows), strict=True))
        sources, *sides = zip(*rows, strict=True)
        right, wrong = (translator.score_pairs(sources, side).log_probs for side in sides)
        np.testing.assert_array_equal(found.log_probs, right)
        assert main([*command, *given]) == 0
        assert json.loads(capsys.readouterr().out)["right"] == sum(right > wrong)
        margins[code] = right - wrong
    assert not np.array_equal(margins["de"], margins["en"])
    line = refused([*command, "--target_language=es"])
    assert "target_language=es: the model has no tag for it" in line


def test_score_is_in_the_direction_that_is_asked_for(corpora_run, monkeypatch, capfdbinary):
    command = ["score", f"--workdir={corpora_run}"]
    pairs = [("the dog sees the house", "der Hund sieht das Haus"), ("we must read", "wir lesen")]
    printed = {}
    for code, flags in (("de", []), ("fr", ["--target_language=fr"])):
        spoken(monkeypatch, "".join(f"{a}\t{b}\n" for a, b in pairs), *command, *flags)
        printed[code] = capfdbinary.readouterr().out.decode()
        translator = open_run(corpora_run).translator(target_language=code)
        expected = translator.score(*zip(*pairs, strict=True))
        assert printed[code] == "".join(f"{value:.6f}\n" for value in expected)
    assert printed["de"] != printed["fr"]
