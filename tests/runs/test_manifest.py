"""The manifest of a checkpoint waits for what Orbax writes in a thread of its own."""

import json
import threading
import time

from transformer_jax.paths import as_path
from transformer_jax.runs.damage import find_damage, write_manifest


def test_handlers_that_are_written_late(tmp_path):
    (tmp_path / "params").write_bytes(b"numbers")
    metadata = tmp_path / "_CHECKPOINT_METADATA"
    metadata.write_text(json.dumps({"item_handlers": None}))

    def write_late() -> None:
        time.sleep(0.3)
        metadata.write_text('{"item_hand')
        time.sleep(0.2)
        metadata.write_text(json.dumps({"item_handlers": {"params": "handler"}}))

    thread = threading.Thread(target=write_late)
    thread.start()
    write_manifest(as_path(tmp_path))
    thread.join()
    assert find_damage(as_path(tmp_path)) is None
