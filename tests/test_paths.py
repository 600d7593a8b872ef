"""Folders that appear when they are complete."""

import errno
import pickle

import pytest

from transformer_jax.paths import new_folder


def test_a_full_disk_names_the_folder_also_from_another_process(tmp_path):
    with pytest.raises(OSError, match="No space") as found, new_folder(tmp_path / "part"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert pickle.loads(pickle.dumps(found.value)).filename == str(tmp_path / "part")
    assert list(tmp_path.iterdir()) == []
