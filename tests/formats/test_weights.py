"""Readers of weights: what other libraries write is read, and damaged or hostile files are not."""

import json
import pickle
import shutil
import zipfile
from collections import OrderedDict
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from flax.serialization import msgpack_serialize
from hypothesis import given, strategies as st
from safetensors.numpy import save as safetensors_save, save_file

from tests.malformed.harness import few
from tests.oracles import need
from transformer_jax.errors import UserError
from transformer_jax.weights.torch_files import read_torch
from transformer_jax.weights.weight_files import read_weights
from transformer_jax.weights.weights import Stored, Weights

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.linspace(-1, 1, 4).astype(np.float32)


def same(folder):
    weights = read_weights(folder)
    values = weights.take("a.weight", (2, 3)), weights.take("b.bias")
    weights.check_all_taken()
    for got, want in zip(values, (A, B), strict=True):
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_safetensors_become_float32(tmp_path, dtype):
    save_file({"a.weight": A.astype(dtype), "b.bias": B}, tmp_path / "model.safetensors")
    same(tmp_path)


def test_flax_names_and_axes_become_those_of_pytorch(tmp_path):
    tree = {"a": {"kernel": A.T}, "b": {"bias": B}, "n": {"scale": B}, "e": {"embedding": A}}
    (tmp_path / "flax_model.msgpack").write_bytes(msgpack_serialize(tree))
    weights = read_weights(tmp_path)
    np.testing.assert_array_equal(weights.take("a.weight"), A)
    np.testing.assert_array_equal(weights.take("n.weight"), B)
    np.testing.assert_array_equal(weights.take("e.weight"), A)
    np.testing.assert_array_equal(weights.take("b.bias"), B)


