"""Weights & Biases. It reads `wandb login` or WANDB_API_KEY, and WANDB_MODE=offline for a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformer_jax.trackers.base import About, Tracked, Tracker


@dataclass(frozen=True)
class Wandb(Tracker):
    """Weights & Biases; it needs `pip install wandb`."""

    project: str = "transformer_jax"  #: which shows its runs together
    entity: str | None = None  #: user or team; none = the default of the account
    name: str | None = None  #: of the run; none = that of its folder

    def open(self, about: About) -> Tracked:
        import wandb

        run = wandb.init(
            project=self.project,
            entity=self.entity,
            name=self.name or about.name,
            id=about.id,
            resume="allow",
            config=dict(about.config),
            dir=about.folder,
            settings=wandb.Settings(console="off"),  # else it takes what the terminal shows
        )
        # A step of its own: wandb's may not go back, as that of a continued run does.
        run.define_metric("*", step_metric="step")
        return _Run(run)


class _Run(Tracked):
    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self) -> None:
        self._run.finish()
