"""The trackers by name, as in `--config.train.trackers='wandb(project=mine)'`."""

from transformer_jax.settings.variants import Family
from transformer_jax.trackers.base import Tracker
from transformer_jax.trackers.mlflow import MLflow
from transformer_jax.trackers.wandb import Wandb

TRACKERS: Family[Tracker] = Family(
    Tracker,
    wandb=Wandb,
    mlflow=MLflow,
)
