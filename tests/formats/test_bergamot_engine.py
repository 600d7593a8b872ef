"""Bergamot's engine translates as we do: its WebAssembly, from npm, in node.

The engine is never in the repository: `./run oracles` gets it into `build/bergamot`.
"""

import functools
import http.server
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.oracles import missing, need
from tests.pages import load_script
from tests.running_server import running
from transformer_jax.config import override
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.formats.exporter import TrainedModel
from transformer_jax.formats.marian.bergamot import Bergamot, calibrated
from transformer_jax.formats.marian.shortlist import shortlist_of
from transformer_jax.formats.marian.web import Web
from transformer_jax.models import api
from transformer_jax.runs.pretrained import starting_from
from transformer_jax.vocabulary import EOS_ID

bergamot = load_script("bergamot_engine", "benchmarks")
TEXTS = [pair[0] for pair in generate(7, 150)]


@pytest.fixture(scope="module", autouse=True)
def engine():
    if not (bergamot.ENGINE.is_dir() and shutil.which("node")):
        missing(f"node, and Bergamot's engine in {bergamot.ENGINE}")


#: Flags of the recipe `quickstart`: what Marian's student recipes have.
COMMON = """model.norm_placement=post model.start_id=none model.unused_ids=0,1,3
    model.encoder.position=sinusoidal(form=tensor2tensor) model.output_bias=true
    model.decoder.position=sinusoidal(form=tensor2tensor) model.matmul_dtype=float32
    model.encoder.num_layers=1 model.decoder.num_layers=1 decode.method=greedy
    tokenizer.byte_fallback=true model.norm=layer batch.num_buckets=5
    train.schedule.warmup_steps=120"""
MODELS = {
    "student": "model.decoder.mixers=ssru",
    # After 450 steps 139 to 146 of its 150 translations end, by how XLA compiles a step.
    "attention": "tokenizer.joint=false tokenizer.vocab_size=650 model.tie_embeddings=decoder "
    "model.feed_forward=mlp(activation=silu) train.steps=600",
}


@pytest.fixture(scope="module", params=MODELS)
def run(request, tmp_path_factory, engine):
    flags = dict(flag.split("=", 1) for flag in [*COMMON.split(), *MODELS[request.param].split()])
    workdir = tmp_path_factory.mktemp(request.param) / "run"
    return tj.train(override(tj.load_recipe("quickstart"), flags), workdir)


def translations_that_end(translator):
    """Ours, or None where it may reach the engine's limit, which depends on the batch."""
    found = translator.decode(TEXTS, num_best=1, max_length_factor=3.0).translations
    assert len({best.text for (best,) in found}) > 100, "they do not depend on the source"
    encode = translator.tokenizers.source.encode
    ours = [
        best.text if len(best.tokens) < 2 * len(encode(text)) else None
        for (best,), text in zip(found, TEXTS, strict=True)
    ]
    assert len(ours) - ours.count(None) > 140
    return ours


def test_every_translation_is_the_same(run, tmp_path):
    folder = tj.export(run, "bergamot", tmp_path / "out")
    rows = zip(
        translations_that_end(run.translator()),
        bergamot.translate_in_engine(folder, TEXTS),
        strict=True,
    )
    assert [(ours, theirs) for ours, theirs in rows if ours not in (None, theirs)] == []


APPLY = jax.jit(api.apply, static_argnums=0)


def greedy_among(translator, lists, text):
    """The greedy translation whose pieces are those of a shortlist, by the logits of all pieces.

    None if it has more than twice as many pieces as the source: the engine may end it somewhere.
    """
    config, tokenizers = translator.model.members[0], translator.tokenizers
    ids = [*tokenizers.source.encode(text), EOS_ID]
    allowed = set().union(*(lists[each].tolist() for each in ids))
    if tokenizers.joint:
        allowed |= set(ids)
    masked = np.full(config.target_vocab_size, -np.inf)
    masked[sorted(allowed)] = 0
    source, mask = np.array([ids + [0] * (64 - len(ids))]), np.arange(64)[None] < len(ids)
    tokens = []
    while not tokens or tokens[-1] != EOS_ID:
        if len(tokens) > 2 * len(ids):
            return None
        target = np.array([tokens + [0] * (64 - len(tokens))])
        arrays = source, mask, api.shift_right(target), np.ones((1, 64), bool)
        logits = APPLY(config, translator.params, *arrays)[0, len(tokens)]
        tokens.append(int((np.asarray(logits) + masked).argmax()))
    return tokenizers.target.decode(tokens[:-1])


@pytest.fixture(scope="module")
def aligned(tmp_path_factory):
    """The files of a short text with wrong links: by these many translations are others."""
    folder = tmp_path_factory.mktemp("aligned")
    pairs = generate(9, 100)
    links = [
        " ".join(f"{i}-{i}" for i in range(min(len(text.split()) for text in pair)))
        for pair in pairs
    ]
    files = [str(folder / name) for name in ("in.en", "in.de", "in.align")]
    for name, lines in zip(files, [*zip(*pairs, strict=True), links], strict=True):
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return files


def test_a_shortlist_has_the_pieces_that_the_engine_chooses_among(run, aligned, tmp_path):
    translator = run.translator()
    folder = tj.export(run, f"bergamot(shortlist='{','.join(aligned)}')", tmp_path / "out")
    lists = shortlist_of(aligned, run.tokenizers())
    found = bergamot.translate_in_engine(folder, TEXTS[:40], alone=True)
    want = [greedy_among(translator, lists, text) for text in TEXTS[:40]]
    # The engine fills up its list to a multiple of eight with the first ids.
    same = [one == other for one, other in zip(found, want, strict=True) if other is not None]
    assert len(same) > 30 and all(same)
    assert sum(a != b for a, b in zip(want, translator.translate(TEXTS[:40]), strict=True)) > 10


