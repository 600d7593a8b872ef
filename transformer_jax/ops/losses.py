"""Label-smoothed cross-entropy fused with the vocabulary projection.

With logits l = h W and smoothing e over V classes (Szegedy et al. 2016,
arXiv:1512.00567), the loss of a token with label y is

    -(1 - e) log p(y) - e/V sum_v log p(v)  =  logsumexp(l) - (1 - e) l_y - e mean(l)

and its gradient with respect to l is softmax(l) - (1 - e) onehot(y) - e/V. So the forward
pass can compute the gradients of h and W together with the logits and discard the logits:
[rows, V] exists for one chunk of rows at a time. Memory does not grow with the batch, and on a
CPU the logits stay in the cache.

With several passes over each sentence, a chunk has all passes of its tokens, and the loss may be
any function of their predictions.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from transformer_jax.ops.matmul import product, transposed
from transformer_jax.ops.platform import by_platform
from transformer_jax.ops.sequences import chunked
from transformer_jax.ops.sharding import num_shards

#: Hidden states of all P passes [N, P * D], labels [N] and weights [N] of one chunk of tokens.
Chunk = tuple[jax.Array, jax.Array, jax.Array]
#: (losses [N, P], log-probabilities [N, P, V]) -> the loss of each token [N], all float32.
TokenLoss = Callable[[jax.Array, jax.Array], jax.Array]
#: Hidden states, kernel and, if there is one, bias; also their gradients.
_Inputs = tuple[jax.Array, jax.Array, jax.Array | None]
_Targets = tuple[jax.Array, jax.Array]  # labels, weights
_Sums = tuple[jax.Array, jax.Array]  # of the loss, of the negative log-likelihood


class _Form(NamedTuple):
    """How a platform goes through the logits.

    Attributes:
        limit: approximate number of logits of one chunk on one device.
        rounded: store them in the dtype of the hidden states, in place of float32. On a GPU or TPU
            a product writes them to memory, from where they are read three times.
        product_sums: sums over the vocabulary are products with ones. By its compiler's estimates a
            TPU takes almost three times as long for other sums.
    """

    limit: int
    rounded: bool = False
    product_sums: bool = False


#: What fits the cache of a CPU (8 MiB; twice as much took a third longer), elsewhere 512 MiB of
#: memory. On a TPU a product that adds to the float32 gradient of the vocabulary takes twice the
#: time of one that writes it, so chunks are large: 1 GiB in bfloat16, 14,500 tokens for each
#: device with 37,000 pieces.
_FORMS = {
    "cpu": _Form(1 << 21),
    "cuda": _Form(1 << 28, rounded=True),
    "tpu": _Form(1 << 29, rounded=True, product_sums=True),
    "other": _Form(1 << 27),
}


#: Columns of ones in a product that adds up rows: the width of a TPU's matrix unit.
_COLUMNS = 128

#: What is projected to logits, kernel and, if there is one, bias: [N * P, D], [D, V], [V].
_Projection = tuple[jax.Array, jax.Array, jax.Array | None]


class _Loss(NamedTuple):
    """The loss of a chunk's logits [N * P, V], for labels and weights [N].

    Logits are given as they are stored, with what they are the projection of.
    """

    smoothing: float
    token_loss: TokenLoss | None  #: None: one pass, whose cross-entropy is the loss
    dtype: jnp.dtype  #: of the operands of matrix products

    def sums(
        self,
        logits_RV: jax.Array,
        of: _Projection,
        labels_N: jax.Array,
        weights_N: jax.Array,
        form: _Form,
    ) -> _Sums:
        """Of the loss and of the negative log-likelihood."""
        if self.token_loss is None:
            sums, _ = self._cross_entropy(logits_RV, of, labels_N, weights_N, form)
            return sums
        logits_RV = logits_RV.astype(jnp.float32)
        logits_NPV = logits_RV.reshape(len(labels_N), -1, logits_RV.shape[-1])
        log_probs_NPV = jax.nn.log_softmax(logits_NPV)
        nll_NP1 = -jnp.take_along_axis(log_probs_NPV, labels_N[:, None, None], axis=-1)
        uniform_NP = -log_probs_NPV.mean(axis=-1)
        losses_NP = (1.0 - self.smoothing) * nll_NP1[..., 0] + self.smoothing * uniform_NP
        loss_N = self.token_loss(losses_NP, log_probs_NPV)
        return (loss_N * weights_N).sum(), (nll_NP1[:, 0, 0] * weights_N).sum()

    def sums_and_gradient(
        self,
        logits_RV: jax.Array,
        of: _Projection,
        labels_N: jax.Array,
        weights_N: jax.Array,
        form: _Form,
    ) -> tuple[_Sums, jax.Array]:
        """`sums`, and the gradient of the loss with respect to the logits, float32."""
        if self.token_loss is not None:
            loss_sum, vjp, nll_sum = jax.vjp(
                lambda logits: self.sums(logits, of, labels_N, weights_N, form),
                logits_RV.astype(jnp.float32),
                has_aux=True,
            )
            return (loss_sum, nll_sum), vjp(jnp.ones(()))[0]
        sums, lse_N = self._cross_entropy(logits_RV, of, labels_N, weights_N, form)
        label_NV = jax.lax.broadcasted_iota(jnp.int32, logits_RV.shape, 1) == labels_N[:, None]
        probabilities_NV = jnp.exp(logits_RV.astype(jnp.float32) - lse_N[:, None])
        gradient_NV = probabilities_NV - self.smoothing / logits_RV.shape[-1]
        gradient_NV = gradient_NV - jnp.where(label_NV, 1.0 - self.smoothing, 0.0)
        return sums, gradient_NV * weights_N[:, None]

    def _cross_entropy(
        self,
        logits_NV: jax.Array,
        of: _Projection,
        labels_N: jax.Array,
        weights_N: jax.Array,
        form: _Form,
    ) -> tuple[_Sums, jax.Array]:
        """`sums` of one pass, and the logits' logsumexp [N]."""
        # Before the conversion: a TPU's compiler would store the converted logits for this.
        label_logit_N = jnp.take_along_axis(logits_NV, labels_N[:, None], axis=-1)[:, 0]
        label_logit_N = label_logit_N.astype(jnp.float32)
        logits_NV = logits_NV.astype(jnp.float32)
        max_N = logits_NV.max(axis=-1)
        exp_NV = jnp.exp(logits_NV - max_N[:, None])
        if form.product_sums:
            # The largest exponential of a row is exactly 1 in every dtype.
            sum_N, mean_N = self._row_sums(exp_NV)[:, 0], self._means(of)
        else:
            sum_N, mean_N = exp_NV.sum(axis=-1), logits_NV.mean(axis=-1)
        lse_N = jnp.log(sum_N) + max_N
        nll_N = lse_N - label_logit_N
        loss_N = lse_N - (1.0 - self.smoothing) * label_logit_N - self.smoothing * mean_N
        return ((loss_N * weights_N).sum(), (nll_N * weights_N).sum()), lse_N

    def _row_sums(self, x: jax.Array) -> jax.Array:
        """[..., V] -> [..., 128]: the sum over V, in every column; float32."""
        ones = jnp.ones((x.shape[-1], _COLUMNS), self.dtype)
        return product(x.astype(self.dtype), ones)

    def _means(self, of: _Projection) -> jax.Array:
        """The means of the rows of logits, from the mean of the kernel's columns."""
        hidden_ND, kernel_DV, bias_V = of
        kernel = self._row_sums(kernel_DV) / kernel_DV.shape[-1]
        mean_N = product(hidden_ND, kernel.astype(self.dtype))[:, 0]
        return mean_N if bias_V is None else mean_N + bias_V.mean()


