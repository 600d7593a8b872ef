"""Virtual devices work at the same time, however many programs wait for them."""

from tests.devices import with_eight_devices

# Each sum over devices is a program, and none is waited for before the next one is started.
SUMS = """
import json
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

mesh = Mesh(np.array(jax.devices()), ("data",))
rows = NamedSharding(mesh, PartitionSpec("data"))
arrays = [jax.device_put(jnp.ones((16, 16)), rows) for _ in range(40)]
print(json.dumps([float(sum(jnp.abs(x).sum() for x in arrays)) for _ in range(20)]))
"""


def test_programs_that_wait_for_all_devices_do_not_keep_each_other_from_starting():
    assert with_eight_devices("-c", SUMS) == [16.0 * 16 * 40] * 20
