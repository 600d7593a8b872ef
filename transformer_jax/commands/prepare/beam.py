"""The shards of a text to prepare, made by Apache Beam on the runner that its flags name."""

import shlex
from functools import partial

from transformer_jax.commands.prepare.shards import Preparation, make_shard
from transformer_jax.errors import optional


def make_shards(preparation: Preparation, shards: int, flags: str) -> None:
    """Makes all shards; the workers must share the folder and see the text.

    Args:
        preparation: what and where; its tokenizers have been learned.
        shards: how many, each one element of the pipeline.
        flags: Beam's own, as in a shell: `--runner=DirectRunner --direct_num_workers=2`.

    Raises:
        UserError: Beam is missing.
    """
    beam = optional("apache_beam", "--beam", "beam")
    from apache_beam.options.pipeline_options import PipelineOptions

    with beam.Pipeline(options=PipelineOptions(shlex.split(flags))) as pipeline:
        numbers = pipeline | beam.Create(range(shards)) | beam.Reshuffle()
        numbers | beam.Map(partial(make_shard, preparation, shards=shards))
