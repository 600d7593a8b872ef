"""Run by test_check.py with several devices: a mixer on the second, beside the first.

Prints one JSON object: the rows, and how many programs were compiled.
"""

import json

import jax

from tests.programs import EVENT
from transformer_jax.checks import numbers
from transformer_jax.checks.jobs import at_once


def main() -> None:
    """Counts from here on, since the first use of JAX may compile."""
    events = []

    def listen(event, seconds, **_):
        if event == EVENT:
            events.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    cpu, here = jax.devices()[:2]
    (job,) = (job for job in numbers.jobs(here, cpu) if job.name == "full")
    rows = {row.name: row.is_ok for row in at_once(job)}
    print(json.dumps({"rows": rows, "programs": len(events)}))


if __name__ == "__main__":
    main()
