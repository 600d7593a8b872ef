"""Logical names of activations, on a mesh of one device and on a described one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from tests.models.test_ranks import CONFIGS
from transformer_jax.models import api
from transformer_jax.ops import sharding
from transformer_jax.parallel.mesh import (
    LOGICAL_TO_MESH,
    MeshConfig,
    activations_on,
    kept_sharding,
    make_mesh,
    nearest,
    param_shardings,
)

MESH = AbstractMesh((2, 4, 2), ("data", "fsdp", "tensor"))


@pytest.mark.parametrize(
    ("names", "shape", "expected"),
    [
        (("batch", None), (16, 5), PartitionSpec(("data", "fsdp"), None)),
        (("embed", "mlp"), (8, 6), PartitionSpec("fsdp", "tensor")),
        (("embed", "mlp"), (6, 3), PartitionSpec(None, None)),  # 4 does not divide 6, nor 2 3
        (("batch",), (12,), PartitionSpec(None)),  # 8 does not divide 12
        ((), (), PartitionSpec()),
    ],
)
def test_specs(names, shape, expected):
    assert sharding.spec(MESH, LOGICAL_TO_MESH, names, shape) == expected


@pytest.mark.parametrize(
    ("axes", "shape", "expected"),
    [
        ((8, 1, 1), (16, 5), PartitionSpec("data")),
        ((8, 1, 1), (5, 16), PartitionSpec(None, "data")),
        ((8, 1, 1), (5, 3), PartitionSpec()),
        ((8, 1, 1), (16,), PartitionSpec()),
        ((1, 1, 1), (16, 5), PartitionSpec()),
        ((4, 2, 1), (16, 5), PartitionSpec()),
    ],
)
def test_devices_that_share_only_the_batch_each_keep_a_part_of_a_matrix(axes, shape, expected):
    mesh = AbstractMesh(axes, ("data", "fsdp", "tensor"))
    whole = NamedSharding(mesh, PartitionSpec())
    parameter = jax.ShapeDtypeStruct(shape, np.float32, sharding=whole)
    assert kept_sharding(parameter).spec == expected


def test_an_unknown_name_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match="'headz'.*heads"):
        sharding.spec(MESH, LOGICAL_TO_MESH, ("headz",), (4,))
    with pytest.raises(ValueError, match="'headz'"), activations_on(make_mesh(MeshConfig())):
        sharding.constrain(jnp.ones(4), "headz")


@pytest.mark.parametrize(
    ("asked", "num_devices", "expected"),
    [
        (MeshConfig(data=1, fsdp=8), 4, MeshConfig(data=-1, fsdp=4)),
        (MeshConfig(data=2, fsdp=4, tensor=2), 4, MeshConfig(data=-1, fsdp=2, tensor=2)),
        (MeshConfig(data=8), 4, MeshConfig()),
        (MeshConfig(data=3, fsdp=-1), 4, MeshConfig(data=-1, fsdp=4)),
        (MeshConfig(data=1, fsdp=6), 4, MeshConfig(data=-1, fsdp=2)),
    ],
)
def test_fewer_devices_divide_parameters_as_far_as_they_can(asked, num_devices, expected):
    assert nearest(asked, num_devices) == expected


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        (PartitionSpec("embed"), r"parameter a/kernel of shape \(4, 4\).*each axis"),
        (PartitionSpec("embed", "wings"), "parameter a/kernel: unknown logical axis 'wings'"),
    ],
)
def test_a_parameter_without_known_names_is_an_error_that_names_it(axes, words):
    shapes = {"a": {"kernel": jax.ShapeDtypeStruct((4, 4), jnp.float32)}}
    with pytest.raises(ValueError, match=words):
        param_shardings({"a": {"kernel": axes}}, shapes, make_mesh(MeshConfig()))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_every_parameter_of_every_part_has_known_axes(config):
    arguments = api.logical_axes(config), api.abstract_params(config)
    assert jax.tree.leaves(param_shardings(*arguments, make_mesh(MeshConfig())))
