"""Pictures that are drawn from a table show the numbers that the table has now."""

import importlib.util
import json

import pytest
from PIL import Image

from tests.pages import ROOT

FIGURES = ROOT / "docs" / "figures"


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


mixers = load("make_mixers_figures")


@pytest.mark.parametrize("name", mixers.FIGURE)
def test_a_picture_of_mixers_has_the_numbers_of_the_tables(name):
    """Otherwise: python docs/make_mixers_figures.py."""
    data_of, _ = mixers.FIGURE[name]
    drawn = json.loads(Image.open(FIGURES / name).text["Data"])
    assert drawn == data_of(mixers.PAGE.read_text(encoding="utf-8"))


def test_the_tables_are_read_right():
    text = mixers.PAGE.read_text(encoding="utf-8")
    encoder, decoder, cross, step = mixers.cost_data(text)
    assert encoder["full"] == [1500, 97.3] and step["full"] == [0.562, 97.3]
    assert encoder["mamba"] == [1700, 98.1] and decoder["h3"] == [603, 97.4]
    assert sorted(cross) == ["full", "linear", "linformer", "performer"]
    growth = mixers.growth_data(text)["training, encoder"]
    assert growth["full"][-1] == [16384, 63679, 8216]
