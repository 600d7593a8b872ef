"""A learned metric scores translations, ranks them, filters pairs and selects a checkpoint."""

import json

import numpy as np
import pytest

from tests.toy_run import RECIPE, train_command
from transformer_jax.commands.main import main
from transformer_jax.data.filters.quality import Quality
from transformer_jax.data.filters.review import Review
from transformer_jax.data.sources.files import read_lines
from transformer_jax.decoding.mbr import mbr_scores
from transformer_jax.metrics.criteria import CRITERIA, Bleu
from transformer_jax.metrics.metricx import MetricX, MetricXQE
from transformer_jax.runs.folder import open_run

SOURCES = ["the dog sees a cat", "an old man reads", "schöne Grüße", "Привет мир", "ein Buch"]
TARGETS = ["der Hund sieht", "ein alter Mann liest ein Buch", "Köln", "die Katze", "a long book"]


@pytest.fixture(scope="module")
def place(texts, folder):
    """A run whose pairs are filtered and whose best checkpoint is selected by a metric."""
    (texts / "recipe.py").write_text(RECIPE)
    flags = [
        f"--config.data.filters=quality(model={folder},at_most=4)",
        f"--config.train.best_by=metricx(model={folder})",
    ]
    assert main(train_command(texts, texts / "run", *flags)) == 0
    return texts


def evaluated(place, capsys, *flags):
    assert main(["eval", f"--workdir={place / 'run'}", "--json", *flags]) == 0
    return json.loads(capsys.readouterr().out)


def test_eval_reports_the_mean_of_the_sentences(place, folder, capsys):
    texts = [f"--source={place / 'test.en'}", f"--reference={place / 'test.de'}"]
    report = evaluated(place, capsys, *texts, "--metric=metricx", f"--metric_model={folder}")
    sources, references = (list(read_lines(str(place / f"test.{end}"))) for end in ("en", "de"))
    made = list(read_lines(report["translations"]))
    score = report["scores"]["metricx"]
    mean = MetricX(str(folder)).open()(sources, made, references).mean()
    assert score["score"] == pytest.approx(mean, abs=1e-4)
    assert score["signature"] == f"model:{folder.name}|worst:25|best:0"
    assert report["scores"].keys() == {"bleu", "chrf", "metricx"}
    # without references
    name = f"--metric=metricx_qe(model={folder})"
    alone = evaluated(place, capsys, texts[0], name)["scores"]
    mean = MetricXQE(str(folder)).open()(sources, made, sources).mean()
    assert alone.keys() == {"metricx_qe"}
    assert alone["metricx_qe"]["score"] == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--source", "--metric=metricx", "--metric_model"], "there is no reference, which metr"),
        (["--source", "--metric=metricx_qe", "--metric_model", "--ter"], "which what you ask for"),
        (["--metric=metricx"], "--metric=metricx: metricx needs model"),
        (["--metric_model"], "say with --metric which metric it is of"),
        (["--metric=metrix", "--metric_model"], r"'metrix' is unknown (did you mean metricx?)"),
        (["--source", "--reference", "--metric=metricx(model=/none)"], "/none: no such folder"),
    ],
)
def test_what_is_missing_is_named_in_one_line(place, folder, capsys, flags, words):
    values = {
        "--source": f"--source={place / 'test.en'}",
        "--reference": f"--reference={place / 'test.de'}",
        "--metric_model": f"--metric_model={folder}",
    }
    given = [values.get(flag, flag) for flag in flags]
    assert main(["eval", f"--workdir={place / 'run'}", *given]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert words in error[-1] and error[-1].startswith("error: ")


def test_the_filter_leaves_out_what_is_scored_above_its_limit(folder, place, logged):
    pairs = list(zip(SOURCES, TARGETS, strict=True))
    scores = MetricXQE(str(folder)).open()(SOURCES, TARGETS, [""] * 5)
    limit = float(np.median(scores))
    chosen = Quality(str(folder), at_most=limit)
    review = Review([chosen], ("en", "de"))
    assert review.kept("x", [review.marks(pairs)])[0].tolist() == (scores <= limit).tolist()
    assert 0 < (scores <= limit).sum() < 5
    assert "_judge" not in vars(chosen)  # the model is not kept with the config
    config = open_run(place / "run").config
    assert config.data.filters == (Quality(str(folder), at_most=4.0),)


def test_translations_are_ranked_by_the_metric(place, folder, capsys):
    metric, judge = MetricX(str(folder)), MetricX(str(folder)).open()
    (found,) = mbr_scores(["the dog"], [TARGETS], metric)
    expected = [25 - judge(["the dog"] * 5, [one] * 5, TARGETS).mean() for one in TARGETS]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    (alone,) = mbr_scores(["the dog"], [TARGETS], MetricXQE(str(folder)))
    expected = 25 - MetricXQE(str(folder)).open()(["the dog"] * 5, TARGETS, TARGETS)
    np.testing.assert_allclose(alone, expected, atol=1e-4)
    assert mbr_scores(["a", "b"], [["x"], ["y", "z"]], metric)[1] != alone
    translator = open_run(place / "run").translator()
    options = {"mbr": f"metricx(model={folder})", "method": "sample(num_samples=4)"}
    (ranked,) = translator.decode(["The dog sleeps."], **options).translations
    scores = [each.score for each in ranked]
    assert scores == sorted(scores, reverse=True)
    (again,) = mbr_scores(["The dog sleeps."], [[each.text for each in ranked]], metric)
    np.testing.assert_allclose(scores, again, atol=1e-4)


def test_the_best_checkpoint_is_the_one_with_the_best_score(place, folder):
    run = open_run(place / "run")
    assert run.config.train.best_by == MetricX(str(folder))
    scored = {
        r["step"]: r["validation.metricx"] for r in run.metrics() if "validation.metricx" in r
    }
    assert scored.keys() == {4, 8}
    best = min(scored, key=lambda step: (scored[step], step))
    assert run.select("best").steps == (best,)


def test_every_criterion_turns_back_what_it_makes_of_a_score():
    for cls in CRITERIA.values():
        criterion = cls() if cls is Bleu else cls(model="")
        assert criterion.goodness(criterion.best) > criterion.goodness(criterion.worst) == 0
        for score in (criterion.worst, 3.5, criterion.best):
            assert criterion.score(criterion.goodness(score)) == pytest.approx(score)
