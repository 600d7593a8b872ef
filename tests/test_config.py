"""Recipes, overrides and config.json: every mistake is one line that names the key."""

import json
from dataclasses import replace
from operator import attrgetter

import pytest

import transformer_jax as tj
from transformer_jax.config import Config, differences, from_json, override, to_json


def test_overrides_are_typed_and_leave_the_original_alone():
    config = Config()
    values = {
        "train.steps": ("7", 7),
        "train.schedule.learning_rate": ("1e-3", 1e-3),
        "model.encoder.mixers": ("full,full", (tj.Full(), tj.Full())),
        "tokenizer.joint": ("false", False),
        "data.source.train_source": ("a.txt,b.txt", ("a.txt", "b.txt")),
        "model.unused_ids": ("0,1", (0, 1)),
        "decode.method": ("sample(top_k=5)", tj.Sample(top_k=5, top_p=0.5)),
        "decode.method.top_p": ("0.5", 0.5),
    }
    changed = override(config, {key: text for key, (text, _) in values.items()})
    assert {key: attrgetter(key)(changed) for key in values} == {
        key: value for key, (_, value) in values.items()
    }
    assert config == Config()


def test_none_is_a_value():
    config = override(Config(), {"train.clip_norm": "1"})
    assert override(config, {"train.clip_norm": "none"}).train.clip_norm is None
    flags = {"train.schedule.learning_rate": "1", "train.schedule": "cosine(warmup_steps=7)"}
    config = override(Config(), flags)  # in any order: first the variant, then its option
    assert config.train.schedule == tj.CosineSchedule(learning_rate=1, warmup_steps=7)
    config = override(config, {"train.schedule": "rsqrt(learning_rate=2)"})
    config = override(config, {"train.schedule.learning_rate": "none"})
    assert config.train.schedule == tj.RsqrtSchedule()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("train.stepz", "7", "did you mean --config.train.steps?"),
        ("trian.steps", "7", "did you mean --config.train?"),
        ("model.encoder.num_layer", "7", "did you mean --config.model.encoder.num_layers?"),
        ("train.steps", "many", "--config.train.steps=many: must be a valid integer"),
        ("model.norm_placement", "middle", "'pre' or 'post'"),
        ("train.schedule", "linaer", "did you mean linear?); use rsqrt, cosine, linear, constant"),
        ("train.schedule.learnin_rate", "1", "rsqrt has no option 'learnin_rate' (did you mean"),
        ("train.steps", "0", "--config.train.steps=0: must be greater than 0"),
        ("train.ema_decay", "1", "--config.train.ema_decay=1: must be less than 1"),
        ("train.schedule.learning_rate", "-1", "rsqrt(learning_rate=-1): must be greater than 0"),
        ("decode.max_length_factor", "1e9", "must be less than or equal to 1000"),
        ("batch.num_buckets", "0", "--config.batch.num_buckets=0: must be greater than 0"),
        ("batch.seed", "-1", "--config.batch.seed=-1: must be greater than or equal to 0"),
        ("data.validation_from_train", "0", "validation_from_train=0: must be greater than 0"),
        ("data.filters", "length_ratio(most=1)", "length_ratio(most=1): must be greater than 1"),
        ("data.filters", "quality", "quality needs model: quality(model=...)"),
        ("data.filters", "quality(model=x,metric=metricx)", "needs no reference: metricx_qe"),
        ("data.corpora", "corpus(tag=bt)", "corpus(tag=bt): "),
        ("data.corpora", "corpus(weight=0)", "corpus(weight=0): must be greater than 0"),
        ("train", "7", "is a group of keys"),
        ("tokenizer.kind.more", "7", "tokenizer.kind is a value, it has no key more"),
        ("decode.batch_size", "0", "--config.decode.batch_size=0: must be greater than 0"),
        ("train.seed", 2**63, "train.seed=9223372036854775808: must be less than 4294967296"),
        ("decode.max_length_offset", "3000000000", "must be less than or equal to 1000000"),
        ("decode.method", "sample(temperature=1e-40)", "must be greater than or equal to 0.000001"),
        ("batch.tokens", "0", "--config.batch.tokens=0: must be greater than 0"),
        ("model.dropout_rate", "2", "dropout_rate=2: must be less than 1"),
    ],
)
def test_a_wrong_override_is_one_line_naming_the_key(key, value, words):
    with pytest.raises(tj.UserError) as error:
        override(Config(), {key: value})
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train.learning_rate": "1"}, "key; use --config.train.schedule.learning_rate=1"),
        ({"decode.beam_size": "2"}, "key; use --config.decode.method.beam_size=2"),
        ({"decode.top_k": "2"}, "a variant: --config.decode.method='sample(top_k=2)'"),
        ({"decode.method": "sample", "decode.top_k": "2"}, "use --config.decode.method.top_k=2"),
        ({"model.encoder.window": "2"}, "--config.model.encoder.mixers='window(window=2)'"),
        ({"model.mixers": "mamba"}, "encoder.mixers=mamba or --config.model.decoder.mixers=mamba"),
        (
            {"model.position": "rope(base=9)"},
            "use --config.model.encoder.position='rope(base=9)' or --config.model.decoder.posi",
        ),
    ],
)
def test_a_key_in_the_wrong_group_is_named_in_the_right_one(changes, words):
    with pytest.raises(tj.UserError) as error:
        override(Config(), changes)
    assert words in str(error.value)


