"""Runs the notebook and stores its outputs: `python docs/run_notebook.py` (five minutes).

It does what Jupyter does, as far as this notebook needs it: it keeps what a cell prints, the value
of its last expression, and the figures that it shows. Progress bars are not kept.
"""

import ast
import base64
import contextlib
import io
import json
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402
from PIL import Image  # noqa: E402

NOTEBOOK = Path(__file__).parent / "notebooks" / "first_steps.ipynb"

Output = dict[str, Any]


def run_cells(sources: list[str], names: dict[str, Any]) -> Iterator[list[Output]]:
    """The outputs of each cell, as a notebook holds them; all cells share `names`."""
    warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
    for number, source in enumerate(sources, start=1):
        outputs: list[Output] = []
        printed = io.StringIO()
        *body, last = ast.parse(source).body
        is_value = isinstance(last, ast.Expr)
        with contextlib.redirect_stdout(printed):
            code = ast.Module(body if is_value else [*body, last], [])
            exec(compile(code, f"cell {number}", "exec"), names)
            value = None
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
        if printed.getvalue():
            outputs.append(
                {"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())}
            )
        for figure in map(plt.figure, plt.get_fignums()):
            picture = {"image/png": _png(figure), "text/plain": ["<Figure>"]}
            outputs.append({"data": picture, "metadata": {}, "output_type": "display_data"})
        plt.close("all")
        if value is not None:
            data = {"text/plain": _lines(repr(value))}
            outputs.append(
                {
                    "data": data,
                    "execution_count": number,
                    "metadata": {},
                    "output_type": "execute_result",
                }
            )
        yield outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _png(figure: Any) -> str:
    """The figure in base64, with few colours, which makes it small."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100, bbox_inches="tight")
    small = io.BytesIO()
    Image.open(picture).convert("RGB").quantize(64).save(small, format="png", optimize=True)
    return base64.b64encode(small.getvalue()).decode() + "\n"


def main() -> None:
    """Runs the notebook in an empty folder, and writes it with its outputs."""
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        all_outputs = run_cells(["".join(cell["source"]) for cell in cells], {})
        for number, (cell, outputs) in enumerate(zip(cells, all_outputs, strict=True), start=1):
            cell |= {"execution_count": number, "outputs": outputs}
    text = json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"
    NOTEBOOK.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
