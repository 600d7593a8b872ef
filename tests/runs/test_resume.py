"""What may change when a run goes on, and what the machine or the file names fill in."""

import dataclasses
import json
import os
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from transformer_jax.config import Config, TrainConfig, override, to_json
from transformer_jax.data.config import BatchConfig, Corpus, DataConfig, TokenizerConfig
from transformer_jax.data.sources.files import Files
from transformer_jax.data.sources.tfds import Tfds
from transformer_jax.data.tokenizer_pair import Tokenizers, read_tokenizer
from transformer_jax.data.tokenizer_training import train_tokenizer
from transformer_jax.errors import UserError
from transformer_jax.models.config import ModelConfig, check_model_config
from transformer_jax.ops.platform import cpu_flags
from transformer_jax.optimizers.schedules import ConstantSchedule, CosineSchedule, RsqrtSchedule
from transformer_jax.paths import as_path
from transformer_jax.recipes import ByPairs
from transformer_jax.runs.fast_dtype import fast_matmul_dtype
from transformer_jax.runs.start import begin_new, resolve_start
from transformer_jax.training.speed import Speed, resolve_steps

TEXT = DataConfig(Files(train_source=("a.en",), train_target=("a.de",)))


def resolved(config: Config, folder: Path | str) -> Config:
    return resolve_start(config, as_path(folder)).config


def run_in(folder: Path, config: Config) -> Config:
    """A run folder as `train.py` leaves it, and its config."""
    config = resolved(config, folder)
    model = dataclasses.replace(config.model, source_vocab_size=50, target_vocab_size=50)
    config = dataclasses.replace(config, model=model)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(to_json(config))
    (folder / "last_checkpoint.json").write_text('{"step": 1}')
    return config


def test_the_same_config_continues_in_silence(tmp_path, logged):
    model = ModelConfig(matmul_dtype="auto")
    old = run_in(tmp_path, Config(data=TEXT, model=model))
    start = resolve_start(Config(data=TEXT, model=model), as_path(tmp_path))
    assert start.config == old and not start.is_new
    assert logged() == []


def test_what_decides_the_parameters_is_refused(tmp_path):
    run_in(tmp_path, Config(data=TEXT))
    before = (tmp_path / "config.json").read_bytes()
    free = {"train.log_every": "7", "train.trackers": "mlflow(experiment=mine)"}
    changed = override(Config(data=TEXT), free | {"model.d_model": "64", "batch.seed": "2"})
    with pytest.raises(UserError) as caught:
        resolved(changed, tmp_path)
    for words in ("model.d_model: 512 -> 64", "batch.seed: 0 -> 2"):
        assert words in str(caught.value)
    assert "train." not in str(caught.value)
    assert (tmp_path / "config.json").read_bytes() == before


@pytest.mark.parametrize("trained", ["last_checkpoint.json", "checkpoints/1"])
def test_a_run_without_a_checkpoint_can_be_restarted_with_another_config(tmp_path, trained, logged):
    run_in(tmp_path, Config(data=TEXT))
    (tmp_path / "last_checkpoint.json").unlink()
    (tmp_path / "checkpoints").mkdir()  # as the loop makes it before its first step
    other = override(Config(data=TEXT), {"model.d_model": "64"})
    start = resolve_start(other, as_path(tmp_path))
    assert start.is_new and start.has_folder
    assert start.config.model.d_model == 64 and start.config.model.source_vocab_size == 8000
    assert logged() == [f"nothing was trained in {tmp_path} yet: starting anew"]
    (tmp_path / trained).mkdir()
    with pytest.raises(UserError, match="d_model: 512 -> 64"):
        resolve_start(other, as_path(tmp_path))


def test_what_does_not_decide_them_may_change(tmp_path, logged):
    run_in(tmp_path, Config(data=TEXT))
    new = override(Config(data=TEXT), {"train.checkpoint_every": "5", "mesh.fsdp": "2"})
    config = resolved(new, tmp_path)
    assert (config.train.checkpoint_every, config.mesh.fsdp) == (5, 2)
    assert config.model.source_vocab_size == 50
    assert logged() == ["continuing with train.checkpoint_every: 1000 -> 5; mesh.fsdp: 1 -> 2"]


def test_a_run_is_extended_where_its_schedule_allows(tmp_path):
    def extended(schedule):
        config = Config(data=TEXT, train=TrainConfig(steps=10, schedule=schedule))
        run_in(tmp_path / type(schedule).__name__, config)
        longer = override(config, {"train.steps": "20"})
        return resolved(longer, tmp_path / type(schedule).__name__).train.steps

    assert extended(RsqrtSchedule()) == extended(ConstantSchedule(1e-3)) == 20
    with pytest.raises(UserError, match="rate of train.schedule=cosine depends on .*steps"):
        extended(CosineSchedule(1e-3))


