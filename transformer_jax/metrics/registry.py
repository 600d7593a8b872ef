"""Learned metrics by name, as in `eval --metric=metricx --metric_model=FOLDER`."""

from transformer_jax.metrics.base import Metric
from transformer_jax.metrics.metricx import MetricX, MetricX23, MetricX23QE, MetricXQE

METRICS: dict[str, type[Metric]] = {
    "metricx": MetricX,
    "metricx_qe": MetricXQE,
    "metricx23": MetricX23,
    "metricx23_qe": MetricX23QE,
}
