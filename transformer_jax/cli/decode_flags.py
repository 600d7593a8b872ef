"""Flags for how to search, shared by `eval` and `translate`; unset ones keep the run's config."""

import argparse
from typing import Any

from transformer_jax.decoding.config import DecodeConfig

_HELP = {
    "method": "beam, greedy or sample",
    "beam_size": "hypotheses kept by beam search",
    "length_penalty": "alpha of the GNMT length penalty; larger favours longer translations",
    "max_length_factor": "longest translation = factor * source pieces + offset",
    "max_length_offset": "see --max_length_factor",
    "max_source_length": "longer input, in pieces, is cut and counted",
    "batch_size": "sentences a process decodes together; changes speed and memory only",
    "temperature": "sampling: below 1 sharpens, above 1 flattens",
    "top_k": "sampling: draw from the k most probable pieces; 0 = all",
    "top_p": "sampling: draw from the smallest set of pieces with this probability",
    "seed": "sampling: the same seed gives the same translations",
}


def add_decode_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds a flag for each field of `DecodeConfig` that a user of a trained model may set."""
    group = parser.add_argument_group("decoding (default: as in the run's config)")
    for name, text in _HELP.items():
        default = getattr(DecodeConfig, name)
        if name == "method":
            group.add_argument("--method", choices=("beam", "greedy", "sample"), help=text)
        else:
            group.add_argument(f"--{name}", type=type(default), metavar="N", help=text)


def decode_overrides(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of `DecodeConfig` that were given on the command line."""
    given = {name: getattr(args, name) for name in _HELP}
    return {name: value for name, value in given.items() if value is not None}


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --workdir and --checkpoint."""
    parser.add_argument("--workdir", required=True, metavar="DIR", help="the run folder")
    parser.add_argument(
        "--checkpoint",
        default="best",
        metavar="WHICH",
        help="best (default), latest, a step, or average:N (mean of the last N)",
    )