def test_several_files_with_an_index(tmp_path):
    save_file({"a.weight": A}, tmp_path / "one.safetensors")
    save_file({"b.bias": B}, tmp_path / "two.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    names = {"a.weight": "one.safetensors", "b.bias": "two.safetensors"}
    index.write_text(json.dumps({"weight_map": names}))
    same(tmp_path)
    for wrong, message in (
        ({"a.weight": "one.safetensors"} | {"b.bias": "../two.safetensors"}, "not a file in this"),
        ({"a.weight": "one.safetensors", "b.bias": "one.safetensors"}, "does not hold b.bias"),
        ({"b.bias": "two.safetensors", "c": "one.safetensors"}, "does not list a.weight"),
        ([], "no weight_map"),
    ):
        index.write_text(json.dumps({"weight_map": wrong}))
        with pytest.raises(UserError, match=message):
            read_weights(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(UserError, match="no weights here; expected one of model.safetensors"):
        read_weights(tmp_path)


def test_weights_are_taken_by_name_and_none_is_left():
    tensors = {"a": Stored((2, 3), lambda: A), "b": Stored((4,), lambda: B)}
    weights = Weights("x.bin", tensors)
    with pytest.raises(UserError, match="x.bin: the tensor c is missing"):
        weights.take("c")
    with pytest.raises(UserError, match=r"a has the shape \[2, 3\], but \[3, 2\] follows"):
        weights.take("a", (3, 2))
    weights.take("a", (2, 3))
    with pytest.raises(UserError, match="nothing in this architecture reads the tensors b"):
        weights.check_all_taken()
    weights.check_all_taken(ignored=["b"])


@pytest.fixture
def torch():
    return need("torch")


@pytest.fixture
def saved(torch, tmp_path):
    """saved(value) -> the folder with what `torch.save` writes."""

    def save(value, **options):
        torch.save(value, tmp_path / "pytorch_model.bin", **options)
        return tmp_path

    return save


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_torch_dtypes(torch, saved, dtype):
    wanted = torch.tensor(A).to(getattr(torch, dtype))
    weights = read_weights(saved(OrderedDict({"a": wanted})))
    np.testing.assert_array_equal(weights.take("a"), wanted.double().numpy())


def test_torch_views_and_shared_storages(torch, saved):
    whole = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    views = {"t": whole.T, "part": whole[1:3, 2:5], "all": whole, "none": whole[:0]}
    weights = read_weights(saved(views))
    for name, want in views.items():
        np.testing.assert_array_equal(weights.take(name), want.numpy())


def test_torch_files_of_another_form_are_refused(torch, saved):
    tensor = torch.tensor(A)
    with pytest.raises(UserError, match="written by PyTorch before 1.6"):
        read_weights(saved({"a": tensor}, _use_new_zipfile_serialization=False))
    for value in ([tensor], {"a": 3}, {"a": {"b": tensor}}, {3: B}):
        with pytest.raises(UserError, match="nothing was executed|damaged"):
            read_weights(saved(value))


def torch_file(path, content, records=()):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        for name, record in dict(records).items():
            archive.writestr(f"archive/{name}", record)
    return path


ran = []


class Evil:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


EVIL = [
    Evil(ran.append, 1),
    {"a": Evil(exec, "import os")},
    Evil(Path, "x"),
    {"a": np.float32},
    Evil(getattr, "a", "upper"),
]

#: Opcodes that call what torch's files need in ways torch does not.
STORAGE = (
    b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x06tQ"
)


def crafted(offset, shape, strides):
    """A file of one tensor `a` of any shape over six numbers."""

    def number(n):
        return b"J" + int(n).to_bytes(4, "little", signed=True)

    def tuple_of(numbers):
        return b"(" + b"".join(map(number, numbers)) + b"t"

    return (
        b"\x80\x02}X\x01\x00\x00\x00actorch._utils\n_rebuild_tensor_v2\n("
        + STORAGE
        + number(offset)
        + tuple_of(shape)
        + tuple_of(strides)
        + b"\x89ccollections\nOrderedDict\n)RtRs."
    )


SOUND, NUMBERS = crafted(0, (2, 3), (3, 1)), {"data/0": A.tobytes()}
#: A storage, an offset, a shape and strides, as a plain tuple that no check has seen.
TUPLE = b"\x80\x02}X\x01\x00\x00\x00a(" + STORAGE + b"K\x00(J\xff\xff\x00\x00t(K\x01tts."


def test_a_crafted_file_is_read_if_it_is_sound(tmp_path):
    path = torch_file(tmp_path / "x.bin", SOUND, NUMBERS)
    np.testing.assert_array_equal(read_torch(path)["a"].read(), A)


@pytest.mark.parametrize(
    ("content", "records", "message"),
    [
        (crafted(1, (2, 3), (3, 1)), NUMBERS, "larger than its storage"),
        (crafted(0, (1000000, 1000), (0, 0)), NUMBERS, "larger than its storage"),
        (crafted(-1, (2, 3), (3, 1)), NUMBERS, "not of whole numbers"),
        (crafted(0, (2, 3), (-3, 1)), NUMBERS, "not of whole numbers"),
        (crafted(0, (6,), (1, 1)), NUMBERS, "without a storage"),
        (crafted(0, (1,) * 9, (1,) * 9), NUMBERS, "without a storage"),
        (TUPLE, NUMBERS, "'a' is not a tensor"),
        (SOUND, {}, "numbers of a are missing or cut off"),
        (SOUND, {"data/0": A.tobytes()[:-1]}, "numbers of a are missing or cut off"),
        (SOUND, NUMBERS | {"byteorder": b"big"}, "big-endian"),
        *((pickle.dumps(each, 2), {}, "names .*nothing was executed") for each in EVIL),
    ],
)
def test_crafted_files_are_refused(tmp_path, content, records, message):
    path = torch_file(tmp_path / "x.bin", content, records)
    with pytest.raises(UserError, match=message):
        read_torch(path)
    assert not ran


def test_a_file_cannot_change_how_the_next_is_read(tmp_path):
    # BUILD with a slot state sets attributes of what was found.
    for found in (b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nFloatStorage\n"):
        content = b"\x80\x02" + found + b"N}X\x01\x00\x00\x00xK\x01s\x86b."
        with pytest.raises(UserError):
            read_torch(torch_file(tmp_path / "x.bin", content))
    test_a_crafted_file_is_read_if_it_is_sound(tmp_path)


@few
@given(data=st.data())
def test_cut_and_changed_files_end_in_one_line(tmp_path, data):
    crafted_file = torch_file(tmp_path / "x", SOUND, NUMBERS)
    whole = {
        "model.safetensors": safetensors_save({"a.weight": A, "b.bias": B}),
        "pytorch_model.bin": crafted_file.read_bytes(),
        "flax_model.msgpack": msgpack_serialize({"a": {"kernel": A}}),
    }
    name = data.draw(st.sampled_from(sorted(whole)))
    content = bytearray(whole[name])
    place = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content = content[:place]
    else:
        content[place] ^= data.draw(st.integers(1, 255))
    folder = tmp_path / "one"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / name).write_bytes(bytes(content))
    try:
        weights = read_weights(folder)
        for tensor in ("a.weight", "b.bias"):
            weights.take(tensor)
    except UserError as error:
        assert str(folder) in str(error)


def test_compressed_zips_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", SOUND)
    with pytest.raises(UserError, match="compressed parts"):
        read_torch(tmp_path / "x.bin")
