"""What a tracker does: it shows the numbers of runs somewhere; one file and one registry line."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class About:
    """The run whose numbers are shown."""

    id: str  #: 32 hexadecimal digits; the same each time the run is continued
    name: str  #: of its folder
    folder: str | None  #: the folder, if it is on a disk
    config: Mapping[str, Any]  #: dotted key -> value; empty where the folder has no config.json


class Tracked(ABC):
    """A run at a tracker. Whatever it raises ends the tracking and not the run."""

    @abstractmethod
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the numbers of a step; a step may come again after a run was continued."""

    @abstractmethod
    def close(self) -> None:
        """Returns when everything has arrived."""


class Tracker(ABC):
    """Where to show the numbers: a frozen dataclass of options.

    Its library is imported by `open`, so that it need not be there for a run that is not tracked.
    """

    @abstractmethod
    def open(self, about: About) -> Tracked:
        """Begins to show a run, or goes on with it."""
