"""CTranslate2 as an engine: our greedy translations, and our log-probabilities of its own.

It takes <pad>, <s> and <unk> out of the vocabulary before it normalises.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from tests.malformed.conftest import place  # noqa: F401
from tests.malformed.harness import command, training
from tests.oracles import need

need("ctranslate2")

import transformer_jax as tj  # noqa: E402
from tests.formats import exporter_suite as suite  # noqa: E402
from transformer_jax.commands.serve.engine import Sentence  # noqa: E402
from transformer_jax.commands.serve.engines import open_engine  # noqa: E402
from transformer_jax.formats.run_folder import write_run  # noqa: E402
from transformer_jax.models import api  # noqa: E402
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID  # noqa: E402

POWER = tj.Beam(beam_size=3, length_penalty=0.8, length_penalty_form="power")
TEXTS = ["the dog sees a cat", "an old man", "his long book here today"]


@pytest.fixture(scope="module")
def run(place):  # noqa: F811
    """Trained until its translations end before the limit."""
    steps = "--config.train.steps=200", "--config.train.schedule=constant(learning_rate=0.02)"
    model = "--config.model.matmul_dtype=float32", "--config.model.d_model=32"
    status, line = command(*training(place, place / "run", *steps, *model))
    assert status == 0, line
    return tj.open_run(place / "run")


def log_prob(run, source, target, num_forced=0):
    """Log p(target | source, forced ids) where <pad>, <s> and <unk> cannot be chosen."""
    pair = [jnp.asarray([ids]) for ids in ([*source, EOS_ID], target)]
    masks = [jnp.ones(ids.shape, bool) for ids in pair]
    inputs = pair[0], masks[0], api.shift_right(pair[1]), masks[1]
    logits_TV = api.apply(run.config.model, run.params(), *inputs)[0]
    logits_TV = logits_TV.at[:, [PAD_ID, BOS_ID, UNK_ID]].set(-jnp.inf)
    log_probs_T = jax.nn.log_softmax(logits_TV)[jnp.arange(len(target)), jnp.asarray(target)]
    return float(log_probs_T[num_forced:].sum())


def test_it_translates_greedily_as_ours_does(run):
    one = replace(POWER, beam_size=1)
    engines = [open_engine(kind, run, "best", method=one) for kind in ("jax", "ctranslate2")]
    for text in TEXTS:
        ours, theirs = (e.translate([Sentence(e.encode(text))])[0][0] for e in engines)
        assert (theirs.text, theirs.tokens) == (ours.text, ours.tokens)


def test_its_scores_are_ours(run):
    engine = open_engine("ctranslate2", run, "best", method=POWER)
    found = engine.translate([Sentence(engine.encode(text)) for text in TEXTS])
    for text, translations in zip(TEXTS, found, strict=True):
        assert len(translations) == 3
        source = run.tokenizers().source.encode(text)
        for each in translations:
            assert each.log_prob == pytest.approx(log_prob(run, source, each.tokens), abs=1e-3)
            assert each.score == pytest.approx(each.log_prob / len(each.tokens) ** 0.8)
        scores = [each.score for each in translations]
        assert scores == sorted(scores, reverse=True)


def test_it_begins_with_the_token_of_the_target_language(tmp_path):
    model = suite.random_model(suite.small(), suite.language_tokenizers())
    data = tj.DataConfig(source_language="en", target_language="de")
    config = replace(model.config, data=data)
    run = write_run(tmp_path / "run", model._replace(config=config))
    source = run.tokenizers().source
    for language, first in ((None, "deu_Latn"), ("fra_Latn", "fra_Latn")):
        options = {"method": replace(POWER, beam_size=1), "target_language": language}
        engines = [open_engine(kind, run, "best", **options) for kind in ("jax", "ctranslate2")]
        for text in TEXTS:
            ours, theirs = (e.translate([Sentence(e.encode(text))])[0][0] for e in engines)
            assert source.pieces(theirs.tokens[:1]) == [first]
            # It is cut at the limit, and ends without EOS there.
            assert (theirs.text, theirs.tokens) == (ours.text, ours.tokens[:-1])
            wanted = log_prob(run, source.encode(text), theirs.tokens, num_forced=1)
            assert theirs.log_prob == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("ctranslate2", {}, "length_penalty_form=power"),
        ("ctranslate3", {}, "use jax or ctranslate2"),
        ("ctranslate2(colour=red)", {"method": POWER}, "colour"),
        ("ctranslate2", {"method": POWER, "no_repeat_ngram": 2}, "leave out the others"),
    ],
)
def test_what_it_cannot_do_is_refused(run, kind, options, words):
    with pytest.raises(tj.UserError, match=words):
        open_engine(kind, run, "best", **options)
