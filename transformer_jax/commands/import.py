"""Makes a run folder out of a published model: Marian (OPUS-MT) and others of Transformers.

    transformer-jax import --from=opus-mt-en-de --workdir=runs/en-de
    transformer-jax import --from=Helsinki-NLP/opus-mt-en-de --workdir=runs/en-de

The first reads a folder with the files as they are published: config.json, the weights, the
SentencePiece models. The second fetches them from Hugging Face's hub. Nothing in them is executed.
The run folder is like any other: it can be used, scored and trained further.
"""

import argparse

from transformer_jax.commands.flags import Parser
from transformer_jax.commands.lines import note


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax import`."""
    add = parser.add_argument
    add("--from", required=True, dest="folder", metavar="FOLDER", help="or a name on the hub")
    add("--revision", help="of a name on the hub: a branch, tag or commit; default: the newest")
    add("--workdir", required=True, metavar="DIR", help="the run folder to write")
    spelled = "as the model spells it (NLLB: eng_Latn); some families need it"
    add("--source_language", metavar="CODE", help=f"language to translate from, {spelled}")
    add("--target_language", metavar="CODE", help=f"language to translate into, {spelled}")
    add("--add_language", metavar="CODE", help="add a language that the model lacks (NLLB, M2M100)")
    add("--from_language", metavar="CODE", help="begin it as this one (default: mean of all)")


def run(args: argparse.Namespace) -> None:
    """Imports and prints the run folder."""
    from transformer_jax.formats.import_model import import_model
    from transformer_jax.models.api import num_params
    from transformer_jax.runs.folder import INT8

    languages = ("source_language", "target_language", "add_language", "from_language")
    options = {name: getattr(args, name) for name in ("revision", *languages)}
    imported = import_model(args.folder, args.workdir, **options)
    model, data = imported.config.model, imported.config.data
    direction = f"{data.source_language or '?'} -> {data.target_language or '?'}"
    print(imported.path)
    note(f"{num_params(model):,} parameters, up to {model.max_length} pieces, {direction}")
    if "?" in direction:
        flags = "--source_language=CODE --target_language=CODE"
        note(f"no file names the languages: {flags} do, which `serve` needs")
    if (imported.path / INT8).is_file():
        note(
            "the file is of int8, and the run translates with its whole numbers (weights=int8); "
            "--weights=float translates in floats, as training computes"
        )
