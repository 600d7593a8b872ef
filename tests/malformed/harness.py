"""What the tests of malformed input share: a recipe, and commands that must be refused."""

import contextlib
import hashlib
import io
import json
import sys

from hypothesis import settings, strategies as st

from tests.toy_run import train_command
from transformer_jax.commands.main import main

few = settings(max_examples=25)
fewer = settings(max_examples=8)

RECIPE = """
from transformer_jax.data.config import BatchConfig, DataConfig, TokenizerConfig
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.config import Config, TrainConfig
config = Config(
    data=DataConfig(source_language="en", target_language="de"),
    tokenizer=TokenizerConfig(vocab_size=28, byte_fallback=False),
    batch=BatchConfig(tokens=512, max_length=32, num_buckets=1),
    model=ModelConfig(d_model=8, d_ff=8, num_heads=2, encoder=StackConfig(num_layers=1),
                      decoder=StackConfig(num_layers=1), max_length=32),
    train=TrainConfig(steps=1, keep_checkpoints=1),
)
"""
TEXT = ["the dog sees a cat", "an old man reads", "his long book here today"] * 20


def command(*arguments, stdin=b""):
    """(status, last line on standard error) of a command run in this process."""
    error = io.StringIO()
    before = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    try:
        with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
            status = main([str(argument) for argument in arguments])
    finally:
        sys.stdin = before
    lines = error.getvalue().strip().splitlines()
    return status, lines[-1] if lines else ""


def contents(folder):
    """Every file with its bytes; not the lock, which only says who came last."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (".lock", "log.txt")
    }


def is_refused(folder, *arguments, stdin=b""):
    """The line of an input that must end in one, and must leave `folder` as it was.

    A run's own log takes the line, and no other file anything.
    """
    before, log = contents(folder), folder / "log.txt"
    logged = log.read_bytes() if log.exists() else b""
    status, line = command(*arguments, stdin=stdin)
    assert status == 2, f"status {status}: {line}"
    assert line.startswith("error: "), line
    assert contents(folder) == before
    assert not log.exists() or log.read_bytes().startswith(logged)
    return line


def training(place, run, *more):
    """The command that trains there, and goes on with the run that it made."""
    return train_command(
        place,
        run,
        f"--config.data.source.test_source={place / 'train.en'}",
        f"--config.data.source.test_target={place / 'train.de'}",
        *more,
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


ANY_JSON = st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode())
