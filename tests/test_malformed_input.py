"""Whatever is wrong with configs, texts, tokenizers and run folders: one line, status 2.

Nothing is written anywhere but in the cache, and no malformed input makes a traceback.
"""

import contextlib
import hashlib
import io
import json
import shutil
import string
import sys
from dataclasses import asdict
from pathlib import Path

import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from transformer_jax.cli.main import main
from transformer_jax.data import pipeline
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import UserError
from transformer_jax.training import loop
from transformer_jax.training.config import Config, check_train_config, from_json, override, to_json
from transformer_jax.training.integrity import find_damage, write_manifest
from transformer_jax.training.metrics import read_metrics

few = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
fewer = settings(few, max_examples=8)
fewest = settings(few, max_examples=2)  # where each takes a command half a second

RECIPE = """
from transformer_jax.data.config import BatchConfig, DataConfig, TokenizerConfig
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.training.config import Config, TrainConfig
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


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a recipe and two texts."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "recipe.py").write_text(RECIPE)
    for name in ("text.en", "text.de"):
        (folder / name).write_text("\n".join(TEXT) + "\n")
    return folder


def training(place, run, *more):
    """The command that trains there, and goes on with the run that it made."""
    return [
        "train", f"--config={place / 'recipe.py'}", f"--workdir={run}", "--no_progress",
        f"--config.data.train_source={place / 'text.en'}",
        f"--config.data.train_target={place / 'text.de'}",
        f"--config.data.test_source={place / 'text.en'}",
        f"--config.data.test_target={place / 'text.de'}",
        f"--config.data.cache_dir={place / 'cache'}", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def trained(place):
    """A run folder as training writes it, of one step that changes nothing.

    Compiling a real one, and importing TensorFlow to feed it, would take most of this file's time.
    """

    def step(state, batch):
        zero, one = jnp.float32(0), jnp.float32(1)
        metrics = {"loss_sum": one, "nll_sum": one, "tokens": one, "grad_norm": one}
        return state, metrics | {"finite": True, "skipped": zero, "skipped_in_a_row": zero}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "has_tensorflow", lambda: False)
        patch.setattr(loop, "make_train_step", lambda *_: step)
        assert command(*training(place, place / "run"))[0] == 0
    return place / "run"


@pytest.fixture
def copy_of(trained, tmp_path_factory):
    """copy_of() -> a copy of the run folder, for a test to damage."""

    def copy():
        folder = tmp_path_factory.mktemp("copy") / "run"
        shutil.copytree(trained, folder)
        return folder

    return copy


def test_training_takes_what_is_damaged_below(place, copy_of):
    run = copy_of()
    assert command(*training(place, run))[0] == 0
    assert len(contents(run)) > 20


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
@given(
    key=st.sampled_from(KEYS) | st.text(string.ascii_letters + "._", min_size=1, max_size=12),
    value=VALUES,
)
def test_an_override_is_taken_or_refused_in_one_line(place, tmp_path_factory, key, value):
    try:
        config = override(Config(), {key: value})
    except UserError as error:
        folder = tmp_path_factory.mktemp("override")
        line = is_refused(folder, *training(place, folder / "run", f"--config.{key}={value}"))
        assert line.split() == f"error: {error}".split()
        assert key.split(".")[0] in line
        return
    try:
        check_train_config(config.train)
    except UserError as error:
        assert "\n" not in str(error).replace(value, "") and str(error)
    else:
        assert from_json(to_json(config), "here") is not None


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


@fewer
@given(content=broken_configs(), name=st.sampled_from(["train", "eval", "translate", "score"]))
def test_a_broken_config_json_names_the_file(place, copy_of, content, name):
    run = copy_of()
    (run / "config.json").write_bytes(content)
    arguments = training(place, run) if name == "train" else [name, f"--workdir={run}"]
    assert str(run / "config.json") in is_refused(run, *arguments, stdin=b"text\ttext\n")


BAD_LINES = {
    "txt": [b"\xff", b"the \xc3\x28 dog"],
    "tsv": [b"no tab", b"one\ttwo\tthree", b"\xff\tdog"],
    "jsonl": [b"{", b"[]", b'{"en": "the dog"}', b'{"en": "the dog", "de": 1}', b"\xff"],
}


@fewer
@given(data=st.data(), number=st.integers(1, len(TEXT)))
def test_a_bad_line_of_a_text_is_named(place, tmp_path_factory, data, number):
    """The rest of the text could be trained on, as `trained` shows."""
    suffix = data.draw(st.sampled_from(sorted(BAD_LINES)))
    bad = data.draw(st.sampled_from(BAD_LINES[suffix]))
    folder = tmp_path_factory.mktemp("text")
    good = {
        "txt": TEXT,
        "tsv": [f"{line}\t{line}" for line in TEXT],
        "jsonl": [json.dumps({"en": line, "de": line}) for line in TEXT],
    }
    lines = [line.encode() for line in good[suffix]]
    lines[number - 1] = bad
    text = folder / f"text.{suffix}"
    text.write_bytes(b"\n".join(lines) + b"\n")
    target = place / "text.de" if suffix == "txt" else ""
    line = is_refused(
        folder,
        *training(place, folder / "run", f"--config.data.train_source={text}"),
        f"--config.data.train_target={target}",
    )
    assert f"{text}:{number}:" in line


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


ANY_JSON = st.binary(max_size=40) | JSON.map(lambda value: json.dumps(value).encode())


def checkpoint(run):
    (folder,) = (run / "checkpoints").iterdir()
    return folder


@fewest
@given(content=st.binary(max_size=50))
def test_tokenizers_that_are_none_are_named(place, copy_of, content):
    run = copy_of()
    (run / "tokenizer" / "joint.model").write_bytes(content)
    shutil.rmtree(checkpoint(run) / "tokenizer")
    line = is_refused(run, "score", f"--workdir={run}", stdin=b"a\ta\n")
    assert str(run / "tokenizer" / "joint.model") in line
    # Only a checkpoint with its tokenizer is whole: training says of the file what it says
    # of any that is missing.
    assert "joint.model" in is_refused(run, *training(place, run))


@fewest
@given(content=ANY_JSON)
def test_manifests_of_any_content_are_named(place, copy_of, content):
    run = copy_of()
    (checkpoint(run) / "manifest.json").write_bytes(content)
    assert "manifest.json" in is_refused(run, *training(place, run))
    assert "manifest.json" in is_refused(run, "translate", f"--workdir={run}", stdin=b"a\n")


@st.composite
def broken_metas(draw):
    """A checkpoint's meta: any JSON, or a real one whose record does not fit."""
    if draw(st.booleans()):
        return draw(JSON)
    record = {"best_bleu": 1.0, "best_step": 1, "evaluations_since_best": 0}
    key = draw(st.sampled_from(sorted(record)))
    change = draw(st.sampled_from(["gone", "other", "more", "none"]))
    if change == "gone":
        del record[key]
    elif change == "other":
        record[key] = draw(st.sampled_from(["1", None, [1], {}, True]))
    elif change == "more":
        record[draw(st.text(max_size=3))] = 1
    return {"identity": {}} if change == "none" else {"record": record, "identity": {}}


