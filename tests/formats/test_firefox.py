"""The folder that Mozilla takes. Firefox's engine reads one in tests/commands/distil."""

import gzip
import hashlib
import json
from dataclasses import replace

import pytest

from tests.formats import exporter_suite as suite
from tests.formats.test_bergamot import FULL, INT8, STUDENT
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.errors import UserError
from transformer_jax.formats.export import parsed, write
from transformer_jax.formats.marian.bergamot import Bergamot
from transformer_jax.formats.marian.firefox import Firefox
from transformer_jax.formats.marian.shortlist import shortlist_of
from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig
from transformer_jax.paths import as_path


@pytest.fixture(scope="module")
def model():
    made = suite.random_model(suite.small(**STUDENT, **INT8), suite.tokenizers())
    data = replace(made.config.data, source_language="en", target_language="deu_Latn")
    return made._replace(config=replace(made.config, data=data))


@pytest.fixture
def text(tmp_path):
    """A source and a target file."""
    pairs = generate(4, 12)
    for side, name in enumerate(("in.en", "in.de")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in pairs))
    return str(tmp_path / "in.en"), str(tmp_path / "in.de")


def test_the_files_are_those_of_the_engine_under_mozillas_names(model, text, tmp_path):
    options = f"shortlist='{','.join(text)}'"
    write(parsed(f"bergamot({options})"), model, as_path(tmp_path / "plain"))
    exporter = parsed(f"firefox({options},flores='{','.join(text)}')")
    exporter.check(model.config)
    write(exporter, model, as_path(tmp_path / "out"))
    names = {
        "model.ende.intgemm.alphas.bin.gz": "model.intgemm.alphas.bin",
        "vocab.ende.spm.gz": "vocab.spm",
        "lex.50.50.ende.s2t.bin.gz": "lex.s2t.bin",
    }
    found = {path.name for path in (tmp_path / "out").iterdir()}
    assert found == {*names, "metadata.json"}
    for packed, plain in names.items():
        content = gzip.decompress((tmp_path / "out" / packed).read_bytes())
        assert content == (tmp_path / "plain" / plain).read_bytes()
    about = json.loads((tmp_path / "out" / "metadata.json").read_text())
    content = (tmp_path / "plain" / "model.intgemm.alphas.bin").read_bytes()
    assert (about["sourceLanguage"], about["targetLanguage"]) == ("en", "deu_Latn")
    assert about["byteSize"] == len(content)
    assert about["hash"] == hashlib.sha256(content).hexdigest()
    assert about["modelConfig"]["dec-cell"] == "ssru" and about["architecture"] == "tiny"
    assert 0 <= about["flores"]["bleu"] < about["flores"]["chrf"] < 100
    assert "nrefs:1" in about["floresSignatures"]["bleu"]
    # Biases that the model lacks, rows that fill up the table, and the factors are counted too.
    counts, ours = about["modelStatistics"], api.num_params(model.config.model)
    assert ours < counts["parameters"] < 1.2 * ours
    assert counts["encoder_parameters"] < counts["encoder_bytes"] < 4 * counts["encoder_parameters"]
    halves = counts["encoder_parameters"] + counts["decoder_parameters"]
    assert counts["embeddings_bytes"] < counts["parameters"] - halves


def test_the_model_aligns_the_text_of_a_shortlist_itself(model, text):
    asked = []

    def align(sources, targets):
        asked.extend(zip(sources, targets, strict=True))
        return [[(0, 0)] for _ in sources]

    made = shortlist_of(text, model.tokenizers, align)
    assert asked == generate(4, 12)
    first = [pair[0].split()[0] for pair in asked]
    linked = {i for word in first for i in model.tokenizers.source.encode(word)}
    assert {i for i, each in enumerate(made) if len(each)} == linked | {2}


@pytest.mark.parametrize(
    ("exporter", "change", "words"),
    [
        (Firefox(flores=("one",)), {}, "flores=one: give sources and references"),
        (Firefox(flores=("no.en", "no.de")), {}, "no.en: cannot be read"),
        (Firefox(), {"data": {"source_language": None}}, "no training text: give"),
        (Firefox(), {"model": ModelConfig()}, "Bergamot cannot express it"),
        (
            Firefox(),
            {"model": suite.small(**FULL, **INT8)},
            "mixers: the engine of Firefox has ssru alone",
        ),
        (Bergamot(shortlist=("a",)), {}, "shortlist=a: give a file of source lines, one of"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(exporter, change, words, model):
    config = model.config
    if "data" in change:
        change = {"data": replace(config.data, **change["data"])}
    with pytest.raises(UserError, match=words) as refusal:
        exporter.check(replace(config, **change))
    assert "\n" not in str(refusal.value)
