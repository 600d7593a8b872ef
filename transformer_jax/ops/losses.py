"""Label-smoothed cross-entropy fused with the vocabulary projection.

With logits l = h W and smoothing e over V classes (Szegedy et al. 2016,
arXiv:1512.00567), the loss of a token with label y is

    -(1 - e) log p(y) - e/V sum_v log p(v)  =  logsumexp(l) - (1 - e) l_y - e mean(l)

and its gradient with respect to l is softmax(l) - (1 - e) onehot(y) - e/V. Where a teacher spreads
the label over several pieces (`SoftLabels`), l_y and onehot(y) are means over these. So the forward
pass can compute the gradients of h and W together with the logits and discard the logits:
[rows, V] exists for one chunk of rows at a time. Memory does not grow with the batch, and on a
CPU the logits stay in the cache.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.ops.matmul import product, transposed
from transformer_jax.ops.platform import by_platform
from transformer_jax.ops.sequences import chunked
from transformer_jax.ops.sharding import num_shards


class SoftLabels(NamedTuple):
    """Other pieces that a token may be, and their shares of its label.

    Attributes:
        ids: int32 [..., K], the pieces.
        shares: float32 [..., K]; the label keeps what they leave of 1.
    """

    ids: Array
    shares: Array


class Targets(NamedTuple):
    """What is to be predicted.

    Attributes:
        labels: int32 [B, T], target ids.
        weights: [B, T], 1 for a real token, 0 for padding; any real weight works.
        soft: pieces that share the label of each token, [B, T, K].
    """

    labels: Any
    weights: Any
    soft: SoftLabels | None = None


#: Hidden states [B, T, D], the kernel [D, V] that projects them and, if there is one, the float32
#: bias [V] of the logits; also their gradients.
Inputs = tuple[Array, Array, Array | None]
_Sums = tuple[Array, Array]  # of the loss, of the negative log-likelihood


class _Form(NamedTuple):
    """How a platform goes through the logits.

    Attributes:
        limit: approximate number of logits of one chunk on one device.
        rounded: store them in the dtype of the hidden states, in place of float32. On a GPU or TPU
            a product writes them to memory, from where they are read three times.
        product_sums: sums over the vocabulary are products with ones. By its compiler's estimates a
            TPU takes almost three times as long for other sums.
        one_pass: one reading of the logits gives all sums of a row. Otherwise a first one finds the
            largest logit, and a second one sums the exponentials.
    """

    limit: int
    rounded: bool = False
    product_sums: bool = False
    one_pass: bool = False


#: What fits the cache of a CPU (8 MiB; twice as much took a third longer), elsewhere 512 MiB of
#: memory. On a TPU a product that adds to the float32 gradient of the vocabulary takes twice the
#: time of one that writes it, so chunks are large: 1 GiB in bfloat16, 14,500 tokens for each
#: device with 37,000 pieces. A GPU waits for the host at each turn
#: of a loop: 2 GiB in bfloat16, 4 in float32.
_FORMS = {
    "cpu": _Form(1 << 21),
    "cuda": _Form(1 << 30, rounded=True, one_pass=True),
    "tpu": _Form(1 << 29, rounded=True, product_sums=True),
    "other": _Form(1 << 27),
}


#: Columns of ones in a product that adds up rows: the width of a TPU's matrix unit.
_COLUMNS = 128


class _Loss(NamedTuple):
    """The loss of a chunk's logits [N, V], which are given as they are stored."""

    smoothing: float
    dtype: jnp.dtype  #: of the operands of matrix products

    def sums(
        self, logits_NV: Array, inputs: Inputs, targets: Targets, form: _Form
    ) -> tuple[_Sums, Array]:
        """The sums of the loss and of the negative log-likelihood, and the logsumexps [N].

        Args:
            logits_NV: the projection of `inputs`.
            inputs: hidden states [N, D] and kernel [D, V] in the dtype of the products, bias.
            targets: of the N tokens.
            form: of this platform.
        """
        labels_N, weights_N, soft = targets
        # Before the conversion: a TPU's compiler would store the converted logits for this.
        label_logit_N = jnp.take_along_axis(logits_NV, labels_N[:, None], axis=-1)[:, 0]
        label_logit_N = target_logit_N = label_logit_N.astype(jnp.float32)
        if soft is not None:
            soft_NK = jnp.take_along_axis(logits_NV, soft.ids, axis=-1).astype(jnp.float32)
            target_logit_N = (soft_NK * soft.shares).sum(-1)
            target_logit_N += (1.0 - soft.shares.sum(-1)) * label_logit_N
        logits_NV = logits_NV.astype(jnp.float32)
        if form.one_pass:
            max_N, sum_N, mean_N = _read_once(logits_NV)
        else:
            max_N = logits_NV.max(axis=-1)
            exp_NV = jnp.exp(logits_NV - max_N[:, None])
            if form.product_sums:
                # The largest exponential of a row is exactly 1 in every dtype.
                sum_N, mean_N = self._row_sums(exp_NV)[:, 0], self._means(inputs)
            else:
                sum_N, mean_N = exp_NV.sum(axis=-1), logits_NV.mean(axis=-1)
        lse_N = jnp.log(sum_N) + max_N
        nll_N = lse_N - label_logit_N
        loss_N = lse_N - (1.0 - self.smoothing) * target_logit_N - self.smoothing * mean_N
        return ((loss_N * weights_N).sum(), (nll_N * weights_N).sum()), lse_N

    def gradient(self, logits_NV: Array, lse_N: Array, targets: Targets) -> Array:
        """Of the summed loss with respect to the logits, float32."""
        labels_N, weights_N, soft = targets
        label_NV = jax.lax.broadcasted_iota(jnp.int32, logits_NV.shape, 1) == labels_N[:, None]
        probabilities_NV = jnp.exp(logits_NV.astype(jnp.float32) - lse_N[:, None])
        gradient_NV = probabilities_NV - self.smoothing / logits_NV.shape[-1]
        share_N1: Any = 1.0 - self.smoothing
        if soft is not None:
            rows_N1 = jnp.arange(len(labels_N))[:, None]
            gradient_NV = gradient_NV.at[rows_N1, soft.ids].add(-share_N1 * soft.shares)
            share_N1 = share_N1 * (1.0 - soft.shares.sum(-1, keepdims=True))
        gradient_NV = gradient_NV - jnp.where(label_NV, share_N1, 0.0)
        return gradient_NV * weights_N[:, None]

    def _row_sums(self, x: Array) -> Array:
        """[..., V] -> [..., 128]: the sum over V, in every column; float32."""
        ones = jnp.ones((x.shape[-1], _COLUMNS), self.dtype)
        return product(x.astype(self.dtype), ones)

    def _means(self, inputs: Inputs) -> Array:
        """The means of the rows of logits, from the mean of the kernel's columns."""
        hidden_ND, kernel_DV, bias_V = inputs
        kernel = self._row_sums(kernel_DV) / kernel_DV.shape[-1]
        mean_N = product(hidden_ND, kernel.astype(self.dtype))[:, 0]
        return mean_N if bias_V is None else mean_N + bias_V.mean()


