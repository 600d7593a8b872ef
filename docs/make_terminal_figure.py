"""Draws a session in a terminal: docs/figures/terminal.svg.

    python docs/make_terminal_figure.py --record    # runs the commands, which takes minutes
    python docs/make_terminal_figure.py             # draws the recorded session again

What is shown is what the commands printed, cut to the lines that `SESSION` names. The picture holds
the recording. It is animated by CSS alone; its end is a still with all lines, which is also
what a program shows that knows no animation.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path

FIGURE = Path(__file__).parent / "figures" / "terminal.svg"
ROOT = Path(__file__).parents[1]
RUN = "--workdir=runs/quickstart"
CLI = ("-c", "import sys; from transformer_jax.commands.main import main; sys.exit(main())")


@dataclass(frozen=True)
class Command:
    """A command of the session."""

    typed: str
    runs: tuple[tuple[str, ...], ...]  #: the arguments of Python, one program after the other
    shown: str = ".*"  #: an expression that matches the lines that are shown
    lines: tuple[str, ...] = ()  #: typed into its standard input
    until: str | None = None  #: a line at which a program that does not end is stopped


SESSION = (
    Command(
        "./run quickstart",  # once .venv is set up, it runs these
        (
            (str(ROOT / "train.py"), f"--config={ROOT / 'configs' / 'quickstart.py'}", RUN),
            (str(ROOT / "eval.py"), RUN),
            (*CLI, "inspect", RUN),
        ),
        r"en -> de.*|\d[\d,]* parameters.*|step \d+: validation.*|drew .*cross.*|BLEU.*"
        r"|.*\| step \d*[05]0/450, .*",
    ),
    Command(
        f"transformer-jax translate {RUN}",
        ((*CLI, "translate", RUN),),
        lines=(
            "The door that our brother opened is expensive.",
            "Anna must find twenty-seven books.",
        ),
    ),
    Command(
        f"transformer-jax serve {RUN}",
        ((*CLI, "serve", RUN),),
        "listening.*",
        until=r"compiled .*|ready: .*",
    ),
)

#: [seconds since the command began, text, whether the next line replaces it]
Output = list[tuple[float, str, bool]]


def record(command: Command, folder: str) -> Output:
    """Runs a command and returns the lines that are shown."""
    found: Output = []
    began = time.monotonic()
    for arguments in command.runs:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdin and process.stdout
        process.stdin.write("".join(f"{line}\n" for line in command.lines).encode())
        process.stdin.close()
        line = b""
        while byte := process.stdout.read(1):
            if byte not in b"\r\n":
                line += byte
                continue
            text = line.decode().rstrip()
            if re.fullmatch(command.shown, text) and text:
                found.append((round(time.monotonic() - began, 2), text, byte == b"\r"))
            if command.until and re.fullmatch(command.until, text):
                process.send_signal(signal.SIGTERM)
            line = b""
        if process.wait():
            raise SystemExit(f"{command.typed}: exit status {process.returncode}")
    return found


# ---- drawing

WIDTH, LINE, LEFT, TOP = 820, 20, 18, 62
LETTER = 0.045  #: seconds to type one
FASTER = 8.0  #: than it was
LONGEST = 1.2  #: seconds in which nothing appears

STYLE = """
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  white-space: pre; fill: #d7dae0; }
.title { fill: #8b93a5; }
.typed { fill: #fff; font-weight: 600; animation: type 1s steps(40) backwards; }
.prompt { fill: #7ee787; font-weight: 600; }
.line, .prompt { animation: show 1ms backwards; }
.passing { opacity: 0; animation: pass 1ms; }
@keyframes show { from { opacity: 0 } to { opacity: 1 } }
@keyframes pass { from { opacity: 1 } to { opacity: 1 } }
@keyframes type { from { clip-path: inset(0 100% 0 0) } to { clip-path: inset(0 0 0 0) } }
@media (prefers-reduced-motion: reduce) { * { animation: none !important } }
"""


class Drawing:
    """Rows of a terminal and when each appears."""

    def __init__(self) -> None:
        self.now, self.rows, self.parts = 0.8, 0, list[str]()

    def text(self, kind: str, text: str, *, seconds: float = 0, left: int = LEFT) -> None:
        """Text in the present row, from now on; `seconds`: how long typing or passing takes."""
        y = TOP + LINE * self.rows
        times = f"animation-delay:{self.now:.2f}s"
        times += f";animation-duration:{seconds:.2f}s" if seconds else ""
        self.parts.append(
            f'<text class="{kind}" x="{left}" y="{y}" style="{times}">{escape(text)}</text>'
        )

    def typed(self, text: str, *, prompt: bool) -> None:
        """A line that someone types."""
        left = LEFT
        if prompt:
            self.text("prompt", "$")
            left += 16
            self.now += 0.5
        seconds = LETTER * len(text)
        self.text("typed", text, seconds=seconds, left=left)
        self.now += seconds + 0.4
        self.rows += 1


def draw(recorded: list[Output]) -> str:
    """The picture of a session."""
    drawing = Drawing()
    for command, output in zip(SESSION, recorded, strict=True):
        drawing.typed(command.typed, prompt=True)
        lines = list(command.lines)
        times = [seconds for seconds, _, _ in output]
        gaps = [
            min((after - before) / FASTER, LONGEST)
            for before, after in zip([0.0, *times], [*times, times[-1]], strict=True)
        ]
        for (_, text, passes), before, after in zip(output, gaps, gaps[1:], strict=False):
            if lines:
                drawing.typed(lines.pop(0), prompt=False)
            drawing.now += before
            if passes:
                drawing.text("passing", text, seconds=after)
            else:
                drawing.text("line", text)
                drawing.rows += 1
        drawing.now += 1.0
    height = TOP + LINE * drawing.rows + 4
    dots = "".join(
        f'<circle cx="{22 + 18 * place}" cy="20" r="6" fill="{colour}"/>'
        for place, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}">\n'
        f"<title>{escape(SESSION[0].typed)}, then translate and serve</title>\n"
        f"<metadata>{escape(json.dumps(recorded, ensure_ascii=False))}</metadata>\n"
        f"<style>{STYLE}</style>\n"
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="#1e2128"/>{dots}\n'
        f'<text class="title" x="90" y="25">shown faster than it ran, and cut</text>\n'
        + "\n".join(drawing.parts)
        + "\n</svg>\n"
    )


def recording(figure: str) -> list[Output]:
    """The session that a picture was drawn from."""
    (found,) = re.findall("<metadata>(.*)</metadata>", figure)
    return [[(s, text, passes) for s, text, passes in each] for each in json.loads(unescape(found))]


def main() -> None:
    """Records if asked to, and draws."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="run the commands")
    if parser.parse_args().record:
        with tempfile.TemporaryDirectory() as folder:
            recorded = [record(command, folder) for command in SESSION]
    else:
        recorded = recording(FIGURE.read_text(encoding="utf-8"))
    FIGURE.write_text(draw(recorded), encoding="utf-8")


if __name__ == "__main__":
    main()
