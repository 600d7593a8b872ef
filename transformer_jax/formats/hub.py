"""Models on Hugging Face's hub: fetched into its cache by name, and pushed.

Fetched are weights in one of the formats that are read here, safetensors first, and the files
beside them that are read: settings and vocabularies. Nothing of them is executed.
"""

import os
import re
from pathlib import Path

from transformer_jax.errors import UserError, as_user_error, first_line, optional

#: The package, as `optional` asks for it.
_HUB = ("huggingface_hub", "a name on Hugging Face's hub", "huggingface")
#: Formats of weights, the first one that a model has is fetched. The last two are Marian's own.
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", "flax_model*.msgpack", "*.npz", "*.bin")
_SETTINGS = ("config", "generation_config", "tokenizer", "tokenizer_config", "special_tokens_map")
_BESIDE = [
    *(f"{name}.json" for name in (*_SETTINGS, "vocab", "target_vocab", "*.index")),
    *("*.spm", "*.model", "*.yml", "*.vocab", "*vocab*.txt", "model_info.json", "tokenizer/*"),
]


def is_name(text: str) -> bool:
    """Whether it has the form of a name on the hub: `Helsinki-NLP/opus-mt-en-de`."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", text) is not None


def fetch(name: str, revision: str | None = None) -> Path:
    """The folder with the files of a model. What was fetched before is not fetched again.

    Args:
        name: owner and name.
        revision: a branch, tag, commit or `refs/pr/N`; None: the newest.

    Raises:
        UserError: the hub has no such model or revision, is not reached and the cache lacks the
            model, asks for a token, or there are no weights that can be read; or the package
            `huggingface_hub` is missing.
    """
    hub = optional(*_HUB)
    version = revision
    for pattern in _WEIGHTS:
        try:
            place = hub.snapshot_download(
                name, revision=version, allow_patterns=[*_BESIDE, pattern]
            )
        except Exception as error:  # network, disk, the hub's answers: no common type
            raise _failed(name, revision, error) from error
        folder = Path(place)
        if any(folder.glob(pattern)):
            return folder
        version = folder.name  # the commit: a branch may move meanwhile
    known = ", ".join(_WEIGHTS)
    raise UserError(f"{name}: no weights there that can be read; expected one of {known}")


def check_push(name: str) -> None:
    """Checks, before there is something to upload, what can be checked then.

    Raises:
        UserError: the name has another form, or the package `huggingface_hub` is missing.
    """
    if not is_name(name):
        raise UserError(f"push={name}: expected owner/name, as on Hugging Face's hub")
    optional(*_HUB)


def push(folder: str | os.PathLike[str], name: str) -> str:
    """Uploads the files of a folder as one commit; returns its address.

    A repository that does not exist is made, and is private.

    Raises:
        UserError: there is no right to write there, or the upload failed.
    """
    hub = optional(*_HUB)
    advice = ". A token with the right to write comes from `hf auth login`; then `hf upload "
    advice += f"{name} {folder}` uploads the folder"
    # Network, disk and the hub's answers have no common type of errors.
    with as_user_error(f"push={name}: could not be uploaded", Exception, then=advice):
        hub.create_repo(name, private=True, exist_ok=True)
        message = "Upload a model of transformer_jax"
        return str(hub.upload_folder(repo_id=name, folder_path=folder, commit_message=message))


def _failed(name: str, revision: str | None, error: Exception) -> UserError:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return UserError(
            f"{name}: its owner asks for consent: give it on the model's page, then `hf auth login`"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return UserError(
            f"{name}: no such folder, and no such model on the hub; or it is private: `hf auth "
            "login` names you"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return UserError(f"{name}: the hub has no revision {revision} of it")
    kind = type(error).__name__
    return UserError(f"{name}: could not be fetched from the hub ({kind}: {first_line(error)})")
