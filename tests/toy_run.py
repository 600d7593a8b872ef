"""A small recipe, and the command that trains by it, as several test files run them."""

from tests import shared_programs

shared_programs.install()

#: With `Greedy` and one bucket, few programs are compiled.
RECIPE = """
from transformer_jax import BatchConfig, Config, DataConfig, DecodeConfig, Greedy
from transformer_jax import ModelConfig, StackConfig, TokenizerConfig, TrainConfig

config = Config(
    data=DataConfig(source_language="en", target_language="de", validation_from_train=20),
    tokenizer=TokenizerConfig(vocab_size=400),
    batch=BatchConfig(tokens=512, max_length=64, num_buckets=1),
    model=ModelConfig(d_model=16, d_ff=32, num_heads=2, encoder=StackConfig(num_layers=1),
                      decoder=StackConfig(num_layers=1), max_length=64),
    train=TrainConfig(steps=8, evaluate_every=4, evaluate_sentences=8, checkpoint_every=4,
                      log_every=2),
    decode=DecodeConfig(method=Greedy(), max_length_factor=0.5, max_length_offset=4),
)
"""


#: For a short training by another recipe.
FEW = [
    "--no_progress",
    "--config.batch.tokens=512",
    "--config.batch.num_buckets=1",
    "--config.model.matmul_dtype=float32",
    "--config.train.evaluate_sentences=2",
]


def text_flags(folder, name="train"):
    """The training text is NAME.en and NAME.de of the folder."""
    sides = (("source", "en"), ("target", "de"))
    return [f"--config.data.source.train_{side}={folder}/{name}.{code}" for side, code in sides]


def train_command(place, run, *more):
    """Trains in `run` by `place`'s recipe on its train.en and train.de, or goes on with it."""
    return [
        "train",
        f"--config={place / 'recipe.py'}",
        f"--workdir={run}",
        "--no_progress",
        *text_flags(place),
        f"--config.data.cache_dir={place / 'cache'}",
        *more,
    ]
