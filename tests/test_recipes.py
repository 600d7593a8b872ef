"""Every recipe loads, can work, and says how it is run."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from transformer_jax.config import Config, differences
from transformer_jax.errors import UserError
from transformer_jax.models.api import num_params
from transformer_jax.models.config import ModelConfig, check_model_config
from transformer_jax.recipes import describe, load_recipe, recipe_files

RECIPES = sorted((Path(__file__).parents[1] / "configs").glob("*.py"))
#: Vaswani et al. 2017, table 3.
PAPER = {"wmt14_en_de_base": 65e6, "wmt14_en_de_big": 213e6}


def model_of(config: Config) -> ModelConfig:
    size = config.tokenizer.vocab_size
    model = dataclasses.replace(config.model, source_vocab_size=size, target_vocab_size=size)
    # What "auto" becomes depends on the machine, and no shape does.
    return dataclasses.replace(model, matmul_dtype="float32")


@pytest.fixture(params=RECIPES, ids=lambda path: path.stem)
def recipe(request) -> Path:
    return request.param


def test_it_loads_and_its_lengths_fit_its_model(recipe):
    config = load_recipe(str(recipe))
    check_model_config(model_of(config))
    assert config.batch.max_length <= config.model.max_length
    assert config.decode.max_source_length <= config.model.max_length
    assert config.batch.tokens >= config.batch.max_length


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
    assert re.match(r"[\d.]+ BLEU, .* AVX2 \(float32\)$", about["Score"])


def test_the_french_recipe_extends_the_german_one():
    german, french = map(load_recipe, ("wmt14_en_de_big", "wmt14_en_fr_big"))
    assert {change.partition(":")[0] for change in differences(german, french)} == {
        "data.target_language",
        "data.source.name",
        "tokenizer.vocab_size",
        "model.dropout_rate",
    }


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
