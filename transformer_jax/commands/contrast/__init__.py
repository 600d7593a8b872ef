"""Contrastive scoring: does the model find the right target more probable than the wrong ones?

    transformer-jax contrast --workdir=DIR --input=items.tsv
    transformer-jax contrast --workdir=DIR --input=contrapro.json --documents=documents --context=3

Prints the share of right items of each category, with its 95 % interval (Wilson), and the chance
of guessing. A line of a `.tsv` file is `source TAB right TAB wrong`, and perhaps `TAB category`; of
a `.jsonl` file, an object with these keys, where `wrong` may be a list. The context of a sentence
stands before it in the same text, with ` <sep> ` between sentences. A `.json` file is a
set in the form of ContraPro; --documents is the folder of the text that it comes from.
"""

import argparse
import json
from typing import Any

from transformer_jax.commands.flags import Parser
from transformer_jax.commands.lines import bar_interval, note
from transformer_jax.commands.run_flags import add_run_arguments, chosen_run
from transformer_jax.errors import UserError


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax contrast`."""
    languages = ["source_language", "target_language"]
    add_run_arguments(parser, only=["batch_size", "max_source_length", *languages, "weights"])
    add = parser.add_argument
    add("--input", required=True, metavar="FILE", help="the items: .tsv, .jsonl or .json")
    add("--documents", metavar="FOLDER", help="of a .json: the folder of its documents")
    add("--context", type="count", metavar="N", help="most sentences before, from --documents")
    add("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> None:
    """Scores the items and prints a table."""
    from tqdm import tqdm

    from transformer_jax.translation.contrast import contrast, scorer

    items = _items(args)
    run, overrides = chosen_run(args)
    translator = run.translator(args.checkpoint, **overrides)
    with tqdm(total=len(items), unit=" items", mininterval=bar_interval()) as bar:
        result = contrast(scorer(translator), items, progress=bar.update)
    print(json.dumps(result.to_json()) if args.json else result)
    if result.num_cut:
        note(
            f"note: {result.num_cut} pairs were longer than the limit and were cut: what is tested "
            "may be in the rest; raise --max_source_length"
        )


def _items(args: argparse.Namespace) -> list[Any]:
    from transformer_jax.commands.contrast.sets import read_set
    from transformer_jax.data.contrast import read_items
    from transformer_jax.data.sources.packed import suffix

    if (args.documents is None) != (args.context is None):
        raise UserError("--documents and --context belong together: give both or neither")
    if suffix(args.input) == ".json":
        return read_set(args.input, args.documents, args.context or 0)
    if args.documents is not None:
        raise UserError(f"--documents is for a set in .json; {args.input} has its context itself")
    return list(read_items(args.input))
