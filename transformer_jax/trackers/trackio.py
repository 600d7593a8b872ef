"""Trackio: a local dashboard (`trackio show`), or one in a Space of Hugging Face."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformer_jax.trackers.base import About, Tracked, Tracker


@dataclass(frozen=True)
class Trackio(Tracker):
    """A dashboard of Trackio; it needs `pip install trackio`."""

    project: str = "transformer_jax"  #: which shows its runs together
    space: str | None = None  #: owner/name of a Space; none = files on this machine
    name: str | None = None  #: of the run; none = that of its folder, and a part of its id

    def open(self, about: About) -> Tracked:
        import trackio

        return _Run(
            trackio.init(
                project=self.project,
                name=self.name or f"{about.name}-{about.id[:8]}",  # it is continued by its name
                space_id=self.space,
                config=dict(about.config),
                resume="allow",
                embed=False,
            )
        )


class _Run(Tracked):
    def __init__(self, run: Any) -> None:
        self._run = run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()
