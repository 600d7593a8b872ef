"""docs/mixers.md and docs/configuration.md agree with the registries and the config classes."""

import re

from tests.pages import load_script, text_of
from transformer_jax.mixers.registry import CROSS_MIXERS, MIXERS
from transformer_jax.positions.base import PositionContext
from transformer_jax.positions.registry import POSITIONS

CONTEXT = PositionContext(d_model=8, num_heads=2, head_dim=4, max_length=8, causal=False)
TEXT, ALONE = text_of("docs/mixers.md"), text_of("docs/one_mixer.md")


def test_roles() -> None:
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \| ([^|]+) \| ([^|]+) \|", TEXT, re.M)
    assert [row[0] for row in rows] and {row[0] for row in rows} == set(MIXERS)
    for name, encoder, decoder, cross in rows:
        for role, cell in (("encoder", encoder), ("decoder", decoder)):
            assert (cell.strip() == "–") == (role in MIXERS[name].refuses), (name, role)
        assert (cross.strip() == "–") == (name not in CROSS_MIXERS), name


def test_hooks() -> None:
    for hook, begin in (("rotate", "rotates queries"), ("bias", "adds to the scores")):
        row = next(line for line in TEXT.splitlines() if line.startswith(f"| {begin}"))
        schemes, mixers = (set(re.findall(r"`(\w+)`", cell)) for cell in row.split("|")[2:4])
        assert schemes == {n for n, c in POSITIONS.items() if hook in c().build(CONTEXT).hooks()}
        assert mixers == {n for n, c in MIXERS.items() if hook in c.honours}
    assert set(POSITIONS) <= set(re.findall(r"`(\w+)`", TEXT))


def test_what_a_mixer_applies_of_positions() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| [^|]* \|$", ALONE, re.M)
    expected = {name: ", ".join(sorted(cls.honours)[::-1]) or "–" for name, cls in MIXERS.items()}
    assert dict(rows) == expected


def test_the_page_is_what_the_config_classes_say() -> None:
    page = load_script("make_configuration").page()
    assert page == text_of("docs/configuration.md"), "run: python docs/make_configuration.py"


def test_every_key_and_every_option_is_described() -> None:
    page = text_of("docs/configuration.md")
    rows = re.findall(r"^\| `([\w.]+)` \| [^|]* \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 200
    limits = r"(at least|at most|more than|less than|a multiple of) \d|`|a variant, see below|$"
    assert [key for key, text in rows if re.match(limits, text)] == []
