"""A folder of MetricX's form, made once."""

from pathlib import Path

import pytest

from tests.metrics.folders import metricx_folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return metricx_folder(tmp_path_factory.mktemp("metricx"))
