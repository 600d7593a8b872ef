"""Names of other libraries that these do not promise, each with the version it was tested with."""

import contextlib
from collections.abc import Iterator
from typing import Any


def jax_distributed_state() -> Any:
    """JAX's client of the coordinator and its preemption service, which have no public name.

    Orbax's barriers use the same client. Tested with JAX 0.10.2.
    """
    from jax._src import distributed

    return distributed.global_state


@contextlib.contextmanager
def only_code_of_tfds(tfds: Any) -> Iterator[None]:
    """Prevents TFDS from importing classes that a data folder's features.json names.

    The file may name a class of any module, which TFDS would import to read the set. Tested with
    tensorflow-datasets 4.9.10.
    """
    connector = tfds.features.FeatureConnector
    original = connector.__dict__["cls_from_name"]

    def checked(cls: Any, name: str) -> Any:
        if not name.startswith("tensorflow_datasets."):
            raise ValueError(f"its features.json names {name[:80]}, which is not a class of TFDS")
        return original.__func__(cls, name)

    connector.cls_from_name = classmethod(checked)
    try:
        public = tfds.core.visibility.DatasetType.TFDS_PUBLIC
        with tfds.core.visibility.set_availables_tmp([public]):
            yield
    finally:
        connector.cls_from_name = original
