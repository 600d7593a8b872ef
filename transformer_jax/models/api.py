"""The model as pure functions of (config, params, arrays): jit, vmap and grad them.

`config` is static (hashable): `jax.jit(apply, static_argnums=0)`.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.errors import ScopeParamShapeError
from flax.traverse_util import flatten_dict
from jax import Array
from jax.sharding import Mesh, PartitionSpec

from transformer_jax.errors import UserError, as_user_error
from transformer_jax.layers.parameters import MatrixBox, TableBox
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.inputs import Texts, check_batch, check_text, check_texts
from transformer_jax.models.lora import NoAdapter
from transformer_jax.models.paths import by_path
from transformer_jax.models.quantization import NoQuantization
from transformer_jax.models.transformer import Transformer
from transformer_jax.ops.arrays import AnyArray
from transformer_jax.ops.int8_products import quantize
from transformer_jax.ops.losses import SoftLabels, Targets, alignment_loss
from transformer_jax.ops.matrices import Int8Matrix, Table, in_dtypes
from transformer_jax.parallel.mesh import param_shardings, shapes_on
from transformer_jax.vocabulary import BOS_ID

#: Nested dicts of arrays.
Params = dict[str, Any]

#: A form in which decoding holds matrices.
WeightForm = Literal["float", "int8"]

#: What decoding carries: pytrees of arrays whose structure and shapes never change.
State = Any


def _module(config: ModelConfig) -> Transformer:
    # It does not know in which form its matrices are: a file's (`Int8Given`) is not in configs.
    return Transformer(dataclasses.replace(config, quantize=NoQuantization()))


def _init_variables(config: ModelConfig, key: Array) -> Any:
    ids = jnp.zeros((1, 2), jnp.int32)
    mask = jnp.ones((1, 2), bool)
    params = _module(config).init(key, Texts(ids, mask, ids, mask))["params"]
    return params | config.adapter.init(key, params) | config.quantize.init(params)


def run_model(
    config: ModelConfig, params: Params, *args: Any, rng: Array | None = None, **options: Any
) -> Any:
    """Applies the module of a model.

    Args:
        config: the model.
        params: its parameters, in whatever form.
        *args: of `Transformer.__call__`, or of the `method` among the options.
        rng: the dropout key, or None.
        **options: of Flax's `apply`.

    Raises:
        UserError: the parameters are of another config.
    """
    variables = {"params": _quantized(config, config.adapter.merge(params))}
    rngs = {} if rng is None else {"dropout": rng}
    with as_user_error("params are not of this config:", ScopeParamShapeError):
        return _module(config).apply(variables, *args, rngs=rngs, **options)


def _quantized(config: ModelConfig, params: Params, *, held: bool = False) -> Params:
    if config.quantize == NoQuantization():
        return params
    return config.quantize.merge(params, by_path(_abstract_boxes(config)), held)


def merge_adapter(config: ModelConfig, params: Params) -> tuple[ModelConfig, Params]:
    """The same model without an adapter: what it added is in the parameters.

    Without an adapter, the model as it is.
    """
    return dataclasses.replace(config, adapter=NoAdapter()), config.adapter.merge(params)


def init(config: ModelConfig, key: Array) -> Params:
    """Fresh parameters.

    Args:
        config: the model.
        key: from `jax.random.key`.

    Raises:
        UserError: the config cannot work, and the message names the setting; or `key` is none.
    """
    if not isinstance(key, Array):
        raise UserError(f"key is {key!r}: give jax.random.key({key!r})")
    return nn.unbox(_init_variables(config, key))


def abstract_params(config: ModelConfig, mesh: Mesh | None = None) -> Params:
    """Shapes and dtypes of the parameters, and with a mesh shardings, without allocating any."""
    boxes = _abstract_boxes(config)
    shapes: Params = nn.unbox(boxes)
    if mesh is None:
        return shapes
    return shapes_on(shapes, param_shardings(nn.get_partition_spec(boxes), shapes, mesh))


@functools.lru_cache(maxsize=32)
def _abstract_boxes(config: ModelConfig) -> Any:
    # Tracing takes a good part of a second, and a start needs shapes and axes several times.
    return jax.eval_shape(lambda: _init_variables(config, jax.random.key(0)))


def logical_axes(config: ModelConfig) -> Any:
    """For every parameter a `PartitionSpec` of logical axis names."""
    return nn.get_partition_spec(_abstract_boxes(config))


def for_decoding(config: ModelConfig, params: Params, weights: WeightForm = "float") -> Params:
    """Parameters in the form that decoding holds: see `ops.matrices`.

    The matrices of linear layers and embeddings are of the dtype of the products, or of int8. The
    other parameters stay as they are. The functions here take both forms, `loss` only floats. What
    they compute with `float` is equal to what they compute with the parameters themselves. With
    `model.quantize` the matrices are in its form.

    Raises:
        UserError: `int8`, and the model has an adapter. With floats its parameters stay as they
            are, since it is added to them first.
    """
    if config.adapter != NoAdapter():
        if weights == "float":
            return params
        raise UserError(
            "decode.weights=int8: the model has an adapter, which is for floats; merge it first "
            "(`merge_adapter`)"
        )
    if config.quantize != NoQuantization():
        return _quantized(config, params, held=True)

    def converted(box: Any, w: Any) -> Any:
        if not isinstance(box, MatrixBox):
            return w
        if weights == "int8":
            return w if isinstance(w, Int8Matrix) else quantize(w, box.contracted)
        if isinstance(box, TableBox):
            return in_dtypes(w, config.dtype, config.matmul_dtype if box.projects else config.dtype)
        return w.astype(config.matmul_dtype)

    return jax.tree.map(converted, _abstract_boxes(config), params, is_leaf=_is_box)


def matrix_boxes(config: ModelConfig) -> dict[str, MatrixBox]:
    """What the matrices are for that `decode.weights` and `model.quantize` change, by path."""
    boxes = by_path(_abstract_boxes(config))
    return {path: box for path, box in boxes.items() if isinstance(box, MatrixBox)}


def product_dtypes(config: ModelConfig) -> Any:
    """The dtype in which the model reads each parameter.

    It is bfloat16 for the matrices of linear layers and embeddings if both products and activations
    are bfloat16, because each use then rounds the matrix to it. Otherwise it is its own dtype.
    """
    rounds = config.dtype == config.matmul_dtype == "bfloat16"
    rounds = rounds and config.quantize == NoQuantization()

    def dtype(box: Any, w: Any) -> Any:
        return jnp.dtype("bfloat16") if rounds and isinstance(box, MatrixBox) else w.dtype

    return jax.tree.map(dtype, _abstract_boxes(config), abstract_params(config), is_leaf=_is_box)


def decoding_axes(config: ModelConfig, weights: WeightForm = "float") -> Any:
    """As `logical_axes`, of the parameters of `for_decoding`."""

    def axes(box: Any, held: Any) -> Any:
        names = nn.get_partition_spec(box)
        if isinstance(held, Int8Matrix):
            turned = names if box.contracted else PartitionSpec(*reversed(names))
            of_outputs = PartitionSpec(turned[0])
            fields = {"values": turned, "scale": PartitionSpec(turned[0], None), "sums": of_outputs}
            return jax.tree_util.tree_map_with_path(
                lambda path, _: fields.get(path[0].name, PartitionSpec()), held
            )
        if isinstance(held, Table):
            return Table(names, PartitionSpec(*reversed(names)))
        return names

    held = jax.eval_shape(lambda w: for_decoding(config, w, weights), abstract_params(config))
    # Without measured factors.
    boxes = {name: part for name, part in _abstract_boxes(config).items() if name in held}
    return jax.tree.map(axes, boxes, held, is_leaf=_is_box)


def abstract_held(config: ModelConfig, weights: WeightForm, mesh: Mesh) -> Any:
    """As `abstract_params`, of the parameters of `for_decoding`."""
    shapes = jax.eval_shape(lambda w: for_decoding(config, w, weights), abstract_params(config))
    axes = decoding_axes(config, weights)
    return shapes_on(shapes, param_shardings(axes, shapes, mesh))


def _is_box(x: Any) -> bool:
    return isinstance(x, nn.meta.AxisMetadata)


def num_params(config: ModelConfig) -> int:
    """The number of scalars in the parameters; computed from shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(abstract_params(config)))


