"""docs/adding_*.md, followed one after the other in a copy of the repository.

Norms, feed-forward networks and positions have test_adding_layers.py: both files compile many
programs.
"""

import pytest

from tests.followed_page import PAGES, copied, run_all, run_commands

READS = "docs/adding_*.md"
#: What the pages add -> the tests of its kind, and the page's own.
ADDED = {
    "tmx": ("contract.test_sources", "data.test_tmx"),
    "min_p": ("decoding.test_methods", "decoding.test_min_p"),
    "moving_average": ("contract.test_mixers", "mixers.test_moving_average"),
}


@pytest.mark.parametrize("name", ADDED)
def test_what_is_added_passes_the_tests_of_its_kind_and_of_the_page(tests_of, name):
    kind, own = ADDED[name]
    run_all(tests_of(kind, name), at_least=3)
    run_all(tests_of(own))


def test_every_source_still_has_an_example(tree):
    copied(tree, "tests.contract.test_sources").test_every_source_has_an_example()


def test_the_pages_of_options_and_mixers_know_them(tree):
    pages = copied(tree, "tests.test_mixers_doc")
    with pytest.raises(AssertionError, match=r"run: python docs/make_configuration\.py"):
        pages.test_the_page_is_what_the_config_classes_say()
    for page in PAGES:
        run_commands(page, tree)
    pages.test_the_page_is_what_the_config_classes_say()
    written = (tree / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert all(f"### {name}\n" in written for name in (*ADDED, "dynamic_tanh", "maxout", "kerple"))
    assert "| `longest` | `10.0` |" in written and "| `initial` | `1.0` |" in written
    pages.test_roles()
    pages.test_hooks()


def test_flags_and_json_know_them(tree):
    config = copied(tree, "transformer_jax.config")
    flags = {"decode.method": "min_p(num_samples=2)", "decode.method.min_p": "0.05"}
    flags |= {"data.source": "tmx(train=a.tmx)", "model.norm": "dynamic_tanh(alpha=0.8)"}
    flags |= {"model.feed_forward": "maxout(pieces=3)", "model.encoder.position": "kerple"}
    flags |= {"model.decoder.mixers": "moving_average(longest=5),full"}
    changed = config.override(config.Config(), flags)
    MinP = copied(tree, "transformer_jax.decoding.min_p").MinP
    assert changed.decode.method == MinP(num_samples=2, min_p=0.05)
    assert changed.model.decoder.mixers[0].longest == 5.0
    assert config.from_json(config.to_json(changed), "config.json") == changed


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"encoder.mixers": "moving_average"}, "mixers=moving_average: .* looks only backwards"),
        (
            {"encoder.position": "kerple", "encoder.mixers": "linear"},
            "position=kerple adds a number .*mixers=linear does not",
        ),
    ],
)
def test_what_they_refuse(tree, keys, message):
    config = copied(tree, "transformer_jax.config")
    check = copied(tree, "transformer_jax.models.config").check_model_config
    sizes = {"model.source_vocab_size": 20, "model.target_vocab_size": 20}
    flags = sizes | {f"model.{key}": value for key, value in keys.items()}
    with pytest.raises(copied(tree, "transformer_jax.errors").UserError, match=message):
        check(config.override(config.Config(), flags).model)