def _read_once(logits_NV: Array) -> tuple[Array, Array, Array]:
    """Of each row the largest logit, the sum of exp(logit - largest), and the mean.

    Sums of two parts are scaled to the larger of their maxima (Milakov & Gimelshein 2018,
    arXiv:1805.02867, eq. 4), so their order does not matter.
    """

    def joined(a: Sequence[Array], b: Sequence[Array]) -> tuple[Array, ...]:
        scale = jnp.exp(-jnp.abs(a[0] - b[0]))
        exponentials = jnp.where(a[0] > b[0], a[1] + b[1] * scale, a[1] * scale + b[1])
        return jnp.maximum(a[0], b[0]), exponentials, a[2] + b[2]

    lowest = float(jnp.finfo(jnp.float32).min)  # -inf minus itself is not a number
    parts = logits_NV, jnp.ones_like(logits_NV), logits_NV
    max_N, sum_N, total_N = jax.lax.reduce(parts, (lowest, 0.0, 0.0), joined, (1,))
    return max_N, sum_N, total_N / logits_NV.shape[-1]


def cross_entropy(
    inputs: Inputs, targets: Targets, label_smoothing: float = 0.0, dtype: DTypeLike = jnp.float32
) -> tuple[Array, Array]:
    """Sums of the training loss and of the plain negative log-likelihood.

    Args:
        inputs: what is projected to logits.
        targets: what the logits should predict.
        label_smoothing: e in [0, 1).
        dtype: of the matrix products' operands; everything else is float32, except that on a GPU
            or TPU the logits are rounded to the dtype of the hidden states.

    Returns:
        (loss_sum, nll_sum), float32 scalars in nats, to be divided by the sum of the weights
        over the *global* batch. Only `loss_sum` has a gradient.
    """
    targets = targets._replace(weights=targets.weights.astype(jnp.float32))
    return _fused(inputs, targets, _Loss(label_smoothing, jnp.dtype(dtype)))


