"""Flags that all commands for a trained model share, and how their decoding flags apply."""

from typing import TYPE_CHECKING, Any

from transformer_jax.cli.flags import Parser
from transformer_jax.config import override

if TYPE_CHECKING:
    from transformer_jax.runs.folder import Run

#: Title of the flags for `DecodeConfig`.
DECODING = "decoding (default: as in the run's config)"


def add_run_arguments(parser: Parser) -> None:
    """Adds --workdir and --checkpoint."""
    parser.add_argument("--workdir", required=True, metavar="DIR", help="the run folder")
    parser.add_argument(
        "--checkpoint",
        default="best",
        metavar="WHICH",
        help="best (default), latest, a step, or average:N (mean of the last N)",
    )


def decode_overrides(run: "Run", flags: dict[str, str]) -> dict[str, Any]:
    """The fields of `DecodeConfig` that the flags change, from the run's own config.

    Raises:
        UserError: a wrong key or value.
    """
    decode = override(run.config.decode, flags, prefix="--")
    return {name: getattr(decode, name) for name in {key.partition(".")[0] for key in flags}}
