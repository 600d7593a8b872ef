"""Moves files and folders of the package and its tests, and follows them in all text of git.

    python -m tests.move

What is moved already is only followed, so it can be run again after a merge. It moves and renames;
it changes nothing else. Imports are sorted by `ruff check --fix` afterwards.
"""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: Of the package, by folder or file without its ending: old -> new. The first that fits counts.
MOVES = {
    "config_keys": "settings/keys",
    "config_types": "settings/types",
    "unsupported": "settings/unsupported",
    "variants": "settings/variants",
    "sentencepiece_model": "weights/sentencepiece_model",
    "cli/check": "commands/check/__init__",
    "cli/compare": "commands/compare/__init__",
    "cli/contrast": "commands/contrast/__init__",
    "cli/distil": "commands/distil/__init__",
    "cli/prepare": "commands/prepare/__init__",
    "cli/serve": "commands/serve/__init__",
    "cli": "commands",
    "checks": "commands/check",
    "comparison": "commands/compare",
    "distillation": "commands/distil",
    "serving": "commands/serve",
    "data/contrastive_sets": "commands/contrast/sets",
    "data/beam": "commands/prepare/beam",
    "published": "weights",
    "interop/exporters/base": "formats/exporter",
    "interop/exporters/registry": "formats/exporters",
    "interop/exporters/folding": "formats/folding",
    "interop/exporters/safetensors": "formats/safetensors",
    "interop/exporters/ctranslate2": "formats/ctranslate2",
    "interop/exporters/bergamot": "formats/marian/bergamot",
    "interop/exporters/web": "formats/marian/web",
    "interop/exporters/huggingface": "formats/transformers/writer",
    "interop/families/base": "formats/family",
    "interop/families/registry": "formats/families",
    "interop/families/marian_own": "formats/marian/reader",
    "interop/families": "formats/transformers",
    "interop/marian_bin": "formats/marian/items",
    "interop/marian_files": "formats/marian/files",
    "interop/shortlist": "formats/marian/shortlist",
    "interop/web": "formats/marian/page",
    "interop": "formats",
}
#: What the names alone would make wrong.
PHRASES = {
    "formats.exporters import safetensors": "formats import safetensors",
    'transformer_jax.formats") / "web"': 'transformer_jax.formats.marian") / "page"',
}
#: Empty files that a folder of the package does not need any more.
GONE = ("checks", "comparison", "distillation", "serving", "interop/exporters")
NEW = ("settings", "formats/marian")
#: Folders of tests, likewise.
TESTS = {
    "tests/cli/test_serve.py": "tests/commands/serve/test_serve.py",
    "tests/cli": "tests/commands",
    "tests/checks": "tests/commands/check",
    "tests/comparison": "tests/commands/compare",
    "tests/distillation": "tests/commands/distil",
    "tests/serving": "tests/commands/serve",
    "tests/data/test_contrastive_sets.py": "tests/commands/contrast/test_contrastive_sets.py",
    "tests/interop": "tests/formats",
}


def git(*words: str) -> list[str]:
    """The lines that git prints."""
    done = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def moved(path: str) -> str:
    """Where a path of the repository is afterwards."""
    for old, new in TESTS.items():
        if path == old or path.startswith(f"{old}/"):
            return new + path[len(old) :]
    for old, new in MOVES.items():
        stem = f"transformer_jax/{old}"
        if path == f"{stem}.py":
            return f"transformer_jax/{new}.py"
        if path.startswith(f"{stem}/"):
            return f"transformer_jax/{new}{path[len(stem) :]}"
    return path


def dotted(path: str) -> str:
    return path.removesuffix("/__init__").replace("/", ".")


def followed(text: str) -> str:
    """A text whose paths and modules are those of afterwards."""
    for package, moves in (("transformer_jax/", MOVES), ("", TESTS)):
        for old, new in moves.items():
            before, after = package + old, package + new
            end = r"(?![\w-])" if not before.endswith(".py") else ""
            # `cli/check.py` is a file, `cli/` a folder.
            text = re.sub(rf"\b{re.escape(before)}{end}(?=\.py|/)", after, text)
            module, to = before.removesuffix(".py"), after.removesuffix(".py")
            text = re.sub(rf"\b{re.escape(dotted(module))}\b(?!/)", dotted(to), text)
    for wrong, right in PHRASES.items():
        text = text.replace(wrong, right)
    return text


def main() -> None:
    """Moves, then follows."""
    files = git("ls-files")
    for old in GONE:
        path = f"transformer_jax/{old}/__init__.py"
        if path in files:
            git("rm", "-q", path)
            files.remove(path)
    for path in files:
        if (new := moved(path)) != path and (ROOT / path).exists():
            (ROOT / new).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / new).exists():
                if (ROOT / path).stat().st_size == 0:
                    git("rm", "-q", path)
                    continue
                raise SystemExit(f"{path}: {new} is there already")
            git("mv", path, new)
    for folder in NEW:
        path = ROOT / "transformer_jax" / folder / "__init__.py"
        path.touch()
        git("add", str(path))
    for path in git("ls-files"):
        file = ROOT / path
        if path == "tests/move.py" or path == "CHANGELOG.md" or file.suffix in (".jsonl", ".png"):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if (new := followed(text)) != text:
            file.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
