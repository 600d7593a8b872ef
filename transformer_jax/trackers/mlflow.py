"""MLflow. It reads MLFLOW_TRACKING_URI and the other variables of its clients."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformer_jax.trackers.base import About, Tracked, Tracker

#: The tag by which a continued run is found again.
_ID = "transformer_jax.id"


@dataclass(frozen=True)
class MLflow(Tracker):
    """A server of MLflow; it needs `pip install mlflow`."""

    experiment: str = "transformer_jax"  #: which shows its runs together; made if it is new
    uri: str | None = None  #: of the server; none = MLFLOW_TRACKING_URI
    name: str | None = None  #: of the run; none = that of its folder

    def open(self, about: About) -> Tracked:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        client = MlflowClient(tracking_uri=self.uri)
        known = client.get_experiment_by_name(self.experiment)
        place = known.experiment_id if known else client.create_experiment(self.experiment)
        if found := client.search_runs([place], filter_string=f"tags.`{_ID}` = '{about.id}'"):
            run = found[0].info.run_id
            client.update_run(run, status="RUNNING")
        else:
            tags = {_ID: about.id}
            run = client.create_run(place, run_name=self.name or about.name, tags=tags).info.run_id
            params = [Param(key, str(value)[:500]) for key, value in about.config.items()]
            for first in range(0, len(params), 100):  # as many as a request may have
                client.log_batch(run, params=params[first : first + 100])
        return _Run(client, run)


class _Run(Tracked):
    def __init__(self, client: Any, run: str) -> None:
        self._client, self._run = client, run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_allowed(name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


def _allowed(name: str) -> str:
    """The name without the characters that MLflow refuses, such as those of `<bt>`."""
    return "".join(c if c.isalnum() or c in "_-. /:" else "_" for c in name)
