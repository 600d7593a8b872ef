"""Translates with Bergamot's engine: its WebAssembly, in node.

The engine is never in the repository: `./run oracles` gets it from npm into `build/bergamot`.
"""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import yaml

ENGINE = Path("build/bergamot/node_modules/@browsermt/bergamot-translator/worker").absolute()
_SCRIPT = Path(__file__).with_suffix(".js")


def translate_in_engine(folder: Path, texts: Sequence[str], *, alone: bool = False) -> list[str]:
    """Translations by a folder that was exported for Bergamot, in a process of their own.

    Args:
        folder: the model, and the settings that the engine has for it.
        alone: each text is a batch of its own.

    Raises:
        RuntimeError: the engine fails; the message is the end of what it says.
    """
    settings = yaml.safe_load((folder / "config.intgemm8bitalpha.yml").read_text(encoding="utf-8"))
    paths = {name: settings.pop(name) for name in ("models", "vocabs", "relative-paths")}
    shortlist = settings.pop("shortlist", None)
    settings |= {"cpu-threads": 0, "quiet": True, "quiet-translation": True}
    job = {
        "config": yaml.safe_dump(settings),
        "model": str(folder / paths["models"][0]),
        "vocabs": [str(folder / name) for name in dict.fromkeys(paths["vocabs"])],
        "shortlist": str(folder / shortlist[0]) if shortlist else None,
        "texts": list(texts),
        "alone": alone,
    }
    done = subprocess.run(
        ["node", str(_SCRIPT), str(ENGINE)],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return [str(each) for each in json.loads(done.stdout)]
