"""Follows docs/adding_a_mixer.md as a stranger would: in a copy of the repository, file by file.

The copy is imported in place of the real package while this file's tests run, so every
file of the page must import what it uses, and its row of the registry must be enough.
"""

import importlib
import importlib.util
import re
import runpy
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "adding_a_mixer.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)(?: title=(\S+))?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
#: Everything that is imported from the copy.
COPIED = ("transformer_jax", "suite", "small_options", "naive_moving_average")

SIZES = {
    "source_vocab_size": "20",
    "target_vocab_size": "20",
    "d_model": "16",
    "d_ff": "16",
    "num_heads": "2",
    "max_length": "8",
    "encoder.num_layers": "1",
    "decoder.num_layers": "3",
    "decoder.position": "none",
    "decoder.mixers": "moving_average,full",
}


def follow(tree: Path) -> None:
    """Does in `tree` what the page says, block by block."""
    for kind, title, text in BLOCKS:
        file = tree / title
        if kind == "python":
            assert not file.exists(), f"{title} is there already"
            file.write_text(text, encoding="utf-8")
        elif kind == "diff":
            file.write_text(patched(file.read_text(encoding="utf-8"), text), encoding="utf-8")
        elif kind == "markdown":  # a row at the end of the table of the same width
            lines = file.read_text(encoding="utf-8").splitlines()
            columns = text.count("|")
            rows = [n for n, line in enumerate(lines) if line.count("|") == columns]
            lines.insert(rows[-1] + 1, text.rstrip("\n"))
            file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def patched(text: str, diff: str) -> str:
    """Each line with a + enters after the line above it in the diff."""
    lines, at = text.splitlines(), 0
    for line in diff.splitlines():
        if line.startswith("+"):
            lines.insert(at + 1, line[1:])
            at += 1
        else:
            at = lines.index(line[1:])
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The copy, with the page followed in it, on the import path instead of the repository."""
    tree = tmp_path_factory.mktemp("followed")
    # Compiled files and all, which is faster; but not those that another process is writing.
    half_written = shutil.ignore_patterns("*.pyc.*")
    for folder in ("transformer_jax", "tests/contract"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=half_written)
    (tree / "docs").mkdir()
    for file in (
        "docs/mixers.md",
        "docs/configuration.md",
        "docs/make_configuration.py",
        "tests/test_mixers_doc.py",
        "tests/test_configuration_doc.py",
    ):
        shutil.copy(ROOT / file, tree / file)
    for folder in ("tests/mixers", "tests/reference"):
        (tree / folder).mkdir()
    follow(tree)
    paths = [str(tree), *(str(tree / "tests" / name) for name in ("contract", "reference"))]
    with pytest.MonkeyPatch.context() as patch:
        for name in copied_modules():
            patch.delitem(sys.modules, name)
        patch.setattr(sys, "path", [*paths, *sys.path])
        yield tree
        for name in copied_modules():
            del sys.modules[name]


def copied_modules():
    return [name for name in sys.modules if name.partition(".")[0] in COPIED]


@cache
def module(tree, name):
    """A file of the copy by itself, as pytest imports it: with no names but its own."""
    spec = importlib.util.spec_from_file_location(f"copy_of_{Path(name).stem}", tree / name)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def config(tree, **overrides):
    """The config of a model whose decoder alternates the new mixer with full attention."""
    from transformer_jax.config import Config, override

    keys = SIZES | {key.replace("__", "."): value for key, value in overrides.items()}
    return override(Config(), {f"model.{key}": value for key, value in keys.items()}).model


def the_mixer(tree):
    import transformer_jax
    from transformer_jax.mixers.registry import MIXERS

    assert Path(transformer_jax.__file__).is_relative_to(tree)
    return MIXERS["moving_average"]


def test_no_line_is_longer_than_the_linter_allows():
    lines = [line for kind, _, text in BLOCKS if kind == "python" for line in text.splitlines()]
    assert lines
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    "check",
    [
        "check_step_equals_parallel",
        "check_no_leak",
        "check_padding_and_batch_mates",
        "check_beams_permute",
        "check_gradients",
    ],
)
def test_the_suite_finds_the_mixer_of_the_page(tree, check):
    contract, suite = (
        module(tree, "tests/contract/test_mixers.py"),
        importlib.import_module("suite"),
    )
    assert "moving_average" in contract.CAUSAL
    assert "moving_average" not in contract.BIDIRECTIONAL
    contract.test_decoder("moving_average", getattr(suite, check))


def test_the_test_of_the_page(tree):
    module(tree, "tests/mixers/test_moving_average.py").test_equals_the_loop()


def test_the_test_of_the_page_can_fail(tree, monkeypatch):
    step = the_mixer(tree).step
    monkeypatch.setattr(the_mixer(tree), "step", lambda *a: (step(*a)[0], step(*a)[1] * 0.9))
    with pytest.raises(AssertionError):
        module(tree, "tests/mixers/test_moving_average.py").test_equals_the_loop()


def test_the_pages_of_mixers_and_options_know_it(tree):
    pages = (
        module(tree, "tests/test_mixers_doc.py"),
        module(tree, "tests/test_configuration_doc.py"),
    )
    pages[0].test_roles()
    with pytest.raises(AssertionError, match=r"run: python docs/make_configuration\.py"):
        pages[1].test_the_page_is_what_the_config_classes_say()
    [[command]] = (
        re.findall(r"^python (\S+)$", text, re.M) for kind, _, text in BLOCKS if kind == "sh"
    )
    runpy.run_path(str(tree / command), run_name="__main__")
    pages[1].test_the_page_is_what_the_config_classes_say()
    written = (tree / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert "| `model.decoder.options.moving_average.longest` | `10.0` |" in written


def test_a_hybrid_with_it_decodes_as_it_trains(tree):
    from transformer_jax.models import api

    model = config(tree, decoder__options__moving_average__longest="5")
    assert model.decoder.options.moving_average.longest == 5.0
    params = jax.jit(api.init, static_argnums=0)(model, jax.random.key(0))
    assert "decay" in params["decoder"]["blocks_2"]["mixer"]
    ids, mask = jnp.array([[5, 6, 7, 2]]), jnp.ones((1, 4), bool)
    target_in = api.shift_right(ids)
    want = jax.jit(api.apply, static_argnums=0)(model, params, ids, mask, target_in, mask)
    encode = jax.jit(api.encode, static_argnums=0, static_argnames="max_length")
    sentence, state = encode(model, params, ids, mask, max_length=4)
    step = jax.jit(api.decode_step, static_argnums=0)
    for t in range(4):
        got, state = step(model, params, target_in[:, t : t + 1], jnp.int32(t), state, sentence)
        np.testing.assert_allclose(got[:, 0], want[:, t], atol=2e-5)


def test_what_it_refuses(tree):
    from transformer_jax.errors import UserError
    from transformer_jax.models.config import check_model_config

    with pytest.raises(UserError, match="mixers=moving_average: .* looks only backwards; use"):
        check_model_config(config(tree, encoder__mixers="moving_average"))
    with pytest.raises(UserError, match="options.moving_average.longest=0.5: must be more than 1"):
        check_model_config(config(tree, decoder__options__moving_average__longest="0.5"))
    with pytest.raises(UserError, match="no attention weights to drop"):
        check_model_config(config(tree, attention_dropout_rate="0.1"))


def test_both_ways_gives_it_the_encoder(tree):
    from transformer_jax.mixers.both_ways import BothWaysOptions, both_ways

    suite, cls = importlib.import_module("suite"), the_mixer(tree)

    @dataclass(frozen=True)
    class Options(BothWaysOptions, cls.Options):
        """The mixer's own and those of the two directions."""

    forwards = type("Forwards", (cls,), {"Options": Options, "refuses": {}})
    mixer = both_ways(forwards)(
        suite.context(causal=False), Options(), suite.position(causal=False)
    )
    suite.check_sees_both_ways(mixer, suite.initialised(mixer))
