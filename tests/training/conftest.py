import sys
from pathlib import Path

import pytest

# `toy` is shared by the test files of this folder; tests are no package.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def object_server():
    import bucket

    return bucket.start_server()  # one a process: TensorStore asks for its address once


@pytest.fixture
def store(object_server, monkeypatch):
    """An empty store of objects, for the time of a test all that `gs://` can reach."""
    import bucket

    store = bucket.Store()
    object_server.RequestHandlerClass.store = store
    bucket.mount(store, monkeypatch)
    return store
