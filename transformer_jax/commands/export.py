r"""Writes a trained model for another runtime.

    transformer-jax export --workdir=DIR --format=ctranslate2 --output=OUT
    transformer-jax export --workdir=DIR --format='ctranslate2(quantization=int8)' --output=OUT
    transformer-jax export --workdir=DIR --format=web --output=OUT
    transformer-jax export --workdir=DIR --format=huggingface --output=OUT --push=OWNER/NAME \
        --licence=cc-by-4.0

The quantization of ctranslate2 is float32, float16, int16, int8, int8_float32 or int8_float16.
docs/interop.md describes the formats, and what each cannot express.
"""

import argparse
import re

from transformer_jax.commands.flags import Parser
from transformer_jax.commands.run_flags import add_run_arguments
from transformer_jax.errors import UserError


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax export`."""
    from transformer_jax.formats.exporters import EXPORTERS

    add_run_arguments(parser, decode=False)
    kinds = f"{', '.join(EXPORTERS)}; with options in parentheses"
    parser.add_argument("--format", required=True, metavar="KIND", help=kinds)
    parser.add_argument("--output", required=True, metavar="DIR", help="a new folder")
    push = "then upload it to Hugging Face's hub as OWNER/NAME, which is made private if it is new"
    parser.add_argument("--push", metavar="NAME", help=push)
    licence = "of the model, for its card: an identifier such as cc-by-4.0; --push needs it"
    parser.add_argument("--licence", metavar="ID", help=licence)


def run(args: argparse.Namespace) -> None:
    """Exports and prints the folder, and the address of what was uploaded."""
    from transformer_jax.formats import hub
    from transformer_jax.formats.export import export
    from transformer_jax.runs.folder import open_run

    if args.push:
        hub.check_push(args.push)
        if not args.licence:
            raise UserError(f"--push={args.push}: a card needs a licence: give --licence=cc-by-4.0")
    if args.licence and not re.fullmatch(r"[A-Za-z0-9.+-]+", args.licence):
        raise UserError(f"--licence={args.licence}: give an identifier, such as cc-by-4.0")
    options = {"checkpoint": args.checkpoint, "licence": args.licence}
    print(export(open_run(args.workdir), args.format, args.output, **options))
    if args.push:
        print(hub.push(args.output, args.push))
