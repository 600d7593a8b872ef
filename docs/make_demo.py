"""Makes docs/demo.html: the page of `transformer-jax serve` with recorded answers.

    python docs/make_demo.py --workdir=runs/quickstart    # records a run's answers
    python docs/make_demo.py                              # puts the recording into today's page

The file holds everything that the page loads, so it needs no server. The recording has the
translations of the first sentences of the validation set, the other words at each place of the
best one, and for all these translations where the model looks.
"""

import argparse
import base64
import gzip
import itertools
import json
import re
from pathlib import Path
from typing import Any

from transformer_jax.data.splits import read_pairs
from transformer_jax.runs.folder import open_run

DEMO = Path(__file__).with_name("demo.html")
STATIC = Path(__file__).parents[1] / "transformer_jax" / "commands" / "serve" / "static"

SENTENCES = 30

#: Answers the page's requests. The recording is JSON, {path: {body: answer}}.
SCRIPT = """
const bytes = Uint8Array.from(atob(document.getElementById("recorded").textContent),
  (character) => character.charCodeAt(0));
const recorded = new Response(
  new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
window.fetch = async (path, { body = "" } = {}) => {
  const answer = (await recorded)[path][body];
  return answer ? Response.json(answer) : Response.json({ error: NOT_RECORDED }, { status: 404 });
};
"""
NOT_RECORDED = (
    f"This is a recording of {SENTENCES} sentences and not of this: clear the text to see them"
)
NOTE = (
    f"A recording of the page that <code>transformer-jax serve</code> shows: {SENTENCES} sentences"
    " by the quickstart's model."
)


def record(workdir: str) -> str:
    """The answers of a run's server, packed for the page."""
    from starlette.testclient import TestClient

    from transformer_jax.commands.serve.app import make_app
    from transformer_jax.commands.serve.engines import open_engine

    run = open_run(workdir)
    pairs = read_pairs(run.config.data, "validation")
    sentences = [source for source, _ in itertools.islice(pairs, SENTENCES)]
    engine = open_engine("jax", run, "best")
    app = make_app([engine], examples={engine.source: sentences})
    recorded: dict[str, dict[str, Any]] = {}
    with TestClient(app) as client:

        def ask(path: str, **fields: Any) -> Any:
            # As JSON.stringify writes it.
            body = json.dumps(fields, ensure_ascii=False, separators=(",", ":")) if fields else ""
            if body not in recorded.setdefault(path, {}):
                headers = {"Content-Type": "application/json"}
                method = "POST" if fields else "GET"
                answer = client.request(method, f"/{path}", content=body.encode(), headers=headers)
                recorded[path][body] = answer.raise_for_status().json()
            return recorded[path][body]

        for path in ("languages", "frontend/settings", "page/examples"):
            ask(path)
        for sentence in sentences:
            place = {"q": sentence, "source": engine.source, "target": engine.target}
            (answer,) = ask("page/translate", **place)["sentences"]
            for translation in answer["translations"]:
                ask("page/explain", **place, tokens=translation["tokens"])
            best = answer["translations"][0]["tokens"]
            pieces = ask("page/explain", **place, tokens=best)["target"]
            for number, piece in enumerate(pieces):
                if number == 0 or piece.startswith("▁"):
                    found = ask("page/choices", **place, tokens=best[:number])
                    for translation in found:
                        ask("page/explain", **place, tokens=translation["tokens"])
    for answer in recorded["page/explain"].values():  # as exact as a shade is seen
        answer["looks"] = [[round(share, 2) for share in row] for row in answer["looks"]]
    content = json.dumps(recorded, ensure_ascii=False, separators=(",", ":")).encode()
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def recording(demo: str) -> str:
    """The recording in a page that `build` made."""
    (found,) = re.findall(r'<script id="recorded" type="application/gzip">(.*?)</script>', demo)
    return found


def build(recorded: str) -> str:
    """The page with all that it loads inside, and the recording in place of a server."""
    icon = base64.b64encode((STATIC / "icon.svg").read_bytes()).decode()
    style = (STATIC / "page.css").read_text(encoding="utf-8") + "details { display: none; }\n"
    script = (STATIC / "page.js").read_text(encoding="utf-8")
    replaced = {
        'href="icon.svg"': f'href="data:image/svg+xml;base64,{icon}"',
        '<link rel="stylesheet" href="page.css">': f"<style>\n{style}</style>",
        '<script src="page.js" type="module"></script>': "",
        "<main>": f'<p id="recording" class="hint">{NOTE}</p>\n\n<main>',
        "</body>": (
            f'<script id="recorded" type="application/gzip">{recorded}</script>\n'
            f"<script>\nconst NOT_RECORDED = {json.dumps(NOT_RECORDED)};{SCRIPT}</script>\n"
            f'<script type="module">\n{script}</script>\n</body>'
        ),
    }
    page = (STATIC / "page.html").read_text(encoding="utf-8")
    for old, new in replaced.items():
        assert page.count(old) == 1, old
        page = page.replace(old, new)
    return page


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", help="record the answers of this run")
    workdir = parser.parse_args().workdir
    recorded = record(workdir) if workdir else recording(DEMO.read_text(encoding="utf-8"))
    DEMO.write_text(build(recorded), encoding="utf-8")
