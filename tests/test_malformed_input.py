"""Whatever is wrong with configs, texts, tokenizers and run folders: one line, status 2.

Nothing is written anywhere but in the cache, and no malformed input makes a traceback.
"""

import contextlib
import io
import json
import string
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transformer_jax.cli.main import main
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import UserError
from transformer_jax.training.config import Config, check_train_config, from_json, override, to_json
from transformer_jax.training.integrity import find_damage
from transformer_jax.training.metrics import read_metrics

few = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

RECIPE = """
from transformer_jax.data.config import DataConfig, TokenizerConfig
from transformer_jax.training.config import Config
config = Config(
    data=DataConfig(source_language="en", target_language="de"),
    tokenizer=TokenizerConfig(vocab_size=2000),
)
"""


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


def files(folder):
    return sorted((p.relative_to(folder).as_posix(), p.stat().st_size) for p in folder.rglob("*"))


def is_refused(folder, *arguments, stdin=b""):
    """The line of an input that must end in one, and must leave `folder` as it was."""
    before = files(folder)
    status, line = command(*arguments, stdin=stdin)
    assert status == 2, f"status {status}: {line}"
    assert line.startswith("error: "), line
    assert files(folder) == before
    return line


KEYS = [
    f"{group}.{key}" if not isinstance(value, dict) else f"{group}.{key}.{inner}"
    for group, keys in asdict(Config()).items()
    for key, value in keys.items()
    for inner in (value if isinstance(value, dict) else [""])
]
VALUES = st.one_of(
    st.text(string.printable, max_size=8),
    st.integers(-(10**20), 10**20).map(str),
    st.floats().map(str),
    st.sampled_from(["", "nan", "inf", "-1", "0", "true", "None", "[1]", "../../x", "\0", "é"]),
)


@few
@given(key=st.sampled_from(KEYS) | st.text(string.ascii_letters + "._", max_size=12), value=VALUES)
def test_an_override_is_taken_or_refused_in_one_line(key, value):
    try:
        config = override(Config(), {key: value})
        check_train_config(config.train)
    except UserError as error:
        assert "\n" not in str(error).replace(value, "") and str(error)
    else:
        assert from_json(to_json(config), "here") is not None


@few
@given(
    st.lists(
        st.sampled_from(["--config", "--workdir", "--distributed", "--config.train.steps"])
        | st.text(string.printable, max_size=10),
        max_size=3,
    )
)
def test_any_words_after_train_are_refused(tmp_path, words):
    words = [word for word in words if not word.startswith("-h")]
    is_refused(
        tmp_path, "train", f"--config={tmp_path / 'no.py'}", f"--workdir={tmp_path / 'run'}",
        "--bogus", *words,
    )  # fmt: skip


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def broken_configs(draw):
    """A config.json: random bytes, random JSON, or a real one with one value replaced."""
    kind = draw(st.sampled_from(["bytes", "json", "value", "cut", "deep"]))
    if kind == "bytes":
        return draw(st.binary(max_size=60))
    if kind == "json":
        return json.dumps([draw(JSON)]).encode()
    if kind == "deep":
        return b"[" * 100_000
    text = to_json(Config())
    if kind == "cut":
        return text[: draw(st.integers(0, len(text) - 3))].encode()
    raw = json.loads(text)
    group = draw(st.sampled_from(sorted(raw)))
    key = draw(st.sampled_from([k for k, v in sorted(raw[group].items()) if type(v) is not dict]))
    # No config holds a dict where a value should be, or a list of lists.
    raw[group][key] = draw(st.sampled_from([{"x": 1}, [[1]], {}, [None]]))
    return json.dumps(raw).encode()


@few
@given(content=broken_configs(), name=st.sampled_from(["train", "eval", "translate", "score"]))
def test_a_broken_config_json_names_the_file(tmp_path_factory, content, name):
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.json").write_bytes(content)
    (folder / "recipe.py").write_text(RECIPE)
    recipe = [f"--config={folder / 'recipe.py'}"] if name == "train" else []
    line = is_refused(folder, name, *recipe, f"--workdir={folder}", stdin=b"text\ttext\n")
    assert str(folder) in line


@few
@given(
    source=st.binary(max_size=80),
    target=st.binary(max_size=80),
    suffix=st.sampled_from(["txt", "tsv", "jsonl", "txt.gz", "jsonl.gz"]),
)
def test_no_text_of_a_few_bytes_can_be_trained_on(tmp_path_factory, source, target, suffix):
    folder = tmp_path_factory.mktemp("text")
    recipe, one, two = folder / "recipe.py", folder / f"s.{suffix}", folder / f"t.{suffix}"
    recipe.write_text(RECIPE)
    one.write_bytes(source)
    two.write_bytes(target)
    pair_file = suffix.split(".")[0] in ("tsv", "jsonl")
    is_refused(
        folder, "train", f"--config={recipe}", f"--workdir={folder / 'run'}", "--no_progress",
        f"--config.data.train_source={one}", f"--config.data.cache_dir={folder / 'cache'}",
        *([] if pair_file else [f"--config.data.train_target={two}"]),
    )  # fmt: skip


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    from transformer_jax.data.config import TokenizerConfig
    from transformer_jax.data.tokenizer import train_tokenizer

    text = ["the dog sees a cat", "an old man reads", "his long book here today"] * 20
    config = TokenizerConfig(vocab_size=28, byte_fallback=False)
    return train_tokenizer(config, text).model


@few
@given(data=st.data())
def test_a_damaged_tokenizer_works_or_is_one_line(model_file, data):
    kind = data.draw(st.sampled_from(["random", "cut"]))
    if kind == "random":
        content = data.draw(st.binary(max_size=50))
    else:
        content = model_file[: data.draw(st.integers(0, len(model_file)))]
    try:
        tokenizer = Tokenizer(content, "tokenizer/joint.model")
    except UserError as error:
        assert "tokenizer/joint.model" in str(error) and "\n" not in str(error)
    else:
        assert tokenizer.decode(tokenizer.encode("the dog")) is not None


@few
@given(content=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_manifests_and_metrics_of_any_content(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("run")
    (folder / "manifest.json").write_bytes(content)
    (folder / "metrics.jsonl").write_bytes(content)
    damage = find_damage(folder)
    assert damage is not None and "\n" not in damage
    assert all(isinstance(record["step"], int) for record in read_metrics(folder))


@pytest.mark.parametrize(
    "which", ["../../x", "average:../x", "average:\u0663", "-1", "1e3", "", "best/.."]
)
def test_a_checkpoint_name_is_no_path(tmp_path, which):
    (tmp_path / "config.json").write_text(to_json(Config()))
    (tmp_path / "checkpoints" / "4").mkdir(parents=True)
    line = is_refused(tmp_path, "translate", f"--workdir={tmp_path}", f"--checkpoint={which}")
    assert "--checkpoint=" in line


def test_a_run_folder_with_checkpoints_and_no_config_is_refused(tmp_path):
    (tmp_path / "recipe.py").write_text(RECIPE)
    run = tmp_path / "run"
    (run / "checkpoints" / "4").mkdir(parents=True)
    line = is_refused(tmp_path, "train", f"--config={tmp_path / 'recipe.py'}", f"--workdir={run}")
    assert "no config.json" in line


SOURCES = sorted((Path(__file__).parents[1] / "transformer_jax").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_nothing_that_is_read_is_executed(path):
    import ast

    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
            assert not {"pickle", "marshal", "shelve", "dill"} & {n.split(".")[0] for n in names}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "compile", "__import__")
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant) and node.value.value is False
