"""The tokenizers of both languages, and their files."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from etils import epath

from transformer_jax.data.mapped_tokenizer import MappedTokenizer
from transformer_jax.data.tokenizer import Tokenizer
from transformer_jax.errors import UserError, as_user_error
from transformer_jax.paths import write_whole

T = TypeVar("T")


def read_tokenizer(model: bytes, name: str = "the tokenizer") -> Tokenizer:
    """The tokenizer in a `.model` file's bytes: SentencePiece's own, or one with another map.

    Raises:
        UserError: neither of them.
    """
    return (MappedTokenizer if model.startswith(b"PK") else Tokenizer)(model, name)


def open_tokenizer(path: epath.Path) -> Tokenizer:
    """Reads a `.model` file; UserError when it is missing, unreadable or damaged."""
    with as_user_error(f"cannot read the tokenizer {path}:", OSError):
        model = path.read_bytes()
    return read_tokenizer(model, str(path))


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizers of both languages; one and the same object when joint."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        """Whether both languages share one vocabulary."""
        return self.source is self.target or self.source.model == self.target.model

    def differ_in(self, others: "Tokenizers") -> str | None:
        """The first side, `source` or `target`, whose model is another; None: they are alike."""
        pairs = {"source": (self.source, others.source), "target": (self.target, others.target)}
        return next((side for side, (a, b) in pairs.items() if a.model != b.model), None)

    def files(self) -> dict[str, bytes]:
        """Content by file name: joint.model, or source.model and target.model."""
        return self.by_file(lambda tokenizer: tokenizer.model)

    def by_file(self, content: Callable[[Tokenizer], T]) -> dict[str, T]:
        """By the same names, something else of each tokenizer."""
        if self.joint:
            return {"joint.model": content(self.source)}
        return {"source.model": content(self.source), "target.model": content(self.target)}

    def save(self, folder: epath.Path) -> None:
        """Writes `files`, each atomically, and removes those of another start that failed."""
        files, advice = self.files(), "; free some space or choose another folder"
        with as_user_error(f"cannot write the tokenizer to {folder}:", OSError, then=advice):
            folder.mkdir(parents=True, exist_ok=True)
            for name, model in files.items():
                write_whole(folder / name, model)
            for name in {"joint.model", "source.model", "target.model"} - files.keys():
                (folder / name).unlink(missing_ok=True)


def model_files(folder: epath.Path) -> tuple[epath.Path, epath.Path]:
    """The files that `Tokenizers.save` wrote, of source and target: one and the same if joint."""
    joint, source, target = (folder / f"{name}.model" for name in ("joint", "source", "target"))
    return (joint, joint) if joint.exists() else (source, target)


def load_tokenizers(folder: epath.Path) -> Tokenizers:
    """Loads what `Tokenizers.save` wrote; UserError when missing or damaged."""
    source, target = model_files(folder)
    if not (source.exists() and target.exists()):
        raise UserError(
            f"no tokenizer in {folder}: expected joint.model, or source.model and target.model"
        )
    first = open_tokenizer(source)
    return Tokenizers(first, first if source == target else open_tokenizer(target))
