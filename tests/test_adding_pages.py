"""docs/adding_*.md, followed one after the other in a copy of the repository.

Norms, feed-forward networks and positions have test_adding_layers.py: both files compile many
programs.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.followed_page import PAGES, break_it, copied, failures, run_all, run_commands

READS = "docs/adding_*.md"
#: What the pages add -> the tests of its kind, and the page's own.
ADDED = {
    "tmx": ("contract.test_sources", "data.test_tmx"),
    "min_p": ("decoding.test_methods", "decoding.test_min_p"),
    "moving_average": ("contract.test_mixers", "mixers.test_moving_average"),
}


@pytest.mark.parametrize("name", ADDED)
def test_what_is_added_passes_the_tests_of_its_kind(tests_of, name):
    run_all(tests_of(ADDED[name][0], name), at_least=3)


def test_every_source_still_has_an_example(tree):
    copied(tree, "tests.contract.test_sources").test_every_source_has_an_example()


@pytest.mark.parametrize("name", ADDED)
def test_the_tests_of_the_page(tests_of, name):
    run_all(tests_of(ADDED[name][1]))


@pytest.mark.parametrize(
    ("name", "place", "broken", "fail"),
    [
        ("tmx", "data.sources.tmx:_LANGUAGE", lambda _: "lang", 1),
        ("min_p", "decoding.min_p:draw", lambda draw: lambda *a: draw(*a[:2], 0 * a[2]), 5),
        (
            "moving_average",
            "mixers.moving_average:MovingAverageMixer.step",
            lambda step: lambda *a: (step(*a)[0], 0.9 * step(*a)[1]),
            1,
        ),
    ],
)
def test_the_tests_of_the_page_can_fail(tree, tests_of, monkeypatch, name, place, broken, fail):
    break_it(tree, monkeypatch, place, broken)
    assert failures(tests_of(ADDED[name][1])) == fail


def test_the_pages_of_options_and_mixers_know_them(tree):
    options = copied(tree, "tests.test_configuration_doc")
    with pytest.raises(AssertionError, match=r"run: python docs/make_configuration\.py"):
        options.test_the_page_is_what_the_config_classes_say()
    for page in PAGES:
        run_commands(page, tree)
    options.test_the_page_is_what_the_config_classes_say()
    written = (tree / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert all(f"### {name}\n" in written for name in (*ADDED, "dynamic_tanh", "maxout", "kerple"))
    assert "| `longest` | `10.0` |" in written and "| `initial` | `1.0` |" in written
    copied(tree, "tests.test_mixers_doc").test_roles()
    copied(tree, "tests.test_mixers_doc").test_hooks()


def test_flags_and_json_know_them(tree):
    config = copied(tree, "transformer_jax.config")
    flags = {"decode.method": "min_p(num_samples=2)", "decode.method.min_p": "0.05"}
    changed = config.override(config.Config(), flags | {"data.source": "tmx(train=a.tmx)"})
    MinP = copied(tree, "transformer_jax.decoding.min_p").MinP
    assert changed.decode.method == MinP(num_samples=2, min_p=0.05)
    assert config.from_json(config.to_json(changed), "config.json") == changed


def test_a_run_reads_its_text_through_a_new_source(tree, tmp_path):
    """Hold-out, tokenizer and ids come without further code."""
    text = {"train": copied(tree, "transformer_jax.testing.sources").TEXT["train"]}
    source, _ = copied(tree, "tests.contract.source_examples").tmx(tmp_path, text)
    config = copied(tree, "transformer_jax.config")
    flags = {
        "data.source": "tmx",
        "data.source.train": str(Path(source.train)),
        "data.source_language": "en",
        "data.target_language": "de",
        "data.validation_from_train": "9",
        "data.cache_dir": str(tmp_path / "cache"),
        "tokenizer.vocab_size": "300",
    }
    changed = config.override(config.Config(), flags)
    assert changed.data.source == source
    first_documents = copied(tree, "transformer_jax.data.splits").first_documents
    learn = copied(tree, "transformer_jax.data.tokenizer_training").tokenizers_of_text
    ids_of_text = copied(tree, "transformer_jax.data.ids").ids_of_text
    assert first_documents(changed.data, "validation", 100) == [text["train"][-9:]]
    corpus = ids_of_text(changed.data, learn(changed.tokenizer, changed.data))
    assert len(corpus) == len(text["train"]) - 9


def model(**keys):
    """A small model of the copy; its decoder alternates a new mixer with full attention."""
    from transformer_jax.config import Config, override

    small = {"source_vocab_size": 20, "target_vocab_size": 20, "max_length": 8}
    small |= {"d_model": 16, "d_ff": 16, "num_heads": 2}
    small |= {"encoder.num_layers": 1, "decoder.num_layers": 3, "decoder.position": "none"}
    keys = small | {"decoder.mixers": "moving_average(longest=5),full"} | keys
    return override(Config(), {f"model.{key}": value for key, value in keys.items()}).model


def test_a_hybrid_with_a_new_mixer_decodes_as_it_trains(tree):
    from transformer_jax.models import api

    config = model()
    assert config.decoder.mixers[0].longest == 5.0
    params = jax.jit(api.init, static_argnums=0)(config, jax.random.key(0))
    assert "decay" in params["decoder"]["blocks_2"]["mixer"]
    ids, mask = jnp.array([[5, 6, 7, 2]]), jnp.ones((1, 4), bool)
    target_in = api.shift_right(ids)
    want = jax.jit(api.apply, static_argnums=0)(config, params, ids, mask, target_in, mask)
    encode = jax.jit(api.encode, static_argnums=0, static_argnames="max_length")
    sentence, state = encode(config, params, ids, mask, max_length=4)
    step = jax.jit(api.decode_step, static_argnums=0)
    for t in range(4):
        got, state = step(config, params, target_in[:, t : t + 1], jnp.int32(t), state, sentence)
        np.testing.assert_allclose(got[:, 0], want[:, t], atol=2e-5)


def test_a_model_has_new_layers(tree):
    from transformer_jax.models import api

    config = model(norm="dynamic_tanh(alpha=0.8)", feed_forward="maxout(pieces=3)")
    block = jax.eval_shape(lambda: api.init(config, jax.random.key(0)))["decoder"]["blocks_0"]
    assert set(block["feed_forward"]) == {"up_0", "up_1", "up_2", "down"}
    assert set(block["mixer_residual"]["norm"]) == {"alpha", "scale", "bias"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mixers": "moving_average"}, "mixers=moving_average: .* looks only backwards; use"),
        (
            {"mixers": "moving_average(longest=0.5)"},
            r"mixers.*moving_average\(longest=0.5\).*greater than 1",
        ),
        ({"mixers": "moving_average(dropout_rate=1)"}, "dropout_rate'.*its options are longest"),
        ({"position": "kerple(initial=0)"}, r"kerple\(initial=0\).*greater than 0"),
        (
            {"position": "kerple", "mixers": "linear"},
            "position=kerple adds a number .*mixers=linear does not",
        ),
    ],
)
def test_what_they_refuse(tree, keys, message):
    from transformer_jax.errors import UserError
    from transformer_jax.models.config import check_model_config

    with pytest.raises(UserError, match=message):
        check_model_config(model(**{f"encoder.{key}": value for key, value in keys.items()}))


def test_both_ways_gives_a_new_mixer_the_encoder(tree):
    suite = copied(tree, "transformer_jax.testing.mixers")
    module = copied(tree, "transformer_jax.mixers.moving_average")
    both_ways = copied(tree, "transformer_jax.mixers.both_ways")

    class BothWays(both_ways.BothWaysConfig):
        longest = 5.0

        def build_causal(self, context, position):
            return module.MovingAverageMixer(self, context, position)

    context = suite.context(causal=False)
    mixer = BothWays().build(context, suite.position(causal=False))
    suite.check_sees_both_ways(mixer, suite.initialised(mixer))