def test_a_shorter_warm_up_has_the_peak_of_the_given_one(tmp_path):
    """`train.minutes` lowers `warmup_steps`, on which the default peak depends."""
    given = Config(data=TEXT, train=TrainConfig(minutes=10))
    new = resolved(given, tmp_path)
    fitting = resolve_steps(new.train, Speed(0.24, 0.0), 30.0)
    assert fitting.schedule.warmup_steps == 201
    peaks = [
        train.schedule.build(512, train.steps)(train.schedule.warmup_steps - 1)
        for train in (given.train, fitting)
    ]
    np.testing.assert_allclose(peaks[1], peaks[0], rtol=1e-6)
    settled_run = dataclasses.replace(given, train=fitting)
    run_in(tmp_path, settled_run)
    assert resolved(given, tmp_path).train == fitting  # continues
    other = override(given, {"train.schedule.learning_rate": 1e-3})
    with pytest.raises(UserError, match=r"schedule.learning_rate: 0.00069.* -> 0.001"):
        resolved(other, tmp_path)


def test_the_run_folder_does_not_depend_on_where_it_was_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = resolved(Config(data=TEXT), "run")
    assert config.data.source.train_source == (os.path.join(os.getcwd(), "a.en"),)
    files = dataclasses.replace(
        TEXT.source, validation_source=("~/v.en",), test_source=("gs://bucket/a.en",)
    )
    home = DataConfig(files, cache_dir="~/ids")
    config = resolved(Config(data=home), "run")
    assert config.data.cache_dir == os.path.expanduser("~/ids")
    assert config.data.source.validation_source == (os.path.expanduser("~/v.en"),)
    assert config.data.source.test_source == files.test_source
    for given, absolute in (("tfds", os.path.join(os.getcwd(), "tfds")), (None, None)):
        data = DataConfig(Tfds("wmt", given), source_language="en", target_language="de")
        assert resolved(Config(data=data), "run").data.source.data_dir == absolute


def test_languages_are_settled_once(tmp_path):
    new = resolved(Config(data=TEXT), tmp_path / "new")
    assert (new.data.target_language, new.tokenizer.vocab_size) == ("de", 8000)
    run_in(tmp_path, Config(data=TEXT))
    assert json.loads((tmp_path / "config.json").read_text())["data"]["source_language"] == "en"


def test_auto_is_what_the_run_began_with(tmp_path, monkeypatch):
    auto = Config(data=TEXT, model=ModelConfig(matmul_dtype="auto"))
    monkeypatch.setattr("transformer_jax.runs.start.fast_matmul_dtype", lambda _: "bfloat16")
    assert run_in(tmp_path, auto).model.matmul_dtype == "bfloat16"
    monkeypatch.setattr("transformer_jax.runs.start.fast_matmul_dtype", lambda _: "float32")
    assert resolved(auto, tmp_path).model.matmul_dtype == "bfloat16"
    with pytest.raises(UserError, match="matmul_dtype=auto"):
        check_model_config(auto.model)


def test_an_accelerator_chooses_the_dtype_and_the_batch(monkeypatch):
    model = ModelConfig(dtype="auto", matmul_dtype="auto")
    here = begin_new(Config(data=TEXT, model=model))
    assert (here.model.dtype, here.batch.tokens) == ("float32", 4096 * jax.device_count())
    chips = [SimpleNamespace(platform="tpu")] * 4
    monkeypatch.setattr("transformer_jax.runs.start.make_mesh", lambda _, devices: devices)
    monkeypatch.setattr("transformer_jax.runs.start.batch_devices", len)
    there = begin_new(Config(data=TEXT, model=model), devices=chips)
    assert (there.model.dtype, there.model.matmul_dtype) == ("bfloat16", "bfloat16")
    assert there.batch.tokens == 4 * 4096
    given = BatchConfig(tokens=1000)
    assert begin_new(Config(data=TEXT, batch=given), devices=chips).batch.tokens == 1000
    with pytest.raises(UserError, match="model.dtype=auto"):
        check_model_config(ModelConfig(dtype="auto"))


def test_the_file_of_a_given_tokenizer_may_go_or_move_but_not_change(tmp_path):
    """Its size is the run's, which has its own copy."""
    first, moved, other = (tmp_path / f"{name}.model" for name in ("first", "moved", "other"))
    for path, text in ((first, "ab cd ef gh"), (other, "ab cd ef gi")):
        path.write_bytes(train_tokenizer(TokenizerConfig(vocab_size=270), [text] * 50).model)

    def given(path):
        return Config(data=TEXT, tokenizer=TokenizerConfig(source_model=str(path)))

    run = tmp_path / "run"
    config = resolved(given(first), run)
    assert config.tokenizer.vocab_size == 270
    run_in(run, config)
    (run / "config.json").write_text(to_json(config))
    own = read_tokenizer(first.read_bytes())
    Tokenizers(own, own).save(as_path(run / "tokenizer"))
    first.rename(moved)
    assert resolved(given(first), run) == config
    start = resolve_start(given(moved), as_path(run))
    assert start.config == config and not start.is_new
    with pytest.raises(UserError, match="another config .tokenizer.source_model: .*other.model"):
        resolved(given(other), run)


