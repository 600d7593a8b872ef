"""One mixer by itself: pure functions for a model of another program, or its Flax module."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.errors import ScopeParamShapeError
from jax import Array

from transformer_jax.errors import UserError, as_user_error
from transformer_jax.mixers.base import (
    CrossMixer,
    CrossMixerConfig,
    Mixer,
    MixerConfig,
    MixerContext,
    State,
)
from transformer_jax.ops.arrays import check_mask
from transformer_jax.positions.base import PositionConfig
from transformer_jax.positions.none import NoPosition

Params = dict[str, Any]


@dataclass(frozen=True)
class MixerLayer:
    """A mixer in a role, by itself; hashable, so it can be a static argument of `jax.jit`.

        layer = MixerLayer(SSD(), d_model=64, num_heads=4, causal=True)
        params = layer.init(jax.random.key(0))
        y = layer.apply(params, x, mask)            # [B, L, D], a whole sequence
        state = layer.init_state(params, batch, max_length)
        y, state = layer.step(params, x_t, state, position)     # [B, D], one token

    A mixer that reads a memory has `project` and `read` in place of `apply` and `step`. Residual,
    norm and dropout are the caller's. `module()` is the same as a Flax Linen module.

    Raises:
        UserError: the mixer cannot play the role, or does not apply what the position scheme does.
    """

    mixer: MixerConfig | CrossMixerConfig
    d_model: int  #: D, the width of its input and output
    num_heads: int = 1
    causal: bool = False  #: whether a token sees only those before it
    position: PositionConfig = NoPosition()  #: of which it applies `rotate` and `bias`
    max_length: int = 4096  #: longest sequence, for mixers and schemes that are built for one
    layer: int = 0  #: the number of the layer, for mixers whose layers differ
    dtype: str = "float32"  #: of activations
    matmul_dtype: str = "float32"  #: of the operands of matrix products

    def __post_init__(self) -> None:
        name = type(self.mixer).__qualname__
        if not isinstance(self.mixer, MixerConfig | CrossMixerConfig):
            raise UserError(f"mixer is {self.mixer!r}: give the options of one, such as SSD()")
        if self.num_heads < 1 or self.d_model % self.num_heads:
            raise UserError(f"num_heads={self.num_heads} does not divide d_model={self.d_model}")
        if isinstance(self.mixer, CrossMixerConfig):
            if self.causal or self.position != NoPosition():
                raise UserError(f"{name} reads a memory: it takes no `causal` and no `position`")
            return self.mixer.check(self.context)
        if why := self.mixer.refuses.get("decoder" if self.causal else "encoder"):
            raise UserError(f"{name} with causal={self.causal}: {why}")
        hooks = self.position.build(self.context).hooks()
        if others := hooks - self.mixer.honours:
            raise UserError(
                f"{name} does not apply {', '.join(others)} of {self.position!r}: take another "
                "scheme, or call its `embed` before the first layer"
            )
        self.mixer.check(self.context, hooks)

    @property
    def context(self) -> MixerContext:
        """What the mixer is built with."""
        names = ("d_model", "num_heads", "max_length", "causal", "dtype", "matmul_dtype", "layer")
        own: dict[str, Any] = {name: getattr(self, name) for name in names}
        return MixerContext(head_dim=self.d_model // self.num_heads, **own)

    def module(self) -> Any:
        """The Flax Linen module, to be a part of another one, or of an NNX module by its bridge.

        Its methods are those of `Mixer` or `CrossMixer`, its parameters plain arrays.
        """
        built, methods = self._built(), ["__call__", "init_state", "step"]
        if isinstance(built, CrossMixer):
            methods = ["project", "read"]
        plain = nn.map_variables(
            type(built),
            "params",
            trans_in_fn=lambda params: params,
            trans_out_fn=nn.unbox,
            init=True,
            mutable=True,
            methods=methods,
        )
        fields = (each.name for each in dataclasses.fields(built) if each.init)
        own = {name: getattr(built, name) for name in fields if name not in ("name", "parent")}
        return plain(**own)

    def init(self, key: Array) -> Params:
        """Fresh parameters, nested dicts of arrays."""
        if not isinstance(key, Array):
            raise UserError(f"key is {key!r}: give jax.random.key({key!r})")
        return nn.unbox(self._boxes_of(key))

    def logical_axes(self) -> Any:
        """For every parameter a `PartitionSpec` of logical axis names, such as `heads`."""
        return nn.get_partition_spec(jax.eval_shape(self._boxes_of, jax.random.key(0)))

    def apply(
        self,
        params: Params,
        x_BLD: Array,
        mask_BL: Array | None = None,
        *,
        rng: Array | None = None,
    ) -> Array:
        """The whole sequence at once, [B, L, D].

        Args:
            params: from `init`.
            x_BLD: the input.
            mask_BL: True at real tokens, which come first in their row. None: all are.
            rng: a key for a mixer that drops something; without one, nothing is dropped.
        """
        self._check("x", x_BLD, 3)
        mask_BL = jnp.ones(x_BLD.shape[:2], bool) if mask_BL is None else mask_BL
        check_mask("mask", mask_BL, "x", x_BLD)
        rngs = {} if rng is None else {"dropout": rng}
        return self._call("__call__", params, x_BLD, mask_BL, rngs=rngs)

    def init_state(self, params: Params, batch: int, max_length: int) -> State:
        """The state before the first of up to `max_length` tokens; see `Mixer.init_state`."""
        return self._call("init_state", params, batch, max_length)

    def step(
        self, params: Params, x_BD: Array, state: State, position: Array | int
    ) -> tuple[Array, State]:
        """One token, at the same position in all rows: ([B, D], the next state)."""
        self._check("x", x_BD, 2)
        return self._call("step", params, x_BD, state, jnp.asarray(position, jnp.int32))

    def project(self, params: Params, memory_BMD: Array, mask_BM: Array) -> State:
        """What `read` needs of a memory; see `CrossMixer`."""
        self._check("memory", memory_BMD, 3)
        check_mask("mask", mask_BM, "memory", memory_BMD)
        return self._call("project", params, memory_BMD, mask_BM)

    def read(self, params: Params, x_BTD: Array, projected: State) -> Array:
        """T queries that read the memory, each on its own, [B, T, D]."""
        self._check("x", x_BTD, 3)
        return self._call("read", params, x_BTD, projected)

    def _check(self, name: str, x: Array, rank: int) -> None:
        if x.ndim != rank or x.shape[-1] != self.d_model:
            wanted = ", ".join(("rows", "length")[: rank - 1])
            raise UserError(f"{name} has the shape {x.shape}: expected [{wanted}, {self.d_model}]")

    def _call(self, method: str, params: Params, *args: Any, **options: Any) -> Any:
        built, name = self._built(), type(self.mixer).__qualname__
        if isinstance(built, CrossMixer) != (method in ("project", "read")):
            raise UserError(
                f"{name} has no such function: use apply, init_state and step; of one that reads a "
                "memory, project and read"
            )
        if method in ("step", "init_state") and not self.causal:
            raise UserError(f"{name} with causal=False sees what follows: it has no step")
        with as_user_error("params are not of this layer:", ScopeParamShapeError):
            return built.apply({"params": params}, *args, method=method, **options)

    def _built(self) -> Mixer | CrossMixer:
        if isinstance(self.mixer, CrossMixerConfig):
            return self.mixer.build(self.context)
        return self.mixer.build(self.context, self.position.build(self.context))

    def _boxes_of(self, key: Array) -> Any:
        x_BLD, mask_BL = jnp.zeros((1, 2, self.d_model), self.dtype), jnp.ones((1, 2), bool)
        built = self._built()
        memory = (x_BLD,) if isinstance(built, CrossMixer) else ()
        return built.init(key, x_BLD, *memory, mask_BL).get("params", {})
