"""Every registered format: a model is exported with equal outputs, or refused by name.

Each registered mixer, position, norm, feed-forward network and reader of the memory is tried, so
a new one cannot be exported wrongly without a test to notice.
"""

import pytest

import transformer_jax as tj
from tests.contract.small_options import small_cross, small_mixer
from tests.formats import exporter_suite as suite
from tests.formats.runtimes import RUNTIMES
from tests.oracles import need
from tests.quick import quick
from transformer_jax.formats.exporters import EXPORTERS
from transformer_jax.layers.registry import FEED_FORWARDS, NORMS
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.models.config import check_model_config
from transformer_jax.models.lora import ADAPTERS
from transformer_jax.models.quantization import QUANTIZATIONS
from transformer_jax.positions.registry import POSITIONS


def variants():
    """(what is tried, which a refusal must name; options of `suite.small`)."""
    for name, kind in MIXERS.items():
        for side in ("encoder", "decoder"):
            if side not in kind.refuses:
                mixer = small_mixer(name, causal=side == "decoder")
                yield f"{side}.mixers={name}", {side: {"mixers": (mixer,)}}
    for name in CROSS_MIXERS:
        yield f"cross={name}", {"cross": small_cross(name)}
    for name, kind in POSITIONS.items():
        yield f"position={name}", {side: {"position": kind()} for side in ("encoder", "decoder")}
    for name, kind in NORMS.items():
        yield f"norm={name}", {"norm": kind()}
    for name, kind in FEED_FORWARDS.items():
        yield f"feed_forward={name}", {"feed_forward": kind()}
    for name, kind in ADAPTERS.items():
        yield f"adapter={name}", {"adapter": kind()}
    for name, kind in QUANTIZATIONS.items():
        yield f"quantize={name}", {"quantize": kind()}


VARIANTS = dict(variants())

#: What a model needs, beside the variant, for a format that takes few models.
T2T = {"position": tj.Sinusoidal(form="tensor2tensor")}
NEEDS = {
    "bergamot": {"norm_placement": "post", "start_id": None, "unused_ids": (0, 1)}
    | {"encoder": T2T, "decoder": T2T},
    "huggingface": {"norm_placement": "post", "norm": tj.LayerNorm(epsilon=1e-5)},
}


def test_every_format_has_a_runtime():
    # A page around what `bergamot` writes, and the same files packed.
    assert set(RUNTIMES) == set(EXPORTERS) - {"web", "firefox"}


CASES = [(format, variant) for format in RUNTIMES for variant in VARIANTS]
#: Arrays by name, whatever they are for.
PLAIN = {("safetensors", name) for name in set(VARIANTS) - {"encoder.mixers=full", "adapter=lora"}}


@pytest.mark.parametrize("case", quick(CASES, *(set(CASES) - PLAIN)))
def test_exported_or_refused(case, tokenizers, tmp_path):
    format, variant = case
    package, load = RUNTIMES[format]
    if package:
        need(package)
    needs, tried = NEEDS.get(format, {}), VARIANTS[variant]
    options = needs | tried
    for side in ("encoder", "decoder"):
        options[side] = {"num_layers": 1} | needs.get(side, {}) | tried.get(side, {})
    config = suite.with_vocabularies(suite.small(**options), tokenizers)
    check_model_config(config)
    exporter = EXPORTERS[format]()
    try:
        exporter.check(tj.Config(model=config))  # `export` asks first, too
    except tj.UserError as refusal:
        assert variant in str(refusal) and "\n" not in str(refusal)
    else:
        model = suite.random_model(config, tokenizers)
        suite.check_log_probs(model, suite.exported(exporter, model, tmp_path / "out", load))


@pytest.mark.parametrize("format", RUNTIMES)
def test_two_vocabularies(format, two, tmp_path):
    package, load = RUNTIMES[format]
    if package:
        need(package)
    config = suite.small(**NEEDS.get(format, {}), tie_embeddings="decoder")
    model = suite.random_model(config, two)
    theirs = suite.exported(EXPORTERS[format](), model, tmp_path / "out", load)
    suite.check_log_probs(model, theirs)
    suite.check_greedy(model, theirs)


class StopsEarly(suite.Ours):
    def greedy(self, sources):
        return [ids[:-1] for ids in super().greedy(sources)]


def test_the_suite_rejects_a_search_that_stops_early(tokenizers):
    model = suite.random_model(suite.small(), tokenizers)
    with pytest.raises(AssertionError):
        suite.check_greedy(model, StopsEarly(model))