@fewest
@given(meta=broken_metas())
def test_a_checkpoint_whose_meta_does_not_fit_is_named(place, copy_of, meta):
    """With a manifest that agrees: another version may have written both."""
    run = copy_of()
    (checkpoint(run) / "meta" / "metadata").write_text(json.dumps(meta))
    write_manifest(checkpoint(run))
    before = contents(run)
    line = is_refused(run, *training(place, run))
    assert "checkpoints/1/meta" in line or "checkpoint of step 1" in line
    assert contents(run) == before


@pytest.mark.parametrize("item", ["params", "trainer"])
def test_flipped_bytes_of_a_payload_are_named(place, copy_of, item):
    run = copy_of()
    path = max((checkpoint(run) / item / "d").iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    named = f"{item}/d/{path.name}"
    assert named in is_refused(run, *training(place, run))
    if item == "params":
        assert named in is_refused(run, "translate", f"--workdir={run}", stdin=b"a\n")


@fewer
@given(content=JSON.filter(lambda value: type(value) is not dict).map(json.dumps) | st.just("{"))
def test_scores_that_are_none_are_named_before_anything_is_translated(copy_of, content):
    run = copy_of()
    (run / "scores.json").write_text(content)
    assert str(run / "scores.json") in is_refused(run, "eval", f"--workdir={run}")
    assert not (run / "translations").exists()


@fewest
@given(
    st.dictionaries(
        st.sampled_from(["step", "loss", "nll", "validation.bleu"]),
        JSON | st.sampled_from([10**400, 1, "1", float("nan"), float("inf")]),
    )
)
def test_metrics_of_any_content_do_not_end_a_run_in_a_traceback(copy_of, record):
    """What cannot be read of them is left out of the picture, with a line that names the file."""
    from transformer_jax.evaluation.plots import plot_training

    run = copy_of()
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 2, **record}) + "\n")
        file.write(json.dumps({"step": 3, "loss": 1.0}) + "\n")
    before, said = contents(run), io.StringIO()
    with contextlib.redirect_stderr(said):
        assert plot_training(run) is not None
    after = contents(run)
    assert {name: after[name] for name in before if name != "plots/training.png"} == {
        name: before[name] for name in before if name != "plots/training.png"
    }
    lines = said.getvalue().splitlines()
    assert all(line.startswith(f"note: {run / 'metrics.jsonl'}: ") for line in lines)
    assert any("step 3 has no number under loss and nll" in line for line in lines)


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
