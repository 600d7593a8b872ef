"""Flags that come from config classes: how they are listed, parsed and refused."""

import importlib.util
import re
import sys
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import pytest

import transformer_jax as tj
from transformer_jax.commands.flags import Parser
from transformer_jax.commands.main import COMMANDS, main
from transformer_jax.settings.keys import field_docs, keys_of
from transformer_jax.settings.types import Strings
from transformer_jax.settings.variants import ManyOf, OneOf


@dataclass(frozen=True)
class Window:
    size: int = 3


FAMILY = {"window": Window}


@dataclass(frozen=True)
class Part:
    number: int | None = None  #: how many; none = all of them
    text: str = "a"
    #: a text
    #: of two lines
    names: Strings = ()
    choice: Literal["a", "b"] = "a"
    rate: Literal["auto"] | float = 0.1
    one: Annotated[Any, OneOf(FAMILY)] = Window(5)
    many: Annotated[tuple[Any, ...], ManyOf(FAMILY)] = (Window(), Window(4))


@dataclass(frozen=True)
class Whole:
    part: Part = field(default_factory=Part)
    on: bool = True


def parser(**kwargs):
    made = Parser(prog="program")
    made.add_argument("--workdir")
    made.add_config(Whole, prefix="config.", **kwargs)
    return made


def all_help(made, capsys):
    with pytest.raises(SystemExit):
        made.parse(["--help=all"])
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "fields",
    [
        "#: a comment above a field\n    first: int = 1",
        "first: int = 1  #: on its line\n    #: a comment above a field\n    second: int = 2",
        "first: int = 1\n\n    #: a comment above a field\n    second: int = 2",
    ],
)
def test_a_comment_above_a_field_is_refused(fields, tmp_path, monkeypatch):
    file = tmp_path / "part_with_comments.py"
    file.write_text(f"import dataclasses\n\n@dataclasses.dataclass\nclass Part:\n    {fields}\n")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, module)
    spec.loader.exec_module(module)
    with pytest.raises(ValueError, match="^Part: put the comment below its field, or on its line"):
        field_docs(module.Part)


def test_help_lists_every_key_with_its_comment_and_default(capsys):
    text = " ".join(all_help(parser(), capsys).split())
    for line in (
        "--config.part.number INT|none how many; none = all of them; default: none",
        "--config.part.text TEXT a text of two lines; default: a",
        "--config.part.names A,B default: none",
        "--config.part.choice a|b default: a",
        "--config.part.rate auto|FLOAT default: 0.1",
        "--config.part.one KIND kinds: window; default: window(size=5)",
        "--config.part.many KIND,KIND kinds: window; default: window,window(size=4)",
        "--config.on true|false default: true",
    ):
        assert line in text


def test_flags_are_collected_as_text():
    args = parser().parse(["--config.on=false", "--config.part.one.size=7", "--workdir=w"])
    assert args.flags == {"on": "false", "part.one.size": "7"}
    assert args.workdir == "w"
    assert parser().parse(["--config.part.one.size", "7"]).flags == {"part.one.size": "7"}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--config.prt.text=a", "--config.prt.text=a (did you mean --config.part"),
        ("--size=7", "unknown argument --size=7 (did you mean --config.part.one.size?"),
        ("--workdri=a", "unknown argument --workdri=a (did you mean --workdir?"),
        ("--part.text=a", "unknown argument --part.text=a (did you mean --config.part.text?"),
        ("word", "unknown argument word (did you mean --workdir?); see program --help"),
        ("--config.on", "argument --config.on: expected one argument; see program --help"),
    ],
)
def test_an_unknown_argument_names_the_nearest(word, message):
    with pytest.raises(tj.UserError) as error:
        parser().parse([word])
    assert message in str(error.value)


def test_an_option_of_one_in_a_list_is_no_flag():
    made = Parser(prog="program")
    made.add_config(tj.Config, prefix="config.")
    with pytest.raises(tj.UserError, match="unknown argument --window=3") as error:
        made.parse(["--window=3"])
    assert "mixers.window" not in str(error.value)


def test_only_some_keys_without_defaults(capsys):
    made = Parser(prog="program")
    made.add_config(Whole, title="decoding", only=["on"])
    shown = all_help(made, capsys)
    assert "decoding:" in shown and "default" not in shown and "part" not in shown
    assert made.parse(["--on=true"]).flags == {"on": "true"}
    with pytest.raises(tj.UserError, match="unknown argument --part.text=a"):
        made.parse(["--part.text=a"])


def help_of(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main([*words])
    assert not ended.value.code
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command, capsys):
    assert f"usage: transformer-jax {command} [flags]" in help_of(capsys, command, "--help")


def test_train_lists_every_key_of_the_config(capsys):
    listed = set(re.findall(r"--config\.([\w.]+)", help_of(capsys, "train", "--help=all")))
    groups = {each.name: getattr(tj.Config(), each.name) for each in fields(tj.Config)}
    keys = {f"{name}.{each.name}" for name, group in groups.items() for each in fields(group)}
    assert {key for key in keys if not key.startswith(("model.en", "model.de"))} <= listed


def test_the_short_help_has_the_usual_flags_and_the_values_of_the_recipe(capsys):
    plain = help_of(capsys, "train", "--help")
    assert "--config.train.steps INT" in plain and "--config.train.clip_norm" not in plain
    assert "--config=RECIPE --help=all lists every setting" in plain
    recipe = help_of(capsys, "train", "--config=quickstart", "--help")
    assert "default: 450" in recipe  # steps
    assert "train_source A,B" in plain
    assert "train_source A,B" not in recipe, "its source reads no files"
    longer = help_of(capsys, "train", "--config=quickstart", "--help=all")
    assert "--config.train.clip_norm" in longer and len(longer) > 3 * len(recipe)
    schedule = tj.load_recipe("quickstart").train.schedule
    for option in keys_of(type(schedule)):
        assert f"--config.train.schedule.{option} " in longer
    assert "train_source A,B" not in longer, "an option of another kind"
    assert "--method.beam_size" in help_of(capsys, "translate", "--help")


def test_an_unknown_command_is_one_line(capsys):
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == (
        "error: trian: no such command (did you mean train?); see transformer-jax --help\n"
    )
    assert help_of(capsys, "--version") == f"transformer-jax {tj.__version__}"


def test_no_command_shows_the_commands(capsys):
    with pytest.raises(SystemExit) as error:
        main([])
    assert error.value.code == 2
    out, text = capsys.readouterr()
    assert out == "" and "usage: transformer-jax <command> [flags]" in text
    assert all(f"  {name} " in text for name in COMMANDS) and "To begin: " in text


def test_recipes_are_listed_with_their_scores(capsys):
    assert main(["recipes"]) == 0
    out = capsys.readouterr().out
    entry = r"^quickstart: .*\n    98.06 BLEU.*\n    /.*/configs/quickstart.py$"
    assert re.search(entry, out, re.MULTILINE)
