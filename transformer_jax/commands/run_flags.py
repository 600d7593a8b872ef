"""Flags that several commands share: the run, how it decodes, and other processes of a job."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from etils import epath

from transformer_jax.commands.flags import Parser
from transformer_jax.config import override
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.paths import as_path
from transformer_jax.translation.model import Mean

if TYPE_CHECKING:
    from transformer_jax.runs.folder import Run


def add_run_arguments(
    parser: Parser,
    *,
    flag: str = "--workdir",
    decode: bool = True,
    only: Sequence[str] = (),
    required: bool = True,
) -> None:
    """Adds a flag for the run, --checkpoint, and keys of `DecodeConfig`: all, or `only` some.

    With `decode`, the flag may be repeated.
    """
    add = parser.add_argument
    if decode:
        several = "the run folder; given several times, their models translate together"
        add(flag, required=required, action="append", metavar="DIR", help=several)
        mean = "what several models average (default: log_probs)"
        add("--ensemble_mean", choices=get_args(Mean), default="log_probs", help=mean)
    else:
        add(flag, required=True, metavar="DIR", help="the run folder")
    which = "best, latest, a step, or average:N, the mean of the last N (default: best)"
    add("--checkpoint", default="best", metavar="WHICH", help=which)
    if decode:
        title = "decoding (default: as in the run's config)"
        parser.add_config(DecodeConfig, title=title, only=only)


def chosen_run(args: argparse.Namespace) -> tuple["Run", dict[str, Any]]:
    """The run or ensemble that the flags name, and the fields of `DecodeConfig` they change.

    Raises:
        UserError: there is no run, or a wrong key or value.
    """
    from transformer_jax.runs.ensemble import open_ensemble

    run = open_ensemble(args.workdir, mean=args.ensemble_mean)
    return run, _chosen_decoding(run, args)


def chosen_runs(args: argparse.Namespace) -> list[tuple["Run", dict[str, Any]]]:
    """As `chosen_run`, for each direction: only runs with the same languages are an ensemble.

    A run of several directions is there once for each, unless the flags name a language.
    """
    from transformer_jax.runs.ensemble import join
    from transformer_jax.runs.folder import open_run

    by_languages: dict[Any, list[Run]] = {}
    for run in map(open_run, args.workdir):
        data = run.config.data
        by_languages.setdefault((data.source_language, data.target_language), []).append(run)
    chosen = []
    for own, runs in by_languages.items():
        run = join(runs, mean=args.ensemble_mean)
        overrides, data = _chosen_decoding(run, args), run.config.data
        is_named = overrides.keys() & {"source_language", "target_language"}
        for source, target in [own] if is_named or not data.corpora else data.directions:
            languages = {"source_language": source, "target_language": target}
            chosen.append((run, overrides | (languages if (source, target) != own else {})))
    return chosen


def _chosen_decoding(run: "Run", args: argparse.Namespace) -> dict[str, Any]:
    decode = override(run.config.decode, args.flags, prefix="--")
    return {name: getattr(decode, name) for name in {key.split(".")[0] for key in args.flags}}


def png_path(text: str) -> epath.Path:
    """The value of a flag --output that names a picture."""
    if not text.endswith(".png"):
        raise UserError(f"--output={text}: the picture is a PNG; end the name in .png")
    return as_path(text)


def add_process_arguments(parser: Parser) -> None:
    """Adds --distributed, --coordinator_address, --num_processes and --process_id."""
    add = parser.add_argument_group("several processes (the same command in each)").add_argument
    add("--distributed", action="store_true", help="join the others on a cluster that JAX detects")
    add("--coordinator_address", metavar="HOST:PORT", help="address of process 0")
    add("--num_processes", type=int, metavar="N", help="number of processes")
    add("--process_id", type=int, metavar="I", help="number of this process, from 0")


def start_processes(args: argparse.Namespace) -> None:
    """Joins the other processes, if the flags name any.

    Raises:
        UserError: they cannot be reached.
    """
    address = (args.coordinator_address, args.num_processes, args.process_id)
    if args.distributed or any(value is not None for value in address):
        from transformer_jax.parallel import processes

        processes.start(*address)