def apply(
    config: ModelConfig,
    params: Params,
    source: AnyArray,
    source_mask_BS: AnyArray,
    target_in: AnyArray,
    target_mask_BT: AnyArray,
    *,
    rng: Array | None = None,
) -> Array:
    """Teacher-forced logits [B, T, V] in float32.

    Args:
        config: the model.
        params: its parameters.
        source: int32 ids, or their embeddings [B, S, E]; see `embed`.
        source_mask_BS: True at real tokens, which come first in their row.
        target_in: the target from `shift_right`, or its embeddings.
        target_mask_BT: as `source_mask_BS`.
        rng: the dropout key; without one, nothing is dropped.

    Raises:
        UserError: see `models.inputs.check_text`; or the parameters are of another config.
    """
    texts = Texts(source, source_mask_BS, target_in, target_mask_BT)
    check_texts(config, texts)
    return run_model(config, params, texts, rng=rng)


def mixer_paths(config: ModelConfig) -> dict[str, tuple[str, ...]]:
    """Name of every mixer, such as "encoder.0" or "cross.1" -> the path of its module."""
    kinds = {"encoder": ("encoder", "mixer"), "decoder": ("decoder", "mixer")}
    kinds["cross"] = ("decoder", "cross")
    return {
        f"{kind}.{i}": (stack, f"blocks_{i}", role)
        for kind, (stack, role) in kinds.items()
        for i in range(getattr(config, stack).num_layers)
    }


