"""`transformer-jax <command>`: flags in, one call into the package, one exit status."""

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from transformer_jax.cli.process_flags import end_at_once
from transformer_jax.cli.train import STOPPED
from transformer_jax.errors import CannotSave, UserError
from transformer_jax.parallel.host_memory import keep_freed_memory
from transformer_jax.user_cache import user_cache

#: Subcommand -> what it does; each is the module `transformer_jax.cli.<name>`.
COMMANDS = {
    "train": "train a model from a recipe, or continue a run",
    "eval": "score a run's translations of a test set (BLEU, chrF++)",
    "translate": "translate standard input line by line",
    "score": "log-probability of given translations",
    "inspect": "draw where every layer and head looks in a sentence pair",
}

USER_ERROR = 2


class _Parser(argparse.ArgumentParser):
    """argparse whose complaint is one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def build_parser() -> argparse.ArgumentParser:
    """The parser with every subcommand; each adds its own flags."""
    parser = _Parser(prog="transformer-jax", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for name, summary in COMMANDS.items():
        module = importlib.import_module(f"transformer_jax.cli.{name}")
        command = commands.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; returns the exit status (2 for a mistake of the user's).

    One of several processes does not return after a failure, nor does any after a failed
    save: it ends at once.
    """
    try:
        status = _run(argv)
    except Exception as error:
        if not _is_one_of_several():
            raise
        line = (str(error).strip().splitlines() or [""])[0][:300]
        print(
            f"error: {type(error).__name__}: {line} (most likely another process has ended)",
            file=sys.stderr,
        )
        status = 1
    if status not in (0, STOPPED) and _is_one_of_several():
        end_at_once(status)
    return status


def _run(argv: Sequence[str] | None) -> int:
    try:
        args, rest = build_parser().parse_known_args(argv)
        # argparse cannot declare the open set of --config.KEY=VALUE; `train` takes them.
        if rest and args.command != "train":
            raise UserError(
                f"unknown argument {rest[0]} (see transformer-jax {args.command} --help)"
            )
        args.overrides = rest
        _prepare_process()
        status = args.run(args)
    except UserError as error:
        # Names of files and values of flags may hold line ends.
        print(f"error: {' '.join(str(error).splitlines())}", file=sys.stderr)
        if isinstance(error, CannotSave):
            end_at_once(USER_ERROR)  # seen: the writer's threads held up the exit for ever
        return USER_ERROR
    except BrokenPipeError:
        # The reader of our output has gone; keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        # A full disk, a folder that may not be written: the system's own words, and where.
        print(
            f"error: {error.filename or args.command}: {error.strerror or error}", file=sys.stderr
        )
        return USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return int(status or 0)


def _is_one_of_several() -> bool:
    jax = sys.modules.get("jax")  # whoever did not get as far as importing it is alone
    return jax is not None and jax.distributed.is_initialized()


def _prepare_process() -> None:
    """Settings of the whole process, which a library must leave alone."""
    import jax

    keep_freed_memory()
    sys.unraisablehook = _tell_unless_late
    # Orbax explains itself at length, and logs with a traceback what it then raises.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(user_cache() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def _tell_unless_late(unraisable: "sys.UnraisableHookArgs") -> None:
    """`sys.unraisablehook`, deaf to writes that end after the first of a save has failed.

    TensorStore's threads report them to Orbax's event loop, which is closed by then.
    """
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)
