"""What is written on the pictures of attention."""

import numpy as np

from transformer_jax.viewing import plots


def test_pictures_name_their_layers_heads_axes_and_pieces(monkeypatch, tmp_path):
    figures = []
    monkeypatch.setattr(plots, "_save", lambda figure, path: figures.append(figure))
    maps = {
        "encoder.0": np.zeros((2, 3, 3)),
        "decoder.0": np.zeros((1, 2, 2)),
        "cross.1, mean of 2 heads": np.zeros((1, 2, 3)),
    }
    plots.plot_attention(maps, ["a", "b", "</s>"], ["c", "</s>"], tmp_path / "heat.png")
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
        "encoder.0, head 0": ("source piece", "source piece", source, source),
        "encoder.0, head 1": ("", "source piece", [], source),
        "decoder.0": ("target piece read", "target piece read", ["<s>", "c"], ["<s>", "c"]),
        "cross.1, mean of 2 heads": (
            "target piece generated",
            "source piece",
            ["c", "</s>"],
            source,
        ),
    }