def check_guided(config: ModelConfig) -> None:
    """Raises UserError where no head can learn from alignments."""
    if getattr(config.cross, "alignment_head", None) is None:
        raise UserError(
            "train.alignment_weight needs a head that learns: set model.cross='full("
            "alignment_head=0)'"
        )
    if config.scan_layers:
        raise UserError(
            "train.alignment_weight and model.scan_layers: a loop over the layers hides the head; "
            "leave out one"
        )


def loss(
    config: ModelConfig,
    params: Params,
    batch: Mapping[str, AnyArray],
    *,
    label_smoothing: float = 0.0,
    alignment_weight: float | None = None,
    rng: Array | None = None,
) -> tuple[Array, Array, Array]:
    """(sum of the loss, sum of the negative log-likelihood, number of target tokens).

    Sums, so that they add up over microbatches and devices before the one division.
    `batch` has `source`, `source_mask`, `target` and `target_mask` (see `apply`). Dropout is on
    where `rng` is given. Where a teacher spreads the labels, `batch` also has `soft_ids` and
    `soft_shares` (see `ops.losses.SoftLabels`). With `alignment_weight` it also has the links of
    target and source pieces, `alignment` [B, T, S] bool, and so many times their `alignment_loss`
    is a part of the loss. The config then has an `alignment_head`.

    Raises:
        UserError: it has none, or the parameters are of int8; or as `apply`.
    """
    if alignment_weight is not None:
        check_guided(config)
    check_batch(config, batch)
    soft = None
    if "soft_ids" in batch:
        soft = SoftLabels(*map(jnp.asarray, (batch["soft_ids"], batch["soft_shares"])))
    targets = Targets(batch["target"], batch["target_mask"], soft)
    run = functools.partial(run_model, config, params, rng=rng, method="loss")
    arrays = texts_of(batch), targets, label_smoothing
    if alignment_weight is None:
        loss_sum, nll_sum = run(*arrays)
    else:
        (loss_sum, nll_sum), sown = run(*arrays, mutable=["alignment"])
        last = mixer_paths(config)[f"cross.{config.decoder.num_layers - 1}"]
        (log_BTS,) = flatten_dict(sown["alignment"])[*last, "log_weights"]
        loss_sum += alignment_weight * alignment_loss(log_BTS, jnp.asarray(batch["alignment"]))
    return loss_sum, nll_sum, batch["target_mask"].sum().astype(jnp.float32)


def encode(
    config: ModelConfig,
    params: Params,
    source: AnyArray,
    source_mask_BS: AnyArray,
    *,
    max_length: int,
    beam_size: int = 1,
) -> tuple[State, State]:
    """Runs the encoder and prepares decoding of up to `max_length` tokens.

    Returns:
        (sentence, state): the leaves of `sentence` (projected memory, source mask) lead with
        [B] and never change; those of `state` lead with [B, Z], or are of a
        `KeyValueCache`, and follow the hypotheses (`decoding.base`).

    Raises:
        UserError: as `apply`.
    """
    check_text(config, "source", source, source_mask_BS)
    return run_model(config, params, source, source_mask_BS, max_length, beam_size, method="encode")


def decode_step(
    config: ModelConfig,
    params: Params,
    tokens_BZ: AnyArray,
    position: AnyArray,
    state: State,
    sentence: State,
) -> tuple[Array, State]:
    """Predicts the token after `tokens_BZ`.

    Args:
        tokens_BZ: int32, the last token of each beam, at first BOS.
        position: int32 scalar, that of the last token; 0 for BOS.
        state: from `encode` or the previous step.
        sentence: from `encode`.

    Returns:
        logits [B, Z, V] in float32 and the next state, of the same structure.
    """
    return run_model(config, params, tokens_BZ, position, state, sentence, method="decode_step")


def shift_right(target_BT: AnyArray) -> Array:
    """The decoder's input: BOS, then the target without its last token."""
    return jnp.pad(target_BT[:, :-1], ((0, 0), (1, 0)), constant_values=BOS_ID)


def texts_of(batch: Mapping[str, AnyArray]) -> Texts:
    """What a model reads of a batch for `loss`."""
    target_in = shift_right(batch["target"])
    return Texts(batch["source"], batch["source_mask"], target_in, batch["target_mask"])