def cross_entropy(
    hidden_RTD: jax.Array,
    kernel_DV: jax.Array,
    labels_BT: jax.Array,
    weights_BT: jax.Array,
    label_smoothing: float = 0.0,
    dtype: DTypeLike = jnp.float32,
    *,
    bias_V: jax.Array | None = None,
    token_loss: TokenLoss | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Sums of the training loss and of the plain negative log-likelihood.

    Args:
        hidden_RTD: the features that are projected, R = B * P for P passes. Those of one sentence
            are next to each other.
        kernel_DV: the projection.
        labels_BT: int32 target ids.
        weights_BT: 1 for a real token, 0 for padding; any real weight works.
        label_smoothing: e in [0, 1).
        dtype: of the matrix products' operands; everything else is float32, except that on a GPU
            or TPU the logits are rounded to the dtype of the hidden states.
        bias_V: float32, added to the logits.
        token_loss: the loss of tokens from the cross-entropies and predictions of all passes. None:
            there is one pass, and the loss is its cross-entropy.

    Returns:
        (loss_sum, nll_sum), float32 scalars in nats, to be divided by the sum of the weights
        over the *global* batch. Only `loss_sum` has a gradient. `nll_sum` is that of the first
        pass.
    """
    batch, length = labels_BT.shape
    passes = hidden_RTD.shape[0] // batch
    hidden_BPTD = hidden_RTD.reshape(batch, passes, length, -1)
    hidden_BTE = jnp.swapaxes(hidden_BPTD, 1, 2).reshape(batch, length, -1)  # E = P * D
    inputs, targets = (hidden_BTE, kernel_DV, bias_V), (labels_BT, weights_BT)
    return _fused(inputs, targets, _Loss(label_smoothing, token_loss, jnp.dtype(dtype)))


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _fused(inputs: _Inputs, targets: _Targets, loss: _Loss) -> _Sums:
    function = partial(_loss_sums, loss)
    return by_platform(function, inputs, targets, **_FORMS)


def _loss_sums(loss: _Loss, inputs: _Inputs, targets: _Targets, form: _Form) -> _Sums:
    chunks, kernel_low = _chunks(inputs, targets, loss.dtype, form.limit)
    logits_dtype = inputs[0].dtype if form.rounded else jnp.float32

    def body(sums: _Sums, chunk: Chunk) -> tuple[_Sums, None]:
        hidden_RD, labels_N, weights_N = _rows(chunk, kernel_low)
        logits_RV = product(hidden_RD, kernel_low, bias=inputs[2], result=logits_dtype)
        of = (hidden_RD, kernel_low, inputs[2])
        loss_sum, nll_sum = loss.sums(logits_RV, of, labels_N, weights_N, form)
        return (sums[0] + loss_sum, sums[1] + nll_sum), None

    zero = jnp.zeros((), jnp.float32)
    return jax.lax.scan(body, (zero, zero), chunks)[0]


def _fused_forward(inputs: _Inputs, targets: _Targets, loss: _Loss) -> tuple[_Sums, _Inputs]:
    function = partial(_loss_sums_and_gradients, loss)
    return by_platform(function, inputs, targets, **_FORMS)


def _loss_sums_and_gradients(
    loss: _Loss, inputs: _Inputs, targets: _Targets, form: _Form
) -> tuple[_Sums, _Inputs]:
    hidden_BTE, kernel_DV, bias_V = inputs
    chunks, kernel_low = _chunks(inputs, targets, loss.dtype, form.limit)
    logits_dtype = inputs[0].dtype if form.rounded else jnp.float32
    kernel_low_VD = transposed(kernel_low)

    def body(carry: Any, chunk: Chunk) -> tuple[Any, jax.Array]:
        loss_sum, nll_sum, dkernel_DV, dbias_V = carry
        hidden_RD, labels_N, weights_N = _rows(chunk, kernel_low)
        logits_RV = product(hidden_RD, kernel_low, bias=bias_V, result=logits_dtype)
        (chunk_loss, chunk_nll), dlogits_RV = loss.sums_and_gradient(
            logits_RV, (hidden_RD, kernel_low, bias_V), labels_N, weights_N, form
        )
        if dbias_V is not None:
            dbias_V = dbias_V + dlogits_RV.sum(axis=0)
        dlogits_RV = dlogits_RV.astype(loss.dtype)
        dhidden_RD = product(dlogits_RV, kernel_low_VD, result=hidden_BTE.dtype)
        dkernel_DV = dkernel_DV + product(transposed(hidden_RD), dlogits_RV)
        sums = loss_sum + chunk_loss, nll_sum + chunk_nll
        return (*sums, dkernel_DV, dbias_V), dhidden_RD.reshape(chunk[0].shape)

    zero = jnp.zeros((), jnp.float32)
    dbias_V = None if bias_V is None else jnp.zeros(bias_V.shape, jnp.float32)
    start = (zero, zero, jnp.zeros(kernel_DV.shape, jnp.float32), dbias_V)
    (loss_sum, nll_sum, dkernel_DV, dbias_V), dhidden_CNE = jax.lax.scan(body, start, chunks)
    dhidden_BTE = _unchunk(dhidden_CNE, hidden_BTE)
    return (loss_sum, nll_sum), (dhidden_BTE, dkernel_DV.astype(kernel_DV.dtype), dbias_V)


def _fused_backward(loss: _Loss, gradients: _Inputs, cotangents: _Sums) -> tuple[_Inputs, None]:
    del loss
    return jax.tree.map(lambda g: (g * cotangents[0]).astype(g.dtype), gradients), None


_fused.defvjp(_fused_forward, _fused_backward)


def _rows(chunk: Chunk, kernel_DV: jax.Array) -> Chunk:
    """The chunk with its hidden states as rows to project, [N * P, D]."""
    hidden_NE, labels_N, weights_N = chunk
    return hidden_NE.reshape(-1, kernel_DV.shape[0]), labels_N, weights_N


def _chunks(
    inputs: _Inputs, targets: _Targets, dtype: jnp.dtype, limit: int
) -> tuple[Chunk, jax.Array]:
    hidden_BTE, kernel_DV, _ = inputs
    labels_BT, weights_BT = targets
    shards = _shards(hidden_BTE)
    tokens = hidden_BTE.shape[0] // shards * hidden_BTE.shape[1]
    passes = hidden_BTE.shape[-1] // kernel_DV.shape[0]
    count = -(-tokens * passes * kernel_DV.shape[-1] // limit)
    # At least one token per chunk, whatever the limit.
    chunk = partial(_chunk, shards=shards, count=min(count, tokens))
    weights_BT = weights_BT.astype(jnp.float32)
    chunks = (chunk(hidden_BTE.astype(dtype)), chunk(labels_BT), chunk(weights_BT))
    return chunks, kernel_DV.astype(dtype)


def _shards(x: jax.Array) -> int:
    """Number of devices the rows are split over; 1 where it does not divide the rows."""
    shards = num_shards("batch")
    return shards if x.shape[0] % shards == 0 else 1


def _chunk(x: jax.Array, shards: int, count: int) -> jax.Array:
    """[B, T, ...] -> [at most `count`, N, ...]: equal parts of every device's tokens.

    The last part is padded with zeros, which are tokens of weight 0. (Chunks of whole rows
    would be uneven, and for a prime number of rows too small or too large.)
    """
    x = x.reshape(shards, -1, *x.shape[2:])
    # The axis of devices becomes the major one of a chunk's tokens, so that a batch sharded
    # over devices stays sharded inside every chunk.
    x = jnp.swapaxes(chunked(x, -(-x.shape[1] // count)), 0, 1)
    return x.reshape(x.shape[0], -1, *x.shape[3:])


def _unchunk(x_CND: jax.Array, like_BTD: jax.Array) -> jax.Array:
    """[count, N, D] -> the shape and dtype of `like_BTD`: the inverse of `_chunk`."""
    shards, (count, _, width) = _shards(like_BTD), x_CND.shape
    x = jnp.swapaxes(x_CND.reshape(count, shards, -1, width), 0, 1).reshape(shards, -1, width)
    tokens = like_BTD.shape[0] // shards * like_BTD.shape[1]
    return x[:, :tokens].reshape(like_BTD.shape).astype(like_BTD.dtype)
