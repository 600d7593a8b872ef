r"""Makes a training text into ids before training: filters, tokenizer, ids, in parts.

    transformer-jax prepare --config=from_files --output=prepared/news \
        --config.data.source.train_source=news.en --config.data.source.train_target=news.de
    transformer-jax train --config=from_files --config.data.prepared=prepared/news \
        --workdir=runs/news

It is done in three steps, here one after the other. On several machines that share --output, run
the first once, then every shard in any order (a SLURM array, a Kubernetes indexed job), then the
last once. All give the same --config and flags.

    transformer-jax prepare ... --tokenizer
    transformer-jax prepare ... --shard=0/8        # to --shard=7/8
    transformer-jax prepare ... --merge

What is there is not made again, so a shard that was killed is simply started again. With --beam the
shards are made by Apache Beam; its value has Beam's own flags:

    transformer-jax prepare ... --shards=64 --beam='--runner=FlinkRunner --flink_master=host:8081'
"""

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from pickle import PicklingError
from typing import TYPE_CHECKING

from transformer_jax.commands.flags import Parser, part_of
from transformer_jax.commands.recipe_flags import recipe_of
from transformer_jax.config import Config
from transformer_jax.errors import UserError, first_line
from transformer_jax.paths import as_path, in_bucket

if TYPE_CHECKING:
    from transformer_jax.commands.prepare.shards import Preparation


def add_arguments(parser: Parser) -> None:
    """Adds the flags of `transformer-jax prepare`."""
    add = parser.add_argument
    add("--config", required=True, metavar="RECIPE", help="a recipe, by name or as a file")
    add("--output", required=True, metavar="DIR", type=as_path, help="the folder of the result")
    step = parser.add_mutually_exclusive_group()
    step.add_argument("--tokenizer", action="store_true", help="only learn the tokenizer")
    step.add_argument("--shard", metavar="I/N", help="only make shard I of N, counted from 0")
    step.add_argument("--merge", action="store_true", help="only check and merge the shards")
    step.add_argument("--beam", metavar="FLAGS", help="make the shards by Apache Beam")
    shards = "shards that are made at a time, with --beam in all; default: one for each core"
    add("--shards", type="count", metavar="N", help=shards)
    pairs = "pairs in a part, which is made at once (default: 100000)"
    add("--part_pairs", type="count", default=100_000, metavar="N", help=pairs)
    parser.add_config(Config, prefix="config.", usual=("data", "tokenizer"))


def run(args: argparse.Namespace) -> None:
    """Does the steps that the flags name, or all."""
    from transformer_jax.commands.prepare.shards import begin, learn_tokenizers, make_shard, merge

    shard = args.shard and part_of("shard", args.shard, first=0)
    if args.shards and (args.tokenizer or shard or args.merge):
        raise UserError("--shards has no effect on one step: leave it out")
    preparation = _preparation(args)
    begin(preparation)
    shards = args.shards or len(os.sched_getaffinity(0))
    if shard:
        make_shard(preparation, *shard)
        return
    if not args.merge:
        learn_tokenizers(preparation)
    if args.beam is not None:
        from transformer_jax.commands.prepare.beam import make_shards

        make_shards(preparation, shards, args.beam)
    elif not (args.tokenizer or args.merge):
        with ProcessPoolExecutor(shards, get_context("spawn"), _begin_shard) as pool:
            make = partial(make_shard, preparation, shards=shards)
            try:
                list(pool.map(make, range(shards)))
            except PicklingError as error:
                raise UserError(
                    "a part of one's own that `prepare` uses must be in a module that other "
                    f"processes can import, not in the recipe ({first_line(error)})"
                ) from None
            except BrokenProcessPool:
                raise UserError(
                    "the process of a shard was killed, perhaps for want of memory: there were "
                    f"{shards}; run the same command with fewer --shards, and it goes on from here"
                ) from None
    if not args.tokenizer:
        merge(preparation)
        print(f"prepared: transformer-jax train ... --config.data.prepared={args.output}")


def _begin_shard() -> None:
    """Prepares the process of a shard."""
    from transformer_jax.commands.signals import end_with_command
    from transformer_jax.runs.log import log_to_console

    log_to_console()
    end_with_command()


def _preparation(args: argparse.Namespace) -> "Preparation":
    from transformer_jax.commands.prepare.shards import Preparation
    from transformer_jax.data.language_tags import tags_of
    from transformer_jax.data.splits import resolve
    from transformer_jax.data.tokenizer_training import vocabularies
    from transformer_jax.runs.start import for_its_text

    config, by_pairs = recipe_of(args)
    if in_bucket(args.output):
        raise UserError(f"--output={args.output}: `prepare` needs a folder on a disk")
    if config.data.prepared:
        raise UserError("data.prepared is what `prepare` makes: leave it out")
    # No devices: those of the machine that trains are not known.
    config = for_its_text(config, by_pairs, devices=[])
    data = resolve(config.data)
    vocabularies(config.tokenizer, tags_of(data))  # raises what is wrong with the settings
    folder = Path(os.path.abspath(args.output))
    longest = min(config.batch.max_length, config.model.max_length)
    return Preparation(folder, data, config.tokenizer, args.part_pairs, longest)
