"""The wheel has all that a user needs: recipes by name, in a folder without the repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The unpacked wheel: a folder for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps"]
    subprocess.run([*pip, "--no-index", f"--wheel-dir={folder}", str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_recipes_are_in_the_wheel(site, tmp_path):
    """Also of a command in a folder without them."""
    program = "from transformer_jax.commands.main import main; main(['recipes'])"
    env = os.environ | {"PYTHONPATH": str(site)}
    out = subprocess.check_output([sys.executable, "-c", program], cwd=tmp_path, env=env, text=True)
    for path in ROOT.glob("configs/*.py"):
        assert str(site / "transformer_jax" / "configs" / path.name) in out
    assert not list(site.glob("configs"))


def test_the_files_beside_the_code_are_in_the_wheel(site):
    package = [path for path in (ROOT / "transformer_jax").rglob("*.*") if path.is_file()]
    names = [path.relative_to(ROOT) for path in package if path.suffix not in (".py", ".pyc")]
    assert len(names) > 9
    assert [name for name in names if not (site / name).is_file()] == []
