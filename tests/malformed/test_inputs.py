"""Flags, texts and tokenizer models that are wrong: one line, status 2, nothing written.

Nothing is written anywhere but in the cache, and no malformed input makes a traceback.
"""

import string

import pytest
from hypothesis import example, given, strategies as st

from tests.malformed.harness import TEXT, few, is_refused, training
from transformer_jax.config import Config, from_json, override, to_dict, to_json
from transformer_jax.data.config import TokenizerConfig
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.data.tokenizer_training import train_tokenizer
from transformer_jax.errors import UserError


def keys(tree, prefix=""):
    """The dotted keys of nested dicts, those of groups included."""
    for name, value in tree.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from keys(value, f"{prefix}{name}.")


KEYS = list(keys(to_dict(Config())))
VALUES = st.one_of(
    st.text(string.printable, max_size=8),
    st.integers(-(10**20), 10**20).map(str),
    st.floats().map(str),
    st.sampled_from(["", "nan", "inf", "-1", "0", "true", "None", "[1]", "../../x", "\0", "é"]),
)


@few
@given(
    key=st.sampled_from(KEYS) | st.text(string.ascii_letters + "._", min_size=1, max_size=12),
    value=VALUES,
)
@example(key="model.norm.epsilon", value="INF")
def test_an_override_is_taken_or_refused_in_one_line(place, tmp_path_factory, key, value):
    try:
        config = override(Config(), {key: value})
    except UserError as error:
        folder = tmp_path_factory.mktemp("override")
        line = is_refused(folder, *training(place, folder / "run", f"--config.{key}={value}"))
        assert f"--config.{key}" in line or line.split() == f"error: {error}".split()
        return
    assert from_json(to_json(config), "here") == config


@few
@given(
    st.sampled_from(["--bogus", "--config.train.steps", "--config.train.stops=1", "--config"])
    | st.text(string.printable, min_size=1, max_size=10).filter(
        lambda word: word != "--" and not word.startswith("-h")
    )
)
def test_a_word_that_is_no_flag_is_named(place, tmp_path_factory, word):
    folder = tmp_path_factory.mktemp("word")
    line = is_refused(folder, *training(place, folder / "run", word))
    named = word.split("=")[0].removeprefix("--config.") if "stops" in word else word
    assert " ".join(named.split()) in " ".join(line.split())


@pytest.fixture(scope="module")
def model_file():
    config = TokenizerConfig(vocab_size=28, byte_fallback=False)
    return train_tokenizer(config, TEXT).model


@few
@given(drawn=st.binary(max_size=50) | st.floats(0, 1))
def test_a_damaged_tokenizer_works_or_is_one_line(model_file, drawn):
    """Random bytes, or this share of a whole one."""
    content = model_file[: int(drawn * len(model_file))] if isinstance(drawn, float) else drawn
    try:
        tokenizer = Tokenizer(content, "tokenizer/joint.model")
    except UserError as error:
        assert "tokenizer/joint.model" in str(error) and "\n" not in str(error)
    else:
        assert tokenizer.decode(tokenizer.encode("the dog")) is not None
