"""What is written on the pictures."""

import json

import numpy as np
import pytest

from transformer_jax.commands.main import main
from transformer_jax.config import Config, to_json
from transformer_jax.runs.folder import open_run
from transformer_jax.viewing import plots
from transformer_jax.viewing.samples import by_word, words_of


@pytest.fixture
def figures(monkeypatch):
    """The figures that are drawn, none of which is saved."""
    drawn = []
    monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append(figure))
    return drawn


def test_pictures_name_their_layers_heads_axes_and_pieces(figures, tmp_path):
    maps = {
        "encoder.0": np.zeros((2, 3, 3)),
        "decoder.0": np.zeros((1, 2, 2)),
        "cross.1, mean of 2 heads": np.zeros((1, 2, 3)),
    }
    labels = ["a", "b", "</s>"], ["c", "</s>"]
    plots.plot_attention(maps, *labels, tmp_path / "heat.png", "A b.\nC\0.")
    assert figures[0].get_suptitle() == "A b.\nC\ufffd."
    panels = {panel.get_title(): panel for panel in figures[0].axes if panel.get_title()}
    words = {
        title: (
            panel.get_ylabel(),
            panel.get_xlabel(),
            [label.get_text() for label in panel.get_yticklabels() if label.get_text()],
            [label.get_text() for label in panel.get_xticklabels()],
        )
        for title, panel in panels.items()
    }
    source = ["a", "b", "</s>"]
    assert words == {
        "encoder.0, head 0": ("source", "source", source, source),
        "encoder.0, head 1": ("", "source", [], source),
        "decoder.0": ("target, as read", "target, as read", ["<s>", "c"], ["<s>", "c"]),
        "cross.1, mean of 2 heads": ("target, as generated", "source", ["c", "</s>"], source),
    }


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["▁Th", "e", "▁dog", ".", "</s>"], [("The", 2), ("dog", 1), (".", 1), ("</s>", 1)]),
        (["▁", "So", "nn", "tag", ",", "▁zu"], [("Sonntag", 4), (",", 1), ("zu", 1)]),
        (["▁forty", "-", "five"], [("forty", 1), ("-", 1), ("five", 1)]),
    ],
)
def test_pieces_make_words(pieces, words):
    assert words_of(pieces) == words


def test_attention_between_words_is_a_sum_over_source_and_a_mean_over_target_pieces():
    weights = np.array([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]])
    found = by_word(weights, [("ab", 2), ("c", 1)], [("x", 1), ("yz", 2)])
    np.testing.assert_allclose(found, [[0.3, 0.7], [0.2, 0.8]])


def run_with(folder, *records):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(to_json(Config()))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    return folder


def bleu(step, score, minutes):
    return {"step": step, "validation.bleu": score, "minutes": minutes}


def test_sentences_and_pieces_are_no_formulas(tmp_path):
    maps, path = {"cross.0": np.ones((1, 1, 1))}, tmp_path / "heat.png"
    plots.plot_attention(maps, ["$$"], ["$x_$"], path, "From $\\from$ to.\n$")
    assert path.stat().st_size > 1000


def test_the_best_bleu_is_written_on_a_training(figures, tmp_path):
    loss = {"step": 500, "loss": 3.0, "nll": 2.0}
    run = open_run(run_with(tmp_path / "run", loss, bleu(1000, 30.25, 1), bleu(2000, 29.0, 2)))
    plots.plot_training(run, run.metrics())
    (legend,) = (axes.get_legend() for axes in figures[0].axes if axes.get_legend())
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts[-1] == "validation BLEU: 30.2 after 1,000 steps"


def test_a_curve_for_each_run_against_minutes(figures, tmp_path):
    loss = {"step": 5, "loss": 3.0, "minutes": 0.5}
    folders = [
        run_with(
            tmp_path / "one", loss, bleu(10, 4.0, 1.5), bleu(20, 30.25, 7.6), bleu(30, 29, 9.0)
        ),
        run_with(tmp_path / "a" / "same", bleu(3, 7.0, 2.0)),
        run_with(tmp_path / "b" / "same", bleu(3, 8.0, 3.0), {"step": 4, "validation.bleu": 9.0}),
    ]
    plots.plot_bleu([open_run(folder) for folder in folders], tmp_path / "bleu.png")
    (axes,) = figures[0].axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("minutes", "validation BLEU (greedy)")
    curves = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
    assert curves == {
        "one: 30.2 after 8 min": [[1.5, 4.0], [7.6, 30.25], [9.0, 29.0]],
        f"{folders[1]}: 7.0 after 2 min": [[2.0, 7.0]],
        f"{folders[2]}: 8.0 after 3 min": [[3.0, 8.0]],
    }


def test_the_command_writes_the_picture_or_says_what_is_missing(tmp_path, capsys):
    folder = run_with(tmp_path / "run", bleu(10, 4.0, 1.5))
    picture = tmp_path / "new" / "bleu.png"
    assert main(["plot", f"--workdir={folder}", f"--output={picture}"]) == 0
    assert capsys.readouterr().out.strip() == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    old = run_with(tmp_path / "old", {"step": 10, "validation.bleu": 4.0})
    for words, workdir, output in (
        ("old/metrics.jsonl: no validation BLEU with its minutes", old, picture),
        ("end the name in .png", folder, tmp_path / "bleu.pdf"),
    ):
        assert main(["plot", f"--workdir={workdir}", f"--output={output}"]) == 2
        assert words in capsys.readouterr().err
