"""A model with its parameters on devices, in the form that decoding holds."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from transformer_jax.decoding.base import Hypotheses, Method
from transformer_jax.decoding.repetition import Repetition
from transformer_jax.models.api import WeightForm
from transformer_jax.parallel.mesh import (
    batch_sharding,
    decoding_rows,
    lay_out,
    num_processes,
    param_shardings,
    replicated,
)
from transformer_jax.translation.model import Model
from transformer_jax.translation.model_calls import Pairs, Sources, decode_batch, score_batch


class LoadedModel:
    """Calls the compiled functions of a model, with the rows of a batch shared among devices.

    Args:
        model: what is called.
        params: its parameters, or None if nothing will be called.
        weights: the form in which they are held, see `Model.for_decoding`.
        mesh: the devices; None: one device, that of `params`.
    """

    def __init__(self, model: Model, params: Any, weights: WeightForm, mesh: Mesh | None) -> None:
        self.model = model
        self.mesh = mesh
        self.params = None if params is None else _for_decoding(model, params, weights, mesh)

    def num_rows(self, wanted: int) -> int:
        """The number of rows of a batch, which is a multiple of the number of devices."""
        return max(1, wanted) if self.mesh is None else decoding_rows(wanted, self.mesh)

    def decode(
        self, sources: Sources, method: Method, max_length: int, repetition: Repetition
    ) -> Hypotheses:
        """See `decode_batch`. Every process can read the whole result."""
        hypotheses = decode_batch(
            self.params,
            self._split(sources),
            np.uint32(method.seed),
            model=self.model,
            method=method.static,
            max_length=max_length,
            repetition=repetition,
            mesh=self.mesh,
        )
        return self._gathered(hypotheses)

    def score(self, pairs: Pairs) -> jax.Array:
        """See `score_batch`. Every process can read the whole result."""
        scores_B = score_batch(self.params, self._split(pairs), model=self.model, mesh=self.mesh)
        return self._gathered(scores_B)

    def _split(self, arrays: Any) -> Any:
        if self.mesh is None or self.mesh.size == 1:  # a call itself copies them in less time
            return arrays
        sharding = batch_sharding(self.mesh)
        return jax.tree.map(lambda array: lay_out(array, sharding), arrays)

    def _gathered(self, results: Any) -> Any:
        if self.mesh is None or num_processes(self.mesh) == 1:
            return results
        return jax.device_put(results, replicated(self.mesh))


def _for_decoding(model: Model, params: Any, weights: WeightForm, mesh: Mesh | None) -> Any:
    shardings = None
    if mesh is not None:
        # Those that are laid out already stay where they are.
        params = jax.device_put(params, param_shardings(model.logical_axes(), params, mesh))
        shapes = jax.eval_shape(lambda params: model.for_decoding(params, weights), params)
        shardings = param_shardings(model.decoding_axes(weights), shapes, mesh)
    convert = jax.jit(type(model).for_decoding, static_argnums=(0, 2), out_shardings=shardings)
    return convert(model, params, weights)