def simulated(model):
    """Our translations of `TEXTS` by a model of int8.

    In a process of its own, without the flags of `conftest.py`: with optimisation of level 0 and
    without emitters of fusions, XLA of jaxlib 0.10 computes a search with rounded activations
    wrongly ("Unser rotes Bettiiier es ist"). With one of these flags alone it is right.
    """
    source = "from tests.formats.test_bergamot_engine import translate_pickled as f; f()"
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(
        [sys.executable, "-c", source],
        input=pickle.dumps(model._replace(params=jax.tree.map(np.asarray, model.params))),
        capture_output=True,
        env=environment,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return json.loads(done.stdout)


def translate_pickled():
    """Of standard input, as JSON on standard output."""
    model = pickle.load(sys.stdin.buffer)
    decode = tj.DecodeConfig(method=tj.Greedy())
    translator = tj.Translator(model.config.model, model.params, model.tokenizers, decode)
    print(json.dumps(translations_that_end(translator)))


def share_equal(ours, found):
    """Of the translations that end."""
    equal = [a == b for a, b in zip(ours, found, strict=True) if a is not None]
    return sum(equal) / len(equal)


@pytest.fixture(scope="module")
def measured(run, tmp_path_factory):
    """(the exporter's options for int8, what it exports)."""
    sentences = [pair[0] for pair in generate(8, 100)]
    file = tmp_path_factory.mktemp("text") / "sentences"
    file.write_text("".join(f"{text}\n" for text in sentences))
    model = calibrated(TrainedModel(run.config, run.params(), run.tokenizers()), sentences)
    return {"quantization": "int8", "sentences": str(file)}, simulated(model)


def test_int8_is_what_we_simulate(run, measured, tmp_path):
    """In 99 of 100: floats that are summed up in another order may round to another number."""
    options, ours = measured
    folder = tj.export(run, Bergamot(**options), tmp_path / "out")
    assert share_equal(ours, bergamot.translate_in_engine(folder, TEXTS)) >= 0.99


def test_a_model_trained_in_int8_is_what_runs_in_int8(run, tmp_path):
    flags = {"model.quantize": "int8", "train.init_from": str(run.path), "train.steps": "30"}
    config = starting_from(override(run.config, flags), str(run.path))
    config = override(config, {"model.quantize": "int8"})
    tuned = tj.train(config, tmp_path / "tuned")
    folder = tj.export(tuned, "bergamot", tmp_path / "out")
    model = TrainedModel(tuned.config, tuned.params(), tuned.tokenizers())
    ours, found = simulated(model), bergamot.translate_in_engine(folder, TEXTS)
    assert share_equal(ours, found) >= 0.99
    before = run.params()["encoder"]["blocks_0"]["feed_forward"]["up"]["kernel"]
    after = model.params["encoder"]["blocks_0"]["feed_forward"]["up"]["kernel"]
    assert np.abs(before - after).max() > 0, "nothing was trained"


class Static(http.server.SimpleHTTPRequestHandler):
    """A server that knows no type of any file but those that a page needs."""

    extensions_map = {"": "application/octet-stream"} | {
        f".{name}": f"text/{kind}"
        for name, kind in (("html", "html"), ("js", "javascript"), ("css", "css"))
    }

    def log_message(self, *args):
        pass


@pytest.mark.parametrize("kind", ["float32", "int8", "shortlist"])
def test_the_page_translates_without_a_network(kind, run, measured, aligned, browser, tmp_path):
    text, options = TEXTS[0], {}
    if kind == "int8":
        options, (want, *_) = measured
    elif kind == "shortlist":
        options = {"shortlist": tuple(aligned)}
        lists, translator = shortlist_of(aligned, run.tokenizers()), run.translator()
        found = ((each, greedy_among(translator, lists, each)) for each in TEXTS)
        text, want = next((each, best) for each, best in found if best is not None)
    else:
        want = run.translator().translate([text], max_length_factor=3.0)[0]
    folder = tj.export(run, Web(engine=str(bergamot.ENGINE), **options), tmp_path / "out")
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Static, directory=str(folder))
    )
    url = f"http://127.0.0.1:{server.server_port}/"
    wait = need("selenium.webdriver.support.ui").WebDriverWait(browser, 120, 0.05).until

    def text_of(name):
        return browser.find_element("id", name).get_property("textContent")

    with running(server):
        browser.get_log("performance")
        browser.get_log("browser")
        browser.get(url)
        wait(lambda _: text_of("status") not in ("", "Loading the model …"))
        assert text_of("status") == "Ready"
        assert [text_of(side) for side in ("source", "target")] == ["English", "German"]
    browser.find_element("id", "text").send_keys(text)
    wait(lambda _: text_of("status") == "Translated")
    assert text_of("words") == want
    browser.find_element("id", "clear").click()
    wait(lambda _: text_of("status") == "Ready" and not text_of("words"))
    sent = [json.loads(each["message"])["message"] for each in browser.get_log("performance")]
    urls = [
        m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"
    ]
    assert urls and all(each.startswith(url) for each in urls)
    assert [each for each in browser.get_log("browser") if each["level"] == "SEVERE"] == []
