"""Bergamot's engine translates as we do: its WebAssembly, from npm, in node.

The engine is never in the repository: `./run oracles` gets it into `build/bergamot`.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.oracles import missing
from transformer_jax.config import override
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.interop.export import export
from transformer_jax.interop.exporters.base import TrainedModel
from transformer_jax.interop.exporters.bergamot import Bergamot, simulated
from transformer_jax.recipes import load_recipe
from transformer_jax.runs.folder import open_run
from transformer_jax.training.train import train
from transformer_jax.translation.translator import Translator

ENGINE = Path("build/bergamot/node_modules/@browsermt/bergamot-translator/worker").absolute()
SCRIPT = Path(__file__).with_name("bergamot_engine.js")
TEXTS = [pair[0] for pair in generate(7, 150)]


@pytest.fixture(scope="module", autouse=True)
def engine():
    if not (ENGINE.is_dir() and shutil.which("node")):
        missing(f"node, and Bergamot's engine in {ENGINE}")


class InEngine:
    """An exported folder, with the settings that it has for the engine."""

    def __init__(self, folder):
        self._folder = folder

    def translate(self, texts):
        settings = yaml.safe_load((self._folder / "config.intgemm8bitalpha.yml").read_text())
        paths = {name: settings.pop(name) for name in ("models", "vocabs", "relative-paths")}
        settings |= {"cpu-threads": 0, "quiet": True, "quiet-translation": True}
        job = {
            "config": yaml.safe_dump(settings),
            "model": str(self._folder / paths["models"][0]),
            "vocabs": [str(self._folder / name) for name in dict.fromkeys(paths["vocabs"])],
            "texts": list(texts),
        }
        done = subprocess.run(
            ["node", str(SCRIPT), str(ENGINE)],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)


#: Flags of the recipe `quickstart`: what Marian's student recipes have.
COMMON = """model.norm_placement=post model.start_id=none model.unused_ids=0,1,3
    model.encoder.position=sinusoidal(form=tensor2tensor) model.output_bias=true
    model.decoder.position=sinusoidal(form=tensor2tensor) model.matmul_dtype=float32
    model.encoder.num_layers=1 model.decoder.num_layers=1 decode.method=greedy"""
MODELS = {
    "student": "model.decoder.mixers=ssru",
    "attention": "tokenizer.joint=false tokenizer.vocab_size=650 model.tie_embeddings=decoder "
    "model.feed_forward=mlp(activation=silu)",
}


@pytest.fixture(scope="module", params=MODELS)
def run(request, tmp_path_factory, engine):
    flags = dict(flag.split("=", 1) for flag in [*COMMON.split(), *MODELS[request.param].split()])
    workdir = tmp_path_factory.mktemp(request.param) / "run"
    train(override(load_recipe("quickstart"), flags), workdir)
    return open_run(workdir)


def test_every_translation_is_the_same(run, tmp_path):
    folder = export(run, "bergamot", tmp_path / "out")
    # The engine's limit depends on the batch: a translation that reaches one differs.
    ours = run.translator().translate(TEXTS, max_length_factor=3.0)
    assert len(set(ours)) > 100, "the translations do not depend on the source"
    assert InEngine(folder).translate(TEXTS) == ours


def test_int8_is_what_we_simulate(run, tmp_path):
    """But for sums of floats in another order, which may round to the next number."""
    sentences = [pair[0] for pair in generate(8, 100)]
    (tmp_path / "sentences").write_text("".join(f"{text}\n" for text in sentences))
    exporter = Bergamot(precision="int8", sentences=str(tmp_path / "sentences"))
    folder = export(run, exporter, tmp_path / "out")
    model = TrainedModel(run.config, run.params(), run.tokenizers())
    config, params = simulated(model, sentences)
    translator = Translator(config, params, run.tokenizers(), run.config.decode)
    ours = translator.translate(TEXTS, max_length_factor=3.0)
    found = InEngine(folder).translate(TEXTS)
    equal = sum(a == b for a, b in zip(ours, found, strict=True))
    floats = run.translator().translate(TEXTS, max_length_factor=3.0)
    kept = sum(a == b for a, b in zip(found, floats, strict=True))
    print(f"int8: {equal} of {len(TEXTS)} as simulated, {kept} as with floats")
    assert equal >= 0.99 * len(TEXTS)
