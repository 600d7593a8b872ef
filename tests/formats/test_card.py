"""The card of an exported folder."""

import json
from dataclasses import replace

import pytest
import yaml

import transformer_jax as tj
from tests.formats import exporter_suite as suite
from tests.pages import ROOT
from transformer_jax.commands.main import main
from transformer_jax.formats.card import card
from transformer_jax.formats.exporters import EXPORTERS
from transformer_jax.formats.marian.bergamot import Bergamot
from transformer_jax.formats.run_folder import write_run


@pytest.fixture
def run(tmp_path):
    model = suite.random_model(suite.small(), suite.tokenizers())
    source = tj.Files(train_source=("/secret/place/train.en",), train_target=("/secret/train.de",))
    data = replace(model.config.data, source=source, source_language="en", target_language="de")
    write_run(tmp_path / "run", model._replace(config=replace(model.config, data=data)))
    return tmp_path / "run"


def exported(run, *flags):
    output = run.parent / "out"
    words = [f"--workdir={run}", "--format=safetensors", f"--output={output}", *flags]
    return main(["export", *words]), output / "README.md"


def test_the_card_has_what_the_run_knows(run):
    score = {"name": "BLEU", "score": 36.437, "signature": "nrefs:1|case:mixed"}
    (run / "scores.json").write_text(json.dumps({"test.best": {"scores": {"bleu": score}}}))
    status, path = exported(run, "--licence=cc-by-4.0")
    assert status == 0
    _, head, body = path.read_text().split("---\n", 2)
    assert yaml.safe_load(head) == {
        "language": ["en", "de"],
        "license": "cc-by-4.0",
        "pipeline_tag": "translation",
    }
    assert "- test.best: BLEU 36.44 (`nrefs:1|case:mixed`)" in body
    assert "transformer-jax import --from=FOLDER" in body and "Licence: cc-by-4.0." in body
    assert "train.en" in body and "secret" not in body
    assert '`transformer-jax export --format="safetensors"' in body


def test_without_a_licence_the_card_says_so_and_nothing_is_pushed(run, capsys):
    pytest.importorskip("huggingface_hub")
    status, path = exported(run, "--push=somebody/model")
    assert status == 2 and not path.exists()
    message = "error: --push=somebody/model: a card needs a licence: give --licence=cc-by-4.0"
    assert capsys.readouterr().err.splitlines()[-1] == message
    status, path = exported(run)
    text = path.read_text()
    assert status == 0 and "license" not in text and "Licence: none was given" in text
    assert "None: `transformer-jax eval` makes them." in text


def test_every_format_says_how_its_folder_is_used():
    uses = yaml.safe_load((ROOT / "transformer_jax" / "formats" / "uses.yaml").read_text())
    assert set(uses) == set(EXPORTERS)
    assert all(len(text.splitlines()) <= 3 for text in uses.values())


def with_data(run, **changes):
    """The run, whose config says something else of its data."""
    opened = tj.open_run(run)
    data = replace(opened.config.data, **changes)
    return replace(opened, config=replace(opened.config, data=data))


def test_no_folder_of_the_machine_is_shown_and_languages_are_those_of_the_files(run):
    source = tj.Files(("/home/John (work),b/p/train.en",), ("data/private/train.de",))
    changed = with_data(run, source=source, source_language=None, target_language=None)
    exporter = Bergamot(quantization="int8", sentences="/home/me/secret/cal.txt")
    text = card(changed, exporter, None)
    assert "# Translation from en into de" in text and "sentences='cal.txt'" in text
    assert "train.en" in text and "train.de" in text
    assert not any(word in text for word in ("home", "secret", "private", "John", "data/"))


def test_each_direction_is_named(run):
    source = tj.open_run(run).config.data.source
    corpora = tuple(tj.Corpus(source, languages=("en", each)) for each in ("de", "fr"))
    text = card(with_data(run, source=tj.Files(), corpora=corpora), Bergamot(), None)
    assert "# Translation from en into de; from en into fr\n" in text
    assert text.count("train.en") == 2


@pytest.mark.parametrize(
    ("scores", "flags", "words"),
    [
        ({"name": "BLEU", "score": 36.4}, [], "scores.json: is not what `eval` writes"),
        (None, ["--licence=CC BY 4.0"], "--licence=CC BY 4.0: give an identifier, such as cc-by-4"),
    ],
)
def test_what_makes_no_card_is_one_line(scores, flags, words, run, capsys):
    if scores:
        (run / "scores.json").write_text(json.dumps({"test": {"scores": {"bleu": scores}}}))
    status, path = exported(run, *flags)
    assert status == 2 and not path.exists()
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ") and words in error
