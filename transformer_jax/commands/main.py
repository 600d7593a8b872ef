"""Train, score and use encoder-decoder Transformer translation models."""

import argparse
import gc
import importlib
import importlib.metadata
import logging
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from transformer_jax.commands.flags import Parser
from transformer_jax.errors import CannotSave, UserError, first_line, hint
from transformer_jax.paths import user_cache

#: Command -> what it does; each is the module `transformer_jax.commands.<command>`.
COMMANDS = {
    "recipes": "list the recipes, with their measured scores",
    "check": "try this machine's devices: numbers and speed",
    "prepare": "make a large text into ids before training, on many machines",
    "train": "train a model from a recipe, or continue a run",
    "eval": "score a run's translations of a test set (BLEU, chrF++)",
    "translate": "translate standard input line by line",
    "score": "log-probability of given translations",
    "contrast": "how often the right one of given translations is the most probable",
    "compare": "train models that differ in one thing: tables with intervals, plots",
    "distil": "train a small fast model on what a trained one translates",
    "import": "make a run folder out of a published model, such as one of OPUS-MT",
    "export": "write a trained model for another runtime",
    "serve": "answer over HTTP, in LibreTranslate's and DeepL's forms, with a page",
    "plot": "draw BLEU against minutes of training, of one or more runs",
    "inspect": "show translations and pictures of a run, or where it attends in a sentence",
}

USER_ERROR = 2
#: Exit status of a run that a signal stopped after it saved its state: 128 + SIGTERM.
STOPPED = 143

_LOGGER = logging.getLogger(__name__)

#: Threads that `training.ahead` may leave behind, compiling what `train.minutes` has no time for.
_LEFT_BEHIND = "compile ahead"


class Stopped(Exception):
    """A signal ended what was in progress; all processes raise it, and what was done is saved."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 2 after a mistake of the user.

    With several processes this does not return after a failure but ends the process, since the
    others may never answer again. It ends the process after a failed save too, and a process of its
    own (without `argv`) where threads are left behind, which a normal exit waits for.
    """
    try:
        args = parse(sys.argv[1:] if argv is None else argv)
        if args.command != "recipes":
            _prepare_process()
        status = args.run(args) or 0
    except UserError as error:
        # Names of files and values of flags may contain line ends.
        print(f"error: {' '.join(str(error).splitlines())}", file=sys.stderr)
        if isinstance(error, CannotSave):  # its threads can block a normal exit forever
            end_at_once(USER_ERROR)
        status = USER_ERROR
    except Stopped:
        _LOGGER.info("stopped and saved; the same command continues the run")
        status = STOPPED
    except BrokenPipeError:
        # The reader of our output has ended; keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    except OSError as error:
        # A full disk, a folder without write permission: the system's own words, and where.
        where = f"{error.filename}: " if error.filename else ""
        print(f"error: {where}{error.strerror or error}", file=sys.stderr)
        status = USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    except Exception as error:
        if not _is_one_of_several():
            raise
        text = f"{type(error).__name__}: {first_line(error)}"
        print(f"error: {text} (most likely another process has ended)", file=sys.stderr)
        status = 1
    if status not in (0, STOPPED) and _is_one_of_several():
        end_at_once(status)
    if argv is None:
        if any(each.name.startswith(_LEFT_BEHIND) for each in threading.enumerate()):
            end_at_once(status)
        gc.freeze()  # Python collects all objects at exit otherwise: a second, for TensorFlow's
    return status


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The flags of one command, and as `run` the function that executes it."""
    commands = Parser(
        prog="transformer-jax",
        usage="%(prog)s <command> [flags]",
        description=__doc__,
        epilog="commands:\n"
        + "".join(f"  {name:<12}{text}\n" for name, text in COMMANDS.items())
        + "\nTo begin: transformer-jax train --config=quickstart --workdir=runs/quickstart",
    )
    version = f"transformer-jax {importlib.metadata.version('transformer-jax')}"
    commands.add_argument("--version", action="version", version=version)
    commands.add_argument("command", metavar="command", help="see below")
    commands.add_argument("flags", nargs=argparse.REMAINDER, help="see `<command> --help`")
    if not words:
        commands.print_help(sys.stderr)
        sys.exit(USER_ERROR)
    first = commands.parse_args(words)
    if first.command not in COMMANDS:
        near = hint(first.command, COMMANDS)
        raise UserError(f"{first.command}: no such command{near}; see transformer-jax --help")
    module = importlib.import_module(f"transformer_jax.commands.{first.command}")
    command = Parser(
        prog=f"transformer-jax {first.command}",
        usage="%(prog)s [flags]",  # a train command has some 150 flags
        description=module.__doc__,
        allow_abbrev=False,
    )
    module.add_arguments(command)
    command.set_defaults(command=first.command, run=module.run, words=first.flags)
    return command.parse(first.flags)


def end_at_once(status: int) -> NoReturn:
    """Ends this process, without waiting for other processes or threads.

    A normal exit waits in the distributed runtime for all processes, and one may have failed.
    After this exit the others notice that this one is silent, and end too.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _is_one_of_several() -> bool:
    jax = sys.modules.get("jax")  # a process that has not imported it is alone
    return jax is not None and jax.distributed.is_initialized()


def _prepare_process() -> None:
    """Changes settings of the whole process, which a library must leave alone."""
    import jax

    from transformer_jax.commands.host_memory import keep_freed_memory
    from transformer_jax.runs.log import log_to_console

    keep_freed_memory()
    # By default collections take a third of the time of tracing a model, which makes many objects.
    gc.set_threshold(100_000, 20, 20)
    log_to_console()
    sys.unraisablehook = _report_unless_late
    # Orbax logs long explanations, and a traceback of what it then raises.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(user_cache() / "compiled"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def _report_unless_late(unraisable: "sys.UnraisableHookArgs") -> None:
    """A `sys.unraisablehook` that ignores writes which end after their save has failed.

    TensorStore's threads report these to Orbax's event loop, which is closed by then.
    """
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)
