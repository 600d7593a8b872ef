"""`transformer-jax compare`: equal parameters, intervals, and a comparison that goes on."""

import json
import math

import pytest

import transformer_jax as tj
from transformer_jax.commands.compare import results
from transformer_jax.commands.compare.results import Result, Summary, interval, table
from transformer_jax.commands.compare.rows import Row, make_rows, split_vary
from transformer_jax.commands.main import main
from transformer_jax.errors import UserError

TINY = """
import transformer_jax as tj

layer = tj.StackConfig(num_layers=1)
config = tj.Config(
    data=tj.DataConfig(
        source=tj.Files(train_source="FOLDER/t.en", train_target="FOLDER/t.de",
                        test_source="FOLDER/t.en", test_target="FOLDER/t.de"),
        source_language="en", target_language="de", cache_dir="FOLDER/cache",
    ),
    tokenizer=tj.TokenizerConfig(vocab_size=280),
    model=tj.ModelConfig(d_model=16, d_ff=64, num_heads=2, encoder=layer, decoder=layer),
    batch=tj.BatchConfig(tokens=256, max_length=32, num_buckets=1),
    train=tj.TrainConfig(steps=4, log_every=1, evaluate_sentences=2),
    decode=tj.DecodeConfig(method=tj.Greedy(), batch_size=64, max_length_factor=1.0),
)
"""


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("model.d_ff=8,16", [{"model.d_ff": "8"}, {"model.d_ff": "16"}]),
        (
            "a.mixers=full,[mamba,full],linear(chunk=2,features=elu)",
            [
                {"a.mixers": "full"},
                {"a.mixers": "mamba,full"},
                {"a.mixers": "linear(chunk=2,features=elu)"},
            ],
        ),
        ("a,b=x,y", [{"a": "x", "b": "x"}, {"a": "y", "b": "y"}]),
    ],
)
def test_vary_names_keys_and_values(text, rows):
    assert split_vary(text) == rows


@pytest.mark.parametrize("text", ["model.d_ff", "=3", "model.d_ff="])
def test_vary_without_key_or_value_is_refused(text):
    with pytest.raises(UserError, match=r"--vary=.*: expected KEY=VALUE"):
        split_vary(text)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "tiny.py"
    for language in ("en", "de"):
        lines = [f"{word} {n} {language}" for n in range(10) for word in ("a", "the", "some")]
        path.with_name(f"t.{language}").write_text("\n".join(lines) + "\n")
    path.write_text(TINY.replace("FOLDER", str(path.parent)))
    return path


def test_rows_have_as_many_parameters_as_the_first(recipe):
    config = tj.load_recipe(str(recipe))
    mixers = [{"model.decoder.mixers": name} for name in ("full", "ssd", "mamba", "linear")]
    first, *others = make_rows(config, mixers, equal_parameters=True)
    assert first.config.model.d_ff == 64
    for row in others:
        assert abs(row.parameters / first.parameters - 1) < 0.05, row
    assert len({row.config.model.d_ff for row in others}) > 1
    kept = make_rows(config, mixers, equal_parameters=False)
    assert {row.config.model.d_ff for row in kept} == {64}
    assert max(row.parameters for row in kept) > 1.05 * first.parameters


def test_a_row_that_cannot_be_made_equal_or_is_another_one_is_refused(recipe):
    config = tj.load_recipe(str(recipe))
    with pytest.raises(UserError, match="parameters even with model.d_ff=8, .*--unequal"):
        make_rows(
            config, [{"model.d_model": "16"}, {"model.d_model": "128"}], equal_parameters=True
        )
    with pytest.raises(UserError, match="the same model as another row"):
        make_rows(config, [{"model.d_ff": "64"}, {"model.d_model": "16"}], equal_parameters=True)
    with pytest.raises(UserError, match="--vary=model.d_f"):
        make_rows(config, [{"model.d_f": "64"}], equal_parameters=True)


def test_an_interval_is_students():
    # t with 2 degrees of freedom: 4.303; standard deviation 1, so 4.303 / sqrt(3).
    assert interval([1.0, 2.0, 3.0]) == pytest.approx(4.302653 / math.sqrt(3), rel=1e-5)
    assert math.isnan(interval([1.0]))


def summary(name, bleus, seeds=(0, 1, 2), steps=10):
    row = Row(name, name, tj.Config(), 1_000)
    return Summary(
        row,
        [
            Result(seed, {"bleu": bleu, "chrf": bleu}, "sig", steps, 2.0 + seed, 5.0)
            for seed, bleu in zip(seeds, bleus, strict=True)
        ],
    )


def test_differences_are_taken_seed_by_seed():
    first, other = summary("full", [10, 20, 30]), summary("ssd", [31, 11], seeds=(2, 0))
    assert other.difference(first, "bleu") == [1, 1]
    text = table([first, other])
    assert "| full | 20.00 ± 24.84 |  |" in text and "\n10 steps each" in text
    early = summary("ssd", [31, 11], seeds=(2, 0), steps=1007)
    assert "\n10 to 1,007 steps each" in table([first, early])
    assert "| ssd | 21.00 ± 127.06 | +1.00 ± 0.00 |" in text
    assert first.steps_per_second == 3.0


def test_a_comparison_continues_and_draws(recipe, tmp_path, monkeypatch, capsys):
    output = tmp_path / "out"
    command = ["compare", f"--config={recipe}", f"--output={output}", "--seeds=2", "--no_progress"]
    command += ["--vary=model.decoder.mixers=full,[window,full]"]
    trained = []
    train = results.train

    def counted(config, folder, **options):
        trained.append(folder)
        return train(config, folder, **options)

    monkeypatch.setattr(results, "train", counted)
    assert main([*command, "--part=2/2"]) == 0  # the second row of both seeds
    assert {folder.parent.name for folder in trained} == {"window_full"} and len(trained) == 2
    assert not (output / "table.md").exists()
    assert main(command) == 0
    assert len(trained) == 4
    out = capsys.readouterr().out
    assert "| window,full | " in out and out == (output / "table.md").read_text()
    rows = json.loads((output / "rows.json").read_text())
    assert [len(row["results"]) for row in rows] == [2, 2]
    assert [result["seed"] for result in rows[0]["results"]] == [0, 1]
    for picture in ("scores.png", "cost.png"):
        assert (output / picture).read_bytes()[:4] == b"\x89PNG"
    assert main(command) == 0 and len(trained) == 4
    assert main([*command, "--config.train.steps=5"]) == 2
    assert "is of another recipe: use another --output" in capsys.readouterr().err
    damaged = trained[0] / "comparison.json"
    damaged.write_text(damaged.read_text()[:-9])
    assert main(command) == 2
    assert f"{damaged}: damaged, or of another version" in capsys.readouterr().err
    assert main([*command, "--part=3/2"]) == 2
    assert "--part=3/2: expected I/N" in capsys.readouterr().err
