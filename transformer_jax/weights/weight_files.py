"""Files of weights. Nothing in a file is executed.

Read are safetensors, PyTorch's `.bin` (`torch_files.py`), both also in several files with an
index, and Flax's msgpack. Flax's names and axes become PyTorch's, so that one table of names
serves a family in all of them.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from transformer_jax.errors import UserError, as_user_error
from transformer_jax.weights.settings import read_json
from transformer_jax.weights.torch_files import read_torch
from transformer_jax.weights.weights import Stored, Weights


def read_weights(folder: Path) -> Weights:
    """The weights of a model folder, in whichever of the known files they are.

    Raises:
        UserError: there are none, or a file is damaged or holds something else than tensors.
    """
    for name, read in _READERS.items():
        if (folder / name).is_file():
            return Weights(str(folder / name), read(folder / name))
        index = folder / f"{name}.index.json"
        if index.is_file():
            return Weights(str(index), _read_parts(index, read))
    raise UserError(f"{folder}: no weights here; expected one of {', '.join(_READERS)}")


def _read_parts(index: Path, read: Callable[[Path], Mapping[str, Stored]]) -> dict[str, Stored]:
    """The tensors of several files that an index lists by name."""
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise UserError(f"{index}: has no weight_map of tensors and their files")
    tensors: dict[str, Stored] = {}
    for file in sorted(set(names.values())):
        if Path(file).name != file or not (index.parent / file).is_file():
            raise UserError(f"{index}: names {file}, which is not a file in this folder")
        for name, stored in read(index.parent / file).items():
            if names.get(name) != file:
                raise UserError(f"{index}: does not list {name} of {file}")
            tensors[name] = stored
    if missing := sorted(names.keys() - tensors.keys()):
        raise UserError(f"{index}: {names[missing[0]]} does not hold {missing[0]}")
    return tensors


def _read_safetensors(path: Path) -> dict[str, Stored]:
    import ml_dtypes  # noqa: F401  (gives numpy the name of bfloat16)
    from safetensors import SafetensorError, safe_open

    def read(name: str) -> np.ndarray:
        kinds = SafetensorError, OSError, KeyError, TypeError, AttributeError
        with as_user_error(f"{path}: cannot read {name}", *kinds), safe_open(path, "np") as file:
            return file.get_tensor(name)

    damaged = as_user_error(f"{path}: not a safetensors file", SafetensorError, OSError)
    with damaged, safe_open(path, "np") as file:
        return {
            name: Stored(tuple(file.get_slice(name).get_shape()), partial(read, name))
            for name in file.keys()  # noqa: SIM118  (not a mapping)
        }


def _read_flax(path: Path) -> dict[str, Stored]:
    from flax.serialization import msgpack_restore
    from flax.traverse_util import flatten_dict

    # Msgpack and NumPy each have their own errors.
    with as_user_error(f"{path}: not Flax's msgpack", Exception):
        leaves = flatten_dict(msgpack_restore(path.read_bytes()))
    arrays = {}
    for names, leaf in leaves.items():
        *place, last = map(str, names)
        if not isinstance(leaf, np.ndarray):
            raise UserError(f"{path}: {'/'.join([*place, last])} is not a tensor")
        name = "weight" if last in ("kernel", "scale", "embedding") else last
        arrays[".".join([*place, name])] = leaf.T if last == "kernel" else leaf
    return {name: Stored(x.shape, partial(np.asarray, x)) for name, x in arrays.items()}


#: File name -> its reader. A folder often holds the same weights in several; the first is read.
_READERS: dict[str, Callable[[Path], Mapping[str, Stored]]] = {
    "model.safetensors": _read_safetensors,
    "pytorch_model.bin": read_torch,
    "flax_model.msgpack": _read_flax,
}