def test_a_hint_keeps_the_variant_that_a_recipe_has_chosen():
    recipe = override(Config(), {"train.schedule": "cosine(learning_rate=1e-3)"})
    with pytest.raises(tj.UserError, match=r"; use --config.train.schedule.learning_rate=1$"):
        override(recipe, {"train.learning_rate": "1"})


def test_none_is_also_the_name_of_a_choice():
    config = override(Config(), {"model.encoder.mixers": "linformer(sharing=none)"})
    assert config.model.encoder.mixers == (tj.Linformer(sharing="none"),)
    config = override(config, {"model.cross": "linformer", "model.cross.sharing": "none"})
    assert config.model.cross.sharing == "none"


def test_json_round_trip(tmp_path):
    flags = {"data.source.train_source": "a,b", "train.ema_decay": "0.5", "train.optimizer": "sgd"}
    config = override(Config(), flags)
    (tmp_path / "config.json").write_text(to_json(config))
    run = tj.open_run(tmp_path)
    assert run.config == config and repr(run) == f"Run({str(tmp_path)!r})"


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("train", {"stepz": 3}, "train.stepz: no such key (did you mean train.steps?)"),
        # "dataset" resembles no key, so none is suggested.
        ("data", {"dataset": "x"}, "data.dataset: no such key; use source,"),
        ("train", {"steps": "x"}, "train.steps"),
        ("train", {"optimizer": {"kind": ["adam"]}}, "train.optimizer: \"['adam']\" is unknown"),
        ("train", {"optimizer": {"name": "adam", "schedule": "rsqrt"}}, "train.optimizer: "),
    ],
)
def test_a_config_json_that_is_damaged_or_old_names_the_file_and_the_key(
    tmp_path, part, change, words
):
    raw = json.loads(to_json(Config()))
    raw[part].update(change)
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(tj.UserError, match="another version of") as error:
        tj.open_run(tmp_path)
    assert f"config.json: {words}" in str(error.value) and "\n" not in str(error.value)


def test_text_that_is_not_json_names_the_line():
    with pytest.raises(tj.UserError, match=r"here: not valid JSON \(.*line 2"):
        from_json('{\n"train": }', "here")


def test_differences_name_keys_and_both_values():
    config = Config()
    other = replace(config, train=replace(config.train, steps=5))
    assert differences(config, other) == ["train.steps: 100000 -> 5"]
    other = override(Config(), {"train.schedule.warmup_steps": "7"})
    assert differences(config, other) == ["train.schedule.warmup_steps: 4000 -> 7"]
    other = override(Config(), {"train.schedule": "cosine(learning_rate=0.5)"})
    assert differences(config, other) == [
        f"train.schedule: {tj.RsqrtSchedule()} -> {tj.CosineSchedule(learning_rate=0.5)}"
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no such file"),
        ("config = 3", "config = Config"),
        ("1 / 0", r"recipe.py:1: ZeroDivisionError"),
        ("\ndef (", r"recipe.py:2: SyntaxError: "),
        (
            "from transformer_jax import Config, TrainConfig\n"
            "config = Config(\n    train=TrainConfig(step=5),\n)",
            r"recipe.py:3: TrainConfig has no key step \(did you mean steps\?\); use steps, ",
        ),
        (
            "import dataclasses\nfrom transformer_jax import Config\n"
            "config = dataclasses.replace(Config(), trian=3)",
            r"recipe.py:3: Config has no key trian \(did you mean train\?\)",
        ),
        (
            "from transformer_jax import DecodeConfig\nDecodeConfig(beam_size=8)",
            r"recipe.py:2: DecodeConfig has no key beam_size \(did you mean batch_size\?\)",
        ),
    ],
)
def test_a_recipe_that_is_none(tmp_path, text, words):
    path = tmp_path / "recipe.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(tj.UserError, match=words) as error:
        tj.load_recipe(str(path))
    assert "recipe.py" in str(error.value) and "\n" not in str(error.value)
