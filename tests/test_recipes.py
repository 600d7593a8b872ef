"""Every recipe loads, can work, and says how it is run."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from transformer_jax.config import Config, override
from transformer_jax.errors import UserError
from transformer_jax.formats.marian.bergamot import Bergamot
from transformer_jax.models.api import num_params
from transformer_jax.models.config import ModelConfig, check_model_config
from transformer_jax.recipes import ByPairs, describe, load_recipe, open_recipe, recipe_files

ROOT = Path(__file__).parents[1]
RECIPES = sorted((ROOT / "configs").glob("*.py"))
#: Vaswani et al. 2017, table 3.
PAPER = {"wmt14_en_de_base": 65e6, "wmt14_en_de_big": 213e6}


def model_of(config: Config) -> ModelConfig:
    size = config.tokenizer.vocab_size
    model = dataclasses.replace(config.model, source_vocab_size=size, target_vocab_size=size)
    # What "auto" becomes depends on the machine and the text, and no shape does.
    return dataclasses.replace(model, dtype="float32", matmul_dtype="float32", dropout_rate=0.1)


@pytest.fixture(params=RECIPES, ids=lambda path: path.stem)
def recipe(request) -> Path:
    return request.param


def configs_of(recipe: Path) -> list[Config]:
    """The config, and what it becomes with texts of other sizes."""
    config, by_pairs = open_recipe(recipe)
    sizes = [] if by_pairs is None else [number - 1 for number in by_pairs.below]
    changes = [by_pairs.values(size, on_cpu=False) for size in sizes] if by_pairs else []
    return [config, *(override(config, change) for change in changes)]


def test_it_loads_and_its_lengths_fit_its_model(recipe):
    for config in configs_of(recipe):
        check_model_config(model_of(config))
        assert config.batch.max_length <= config.model.max_length
        assert config.decode.max_source_length <= config.model.max_length
        assert config.batch.budget >= config.batch.max_length


def test_more_pairs_never_give_a_smaller_model_or_vocabulary_or_a_shorter_training():
    of_text, *smaller = configs_of(ROOT / "configs" / "from_files.py")
    ascending = [*smaller, of_text]
    for one, more in zip(ascending, ascending[1:], strict=False):
        assert num_params(model_of(one)) <= num_params(model_of(more))
        assert one.tokenizer.vocab_size <= more.tokenizer.vocab_size
        assert one.train.steps * one.batch.tokens < more.train.steps * more.batch.tokens
        assert one.train.schedule.warmup_steps <= one.train.steps / 10


BY_PAIRS = ByPairs(
    ("model.d_model", "train.schedule.warmup_steps", "train.steps"),
    {10: (8, 1, 100), 20: (16, 2, 200)},
    on_cpu=15,
)


def test_the_row_is_the_first_above_the_number_of_pairs():
    widths = {
        pairs: BY_PAIRS.values(pairs, on_cpu=False).get("model.d_model")
        for pairs in (0, 9, 10, 19, 20, 99)
    }
    assert widths == {0: 8, 9: 8, 10: 16, 19: 16, 20: None, 99: None}
    assert BY_PAIRS.values(99, on_cpu=True) == BY_PAIRS.values(15, on_cpu=False) != {}
    assert BY_PAIRS.values(9, on_cpu=True) == BY_PAIRS.values(9, on_cpu=False)


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ((), BY_PAIRS.keys),
        (("train.step",), BY_PAIRS.keys),  # no key, and not a part of one
        (("train.steps", "batch.tokens"), ("model.d_model", "train.schedule.warmup_steps")),
        (("model", "train.schedule"), ("train.steps",)),
        (("model.d_model.part",), BY_PAIRS.keys[1:]),  # else the value of d_model replaces it
    ],
)
def test_a_flag_takes_its_key_or_the_options_of_its_variant_out_of_the_table(given, left):
    assert BY_PAIRS.without(given).keys == left
    full, rest = (each.values(12, on_cpu=False) for each in (BY_PAIRS, BY_PAIRS.without(given)))
    assert rest == {key: full[key] for key in left}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("by_pairs = {10: 1}", "recipe.py: `by_pairs` must be `ByPairs"),
        ("by_pairs = tj.ByPairs(('train.steps',), {20: (1,), 10: (2,)})", ":3: .* ascending"),
        ("by_pairs = tj.ByPairs(('train.steps',), {})", ":3: .* ascending"),
        ("by_pairs = tj.ByPairs(('train.steps',), {20: (1, 2)})", ":3: .*2 values for 1 keys"),
        ("by_pairs = tj.ByPairs(('train.stepz',), {20: (1,)})", "by_pairs: .*did you mean"),
        ("by_pairs = tj.ByPairs(('train.steps',), {20: (1,), 30: (0,)})", "greater than 0"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_with_one_line(tmp_path, text, words):
    (tmp_path / "recipe.py").write_text(
        f"import transformer_jax as tj\nconfig = tj.Config()\n{text}"
    )
    with pytest.raises(UserError, match=words) as error:
        open_recipe(tmp_path / "recipe.py")
    assert "recipe.py" in str(error.value) and "\n" not in str(error.value)


def test_its_name_is_as_good_as_its_file(recipe):
    assert load_recipe(recipe.stem) == load_recipe(recipe)


def test_it_uses_only_the_public_names(recipe):
    for node in ast.walk(ast.parse(recipe.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.module in ("dataclasses", "transformer_jax")


def test_a_name_that_is_no_recipe_names_the_nearest():
    with pytest.raises(UserError, match="did you mean quickstart") as error:
        load_recipe("quickstat")
    assert all(path.stem in str(error.value) for path in RECIPES)


def test_only_the_file_of_a_recipe_is_executed(monkeypatch, tmp_path):
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "one.py").write_text("import transformer_jax as tj\nconfig = tj.Config()\n")
    monkeypatch.setattr("transformer_jax.recipes._FOLDERS", (tmp_path,))
    assert sorted(recipe_files()) == ["broken", "one"]
    assert load_recipe("one") == Config()


def test_the_entries_of_a_docstring():
    about = describe(recipe_files()["quickstart"])
    assert about["Summary"] == "Minutes of German grammar: the embedded corpus, no downloads."
    assert about["Hardware"] == "2 CPU cores"
    assert re.match(r"[\d.]+ BLEU, .* exactly \(.*\)$", about["Score"])  # over two lines


def test_its_docstring_says_how_it_is_run(recipe):
    text = ast.get_docstring(ast.parse(recipe.read_text(encoding="utf-8")))
    assert text is not None
    for key in ("Command:", "Hardware:", "Time:", "Score:"):
        lines = [line for line in text.splitlines() if line.startswith(key)]
        assert len(lines) == 1, f"{recipe.name}: {len(lines)} lines begin with {key}"
        assert lines[0].removeprefix(key).strip()
    assert f"configs/{recipe.name}" in text


@pytest.mark.parametrize("name", PAPER)
def test_parameters_are_the_papers_within_four_percent(name):
    path = next(path for path in RECIPES if path.stem == name)
    count = num_params(model_of(load_recipe(str(path))))
    assert count == pytest.approx(PAPER[name], rel=0.04)
    assert f"{count:,}" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("mixer", ["full", "ssru"])
@pytest.mark.parametrize("name", [path.stem for path in RECIPES if path.stem.startswith("student")])
def test_a_student_can_be_exported_to_the_engine_it_is_for(name, mixer):
    sizes = {"model.source_vocab_size": "2000", "model.target_vocab_size": "2000"}
    config = override(load_recipe(name), sizes | {"model.decoder.mixers": mixer})
    Bergamot().check(config)
    with pytest.raises(UserError, match="norm_placement"):
        Bergamot().check(override(config, {"model.norm_placement": "pre"}))
