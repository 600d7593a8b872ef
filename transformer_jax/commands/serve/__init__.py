r"""Serves runs over HTTP, in LibreTranslate's and DeepL's forms, with a page at `/`.

    transformer-jax serve --workdir=runs/quickstart
    curl http://127.0.0.1:5000/translate -d source=en -d target=de \
        -d q='Anna must find twenty-seven books.'

Several runs serve several directions: repeat --workdir. Runs of one direction translate together.
"""

import argparse
import logging

from transformer_jax.commands.flags import Parser
from transformer_jax.commands.run_flags import add_run_arguments, chosen_runs
from transformer_jax.commands.text import add_lines_argument
from transformer_jax.data.sources.files import decode_lines
from transformer_jax.errors import UserError, optional


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax serve`."""
    add_run_arguments(parser)
    add = parser.add_argument
    kinds = "jax (default), ctranslate2, or 'ctranslate2(quantization=int8)'"
    add("--engine", default="jax", metavar="KIND", help=kinds)
    add("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    add("--port", type=int, default=5000, help="0: a free one (%(default)s)")
    add("--api_keys", metavar="FILE", help="one key a line; each request must name one of them")
    origin = "a web page's origin that may use the server, or *; repeatable"
    add("--cors", action="append", default=[], metavar="ORIGIN", help=origin)
    add("--char_limit", type="count", default=5000, help="characters of a request (%(default)s)")
    add("--batch_limit", type="count", default=50, help="texts of one (%(default)s)")
    full = "sentences that may wait; then 429 (%(default)s)"
    add("--queue", type="count", default=2048, help=full)
    waits = "most milliseconds that a sentence waits for others on an idle device (%(default)s)"
    add("--window_ms", type=float, default=50.0, help=waits)
    add_lines_argument(parser)


def run(args: argparse.Namespace) -> None:
    """Serves until a signal."""
    for package in ("babel", "prometheus_client", "py3langid", "starlette", "uvicorn"):
        optional(package, "serving", "serve")
    from transformer_jax.commands.serve import app as server
    from transformer_jax.commands.serve.engines import open_engine
    from transformer_jax.commands.serve.http import Limits

    if not args.window_ms >= 0:
        raise UserError(f"--window_ms={args.window_ms}: must be at least 0")
    keys = _keys(args.api_keys) if args.api_keys else []
    runs = chosen_runs(args)
    sock = server.listen(args.host, args.port)
    engines = [open_engine(args.engine, run, args.checkpoint, **decoding) for run, decoding in runs]
    examples: dict[str, list[str]] = {}
    for engine, (run, _) in zip(engines, runs, strict=True):
        examples.setdefault(engine.source, run.config.data.examples(engine.source))
    app = server.make_app(
        engines,
        limits=Limits(args.char_limit, args.batch_limit),
        keys=keys,
        cors=args.cors,
        queue=args.queue,
        window=args.window_ms / 1000,
        whole_lines=args.lines == "whole",
        examples=examples,
    )
    host, port = sock.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    logging.getLogger(__name__).info(
        "listening on http://%s:%d, and answering while programs compile", shown, port
    )
    server.run(app, sock)


def _keys(path: str) -> list[str]:
    """The keys in a file, one a line."""
    with open(path, "rb") as file:
        keys = [key for line in decode_lines(file, path) if (key := line.strip())]
    if not keys:
        raise UserError(f"--api_keys={path}: there is no key in it")
    return keys