def test_bfloat16_only_where_the_cpu_has_it(tmp_path, monkeypatch):
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nflags\t\t: fpu avx2 avx512_bf16\n\nflags : fpu\n")
    assert cpu_flags(file) == {"fpu", "avx2", "avx512_bf16"}
    assert cpu_flags(tmp_path / "none") == set()
    for flags, dtype in (({"avx2"}, "float32"), ({"avx512_bf16"}, "bfloat16")):
        monkeypatch.setattr("transformer_jax.runs.fast_dtype.cpu_flags", lambda flags=flags: flags)
        assert fast_matmul_dtype() == dtype


def test_checkpoints_without_a_config_are_left_alone(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(
        UserError, match="no config.json: tj.fit trained there .*, or .*; use another"
    ):
        resolved(Config(data=TEXT), tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokenizer.vocab_size": "260"}, "tokenizer.vocab_size=260 has no room .*4 special ids"),
        ({"model.source_vocab_size": "7"}, "model.source_vocab_size=7, but .* 8000 pieces"),
    ],
)
def test_a_wrong_vocabulary_is_refused_before_the_text_is_read(tmp_path, change, words):
    with pytest.raises(UserError, match=words):
        resolved(override(Config(data=TEXT), change), tmp_path / "run")


def test_a_vocabulary_without_the_tags_of_the_corpora_is_refused(tmp_path):
    joint = train_tokenizer(TokenizerConfig(vocab_size=267), ["a b c d e f"])
    Tokenizers(joint, joint).save(tmp_path / "tokenizer")
    source = Files(train_source=("a.en",), train_target=("a.de",))
    config = Config(
        data=DataConfig(corpora=(Corpus(source), Corpus(source, reverse=True))),
        tokenizer=TokenizerConfig(source_model=str(tmp_path / "tokenizer" / "joint.model")),
        train=TrainConfig(init_from="runs/first"),
    )
    with pytest.raises(UserError, match="vocabulary of that run lacks .* need: <2de>, <2en>"):
        resolve_start(config, as_path(tmp_path / "run"))


BY_PAIRS = ByPairs(
    ("train.steps", "tokenizer.vocab_size", "model.dropout_rate", "data.validation_from_train"),
    {3: (10, 300, 0.3, 1), 10: (100, 400, 0.2, 2)},
)


def pairs_in(folder: Path, count: int, **sets: str) -> Config:
    for name in ("a.en", "a.de"):
        (folder / name).write_text("a b\n" * count)
    source = Files(train_source=(f"{folder}/a.en",), train_target=(f"{folder}/a.de",), **sets)
    return Config(data=DataConfig(source))


def test_a_new_run_has_the_settings_for_the_size_of_its_text(tmp_path, logged):
    """It is told those that have an effect: with a validation set nothing is held out."""

    def chosen(count, by_pairs=BY_PAIRS, **sets):
        given = pairs_in(tmp_path, count, **sets)
        config = resolve_start(given, as_path(tmp_path / "new"), by_pairs).config
        assert config.model.source_vocab_size == config.tokenizer.vocab_size
        return config.train.steps, config.tokenizer.vocab_size, config.model.dropout_rate

    assert chosen(2) == (10, 300, 0.3)
    assert chosen(3) == (100, 400, 0.2)
    logged()
    assert chosen(12) == (100_000, 8000, 0.1)
    assert logged() == [
        "settings for 10 or more training pairs, kept in config.json; flags such as "
        "--config.train.steps=100000 change them:\n"
        "  train:     steps=100000\n"
        "  tokenizer: vocab_size=None\n"
        "  model:     dropout_rate=0.1\n"
        "  data:      validation_from_train=None"
    ]
    chosen(2, validation_source=f"{tmp_path}/a.en", validation_target=f"{tmp_path}/a.de")
    assert "validation_from_train" not in logged()[0]
    assert chosen(2, BY_PAIRS.without(["train.steps"])) == (100_000, 300, 0.3)


def test_a_run_keeps_the_settings_of_its_first_start(tmp_path, logged):
    config = resolve_start(pairs_in(tmp_path, 2), as_path(tmp_path / "run"), BY_PAIRS).config
    run_in(tmp_path / "run", config)
    (tmp_path / "a.de").unlink()  # the text is not read again
    again = ByPairs(BY_PAIRS.keys, {3: (11, 301, 0.4, 1)})  # nor is a changed table
    logged()
    start = resolve_start(pairs_in(tmp_path, 0), as_path(tmp_path / "run"), again)
    assert start.config.train.steps == 10
    assert logged() == []
    longer = override(pairs_in(tmp_path, 0), {"model.dropout_rate": 0.5})
    given = again.without(["model.dropout_rate"])
    with pytest.raises(UserError, match=r"another config \(model.dropout_rate: 0.3 -> 0.5\)"):
        resolve_start(longer, as_path(tmp_path / "run"), given)