def alignment_loss(log_weights_BTM: Array, links_BTM: Array) -> Array:
    """Cross-entropy of an attention head with word alignments, summed over the target pieces.

        - sum_t sum_m p_tm log a_tm,    p_tm = links_tm / sum_m links_tm

    (Chen et al. 2016, arXiv:1607.01628, eq. 6; Garg et al. 2019, arXiv:1909.02074, eq. 5). A piece
    without a link, such as one of padding, adds nothing.

    Args:
        log_weights_BTM: logarithms of the weights, float32.
        links_BTM: whether target piece t and source piece m are linked.

    Returns:
        A float32 scalar in nats.
    """
    links_BTM = links_BTM.astype(jnp.float32)
    share_BTM = links_BTM / jnp.maximum(links_BTM.sum(axis=-1, keepdims=True), 1.0)
    return -jnp.where(links_BTM > 0, share_BTM * log_weights_BTM, 0.0).sum()


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _fused(inputs: Inputs, targets: Targets, loss: _Loss) -> _Sums:
    return by_platform(partial(_loss_sums, loss, False), inputs, targets, **_FORMS)[0]


def _fused_forward(inputs: Inputs, targets: Targets, loss: _Loss) -> tuple[_Sums, Inputs]:
    return by_platform(partial(_loss_sums, loss, True), inputs, targets, **_FORMS)


def _loss_sums(
    loss: _Loss, differentiate: bool, inputs: Inputs, targets: Targets, form: _Form
) -> tuple[_Sums, Inputs | None]:
    """The sums over all tokens and, if asked for, the gradient of the first."""
    hidden_BTD, kernel_DV, bias_V = inputs
    batch, length, width = hidden_BTD.shape
    # The number of devices that the rows are split over.
    shards = num_shards("batch") if batch % num_shards("batch") == 0 else 1
    tokens = batch // shards * length
    # At least one token per chunk, whatever the limit.
    count = min(-(-tokens * kernel_DV.shape[-1] // form.limit), tokens)
    cut = partial(_chunk, shards=shards, count=count)
    chunks = cut(hidden_BTD.astype(loss.dtype)), jax.tree.map(cut, targets)
    kernel_low = kernel_DV.astype(loss.dtype)
    logits_dtype = hidden_BTD.dtype if form.rounded else jnp.float32
    kernel_low_VD = transposed(kernel_low) if differentiate else None

    def body(carry: Any, chunk: tuple[Array, Targets]) -> tuple[Any, Any]:
        (loss_sum, nll_sum), gradients = carry
        hidden_ND, targets_N = chunk
        logits_NV = product(hidden_ND, kernel_low, bias=bias_V, result=logits_dtype)
        projected = (hidden_ND, kernel_low, bias_V)
        (chunk_loss, chunk_nll), lse_N = loss.sums(logits_NV, projected, targets_N, form)
        sums = loss_sum + chunk_loss, nll_sum + chunk_nll
        if kernel_low_VD is None:
            return (sums, None), None
        dkernel_DV, dbias_V = gradients
        dlogits_NV = loss.gradient(logits_NV, lse_N, targets_N)
        if dbias_V is not None:
            dbias_V = dbias_V + dlogits_NV.sum(axis=0)
        dlogits_NV = dlogits_NV.astype(loss.dtype)
        dhidden_ND = product(dlogits_NV, kernel_low_VD, result=hidden_BTD.dtype)
        dkernel_DV = dkernel_DV + product(transposed(hidden_ND), dlogits_NV)
        return (sums, (dkernel_DV, dbias_V)), dhidden_ND

    zeros = partial(jax.tree.map, lambda x: jnp.zeros(x.shape, jnp.float32))
    scalar = jnp.zeros((), jnp.float32)
    start = (scalar, scalar), zeros((kernel_DV, bias_V)) if differentiate else None
    (sums, gradients), dhidden_CND = jax.lax.scan(body, start, chunks)
    if gradients is None:
        return sums, None
    # The inverse of `_chunk`.
    by_shard = jnp.swapaxes(dhidden_CND.reshape(len(dhidden_CND), shards, -1, width), 0, 1)
    dhidden = by_shard.reshape(shards, -1, width)[:, :tokens]
    dkernel_DV, dbias_V = gradients
    return sums, (dhidden.reshape(hidden_BTD.shape), dkernel_DV.astype(kernel_DV.dtype), dbias_V)


def _fused_backward(loss: _Loss, gradients: Inputs, cotangents: _Sums) -> tuple[Inputs, None]:
    return jax.tree.map(lambda g: (g * cotangents[0]).astype(g.dtype), gradients), None


_fused.defvjp(_fused_forward, _fused_backward)


def _chunk(x: Array, shards: int, count: int) -> Array:
    """[B, T, ...] -> [at most `count`, N, ...]: equal parts of every device's tokens.

    The last part is padded with zeros, which are tokens of weight 0. (Chunks of whole rows
    would be uneven, and for a prime number of rows too small or too large.)
    """
    x = x.reshape(shards, -1, *x.shape[2:])
    # The axis of devices becomes the major one of a chunk's tokens, so that a batch sharded
    # over devices stays sharded inside every chunk.
    x = jnp.swapaxes(chunked(x, -(-x.shape[1] // count)), 0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])
