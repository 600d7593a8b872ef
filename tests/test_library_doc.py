"""The programs of docs/library.md and docs/one_mixer.md run as they stand."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import transformer_jax as tj
from tests.devices import with_eight_devices
from tests.pages import blocks


def test_the_library_page_runs() -> None:
    of_a_run, of_the_model, own_loop, _ = blocks("docs/library.md", "python")
    compile(of_a_run, "docs/library.md", "exec")
    methods = re.findall(r"\btranslator\.(\w+)\(", of_a_run)
    assert methods == ["translate", "n_best", "score", "align"]
    for method in methods:
        assert callable(getattr(tj.Translator, method))
    names: dict[str, Any] = {}
    exec(compile(of_the_model, "docs/library.md", "exec"), names)
    assert names["logits"].shape == (32, 6, 16)
    assert [tokens.shape for tokens in names["output"]] == [(32, 1)] * 6
    names = {}
    exec(compile(own_loop, "docs/library.md", "exec"), names)
    assert names["hidden"]["decoder.0"].shape[:2] == names["batch"]["target"].shape
    lengths = names["batch"]["target"].shape[1], names["batch"]["source"].shape[1]
    assert names["weights"]["cross.0"].shape[1:] == (2, *lengths)
    assert np.abs(names["gradient"]).max() > 0


@pytest.mark.parametrize("code", blocks("docs/one_mixer.md", "python"))
def test_a_mixer_alone_runs_as_the_page_shows(code: str) -> None:
    assert len(code.splitlines()) < 50
    if "nnx" not in code:
        exec(compile(code, "docs/one_mixer.md", "exec"), {})
        return
    report = "import json\nprint(json.dumps([float(loss), len(rows.device_set)]))\n"
    loss, devices = with_eight_devices("-c", f"{code}\n{report}")
    assert loss < 1.5 and devices == 8  # of log 12 = 2.5


def test_the_rules_of_the_library_page_hold(toy_run: Path) -> None:
    code = blocks("docs/library.md", "python")[3].replace("runs/quickstart", str(toy_run))
    names: dict[str, Any] = {}
    exec(compile(code, "docs/library.md", "exec"), names)
    translate, hund = names["translator"].decode, set(names["hund"])
    without = translate(["The dog sleeps."], method=tj.Constrained(tj.Beam(), names["without"]))
    assert not hund & set(without.translations[0][0].tokens)
