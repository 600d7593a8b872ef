"""Run by test_check.py with several devices: a mixer on the second, beside the first.

Prints one JSON object: the rows, how many programs were compiled, and for which device each.
"""

import json

import jax

from tests.programs import Programs
from transformer_jax.commands.check import numbers

cpu, here = jax.devices()[:2]  # the first use of JAX may compile
counter = Programs()
counter.pytest_collection_finish(None)
(job,) = (job for job in numbers.jobs(here, cpu) if job.name == "full")
compiled = {name: lower().compile() for name, lower in job.programs.items()}
devices = {}
for name, program in compiled.items():
    (device,) = jax.tree.leaves(program.input_shardings)[0].device_set
    devices[name] = device.id
rows = {row.name: row.is_ok for row in job.rows(compiled)}
print(json.dumps({"rows": rows, "programs": counter.of_process, "devices": devices}))
