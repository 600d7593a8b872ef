"""Linear recurrences with a matrix state and decays, in chunks of matrix products.

    S_t = diag(w_t) S_{t-1} + k_t v_t^T          S: [K, V], 0 < w_t <= 1

With one decay per head (`scalar_decay_scan`) this is the state space dual of Mamba-2 (Dao and
Gu 2024, arXiv:2405.21060); with one per channel (`channel_decay_scan`) it is RWKV-6 (Peng et
al. 2024, arXiv:2404.05892) and gated linear attention (Yang et al. 2023, arXiv:2312.06635).
Both are linear in the values, which may have any width: with the identity as values the output
is the matrix that mixes the positions.

A sequence is cut into L/C chunks. Within a chunk, outputs are a C x C matrix of scores times
the values; a scan over the chunks passes on the state at each chunk's start (`states_before`).
O(L C) time and memory, and about 16 log16(L/C) sequential steps.

Decays are given as logarithms <= 0. Every weight is exp of the sum of exactly the logarithms
between two positions: nothing is divided by a decay, and no two large sums are subtracted, so
neither strong decays nor long chunks lose precision. All in float32.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.ops.platform import by_platform
from transformer_jax.ops.sequences import chunked, unchunked

#: What a recurrence reads of a sequence [B, L, ...], or of one position [B, ...], such as queries,
#: keys, values and the logarithms of decays.
Inputs = tuple[Array, ...]

#: Updates of the state that `states_before` computes one after the other.
_GROUP = 16

#: Positions that a chunk of `scalar_decay_scan` has at least where the device is not a CPU: as many
#: as a TPU's matrix unit is wide.
_POSITIONS = 128


def scalar_decay_scan(inputs: Inputs, chunk: int, *, both_ways: bool = False) -> Array:
    """y_t = S_t^T q_t with one decay per head.

    With `both_ways` a query also reads what follows (Afzal et al. 2025, arXiv:2502.16249): the
    weight of token s at t is q_t k_s times the decays in (s, t], or in (t, s] where s follows.
    One matrix of scores serves both directions.

    Args:
        inputs: queries [B, L, G, K], which read the state, each of G groups shared by H / G heads;
            keys [B, L, G, K], which write it; values [B, L, H, V]; log decays [B, L, H].
        chunk: C, or more where the device is not a CPU; the last chunk may be shorter.

    Returns:
        y [B, L, H, V], float32.
    """
    length = inputs[2].shape[1]
    return by_platform(
        _both_ways_scan if both_ways else _scalar_decay_scan,
        inputs,
        cpu=min(chunk, length),
        other=min(max(chunk, _POSITIONS), length),
    )


def _scalar_decay_scan(inputs: Inputs, chunk: int) -> Array:
    q_BLGK, k_BLGK, v_BLHV, log_decay_BLH = inputs
    groups, (length, heads, features) = q_BLGK.shape[2], v_BLHV.shape[1:]
    q, k = (_chunks(x, chunk) for x in (q_BLGK, k_BLGK))  # [B, L/C, C, G, K]
    v = _chunks(v_BLHV, chunk)  # [B, L/C, C, H, V]
    v = v.reshape(*v.shape[:3], groups, -1, features)  # heads by group: [..., G, J, V]
    w = _chunks(log_decay_BLH, chunk)  # [B, L/C, C, H]
    w = w.reshape(*w.shape[:3], groups, -1)
    before_each = jnp.cumsum(w, axis=2)
    after_each = _sums_after(w, axis=2)

    scores = jnp.einsum("bntgk,bnsgk->bngts", q, k)
    decays = jnp.exp(_sums_between(jnp.moveaxis(w, 2, -1)))  # [B, L/C, G, J, C, C]
    y = jnp.einsum("bngjts,bnsgjv->bntgjv", scores[:, :, :, None] * decays, v)

    written = jnp.einsum("bnsgk,bnsgjv->bngjkv", k, v * jnp.exp(after_each)[..., None])
    kept = jnp.exp(before_each[:, :, -1])[..., None, None]
    read = jnp.einsum("bntgk,bngjkv->bntgjv", q, states_before(kept, written))
    y = y + read * jnp.exp(before_each)[..., None]
    return unchunked(y.reshape(*y.shape[:3], heads, features), length)


def _both_ways_scan(inputs: Inputs, chunk: int) -> Array:
    """Both directions of `_scalar_decay_scan`, in a form that a CPU computes 1.6 times as fast."""
    # The causal scan would gain as much, but trainings of version 0.2 continue with its bits.
    q_BLGK, k_BLGK, v_BLHV, log_decay_BLH = inputs
    groups, (length, heads, features) = q_BLGK.shape[2], v_BLHV.shape[1:]
    q, k = (jnp.moveaxis(_chunks(x, chunk), 3, 2) for x in (q_BLGK, k_BLGK))  # [B, L/C, G, C, K]
    v, w = (_chunks(x, chunk) for x in (v_BLHV, log_decay_BLH))
    v, w = (  # heads by group: [B, L/C, G, C, J, V] and [B, L/C, G, C, J]
        jnp.moveaxis(x.reshape(*x.shape[:3], groups, -1, *x.shape[4:]), 3, 2) for x in (v, w)
    )
    before_each, after_each = jnp.cumsum(w, axis=3), _sums_after(w, axis=3)

    decays = _decays_between(jnp.moveaxis(w, 3, 4))  # [B, L/C, G, J, C, C]
    scores = _for_each_head(q @ jnp.swapaxes(k, -1, -2), decays.shape[3]) * decays
    y = jnp.moveaxis(scores @ jnp.moveaxis(v, 3, 4), 4, 3)

    kept = jnp.exp(before_each[:, :, :, -1])[:, :, :, None, :, None]

    def of_others(since: Array, until: Array, order: slice) -> Array:
        """What is read of the chunks before, or in the other order of those after."""
        values = (v * jnp.exp(until)[..., None]).reshape(*v.shape[:4], -1)
        written = jnp.swapaxes(k, -1, -2) @ values
        written = written.reshape(*written.shape[:4], *v.shape[4:])  # [B, L/C, G, K, J, V]
        states = states_before(kept[:, order], written[:, order])[:, order]
        read = q @ states.reshape(*states.shape[:4], -1)
        return read.reshape(v.shape) * jnp.exp(since)[..., None]

    y = y + of_others(before_each, after_each, slice(None))
    y = y + of_others(after_each, before_each, slice(None, None, -1))
    y = jnp.moveaxis(y, 2, 3)
    return unchunked(y.reshape(*y.shape[:3], heads, features), length)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _for_each_head(x: Array, count: int) -> Array:
    """[B, L/C, G, C, C] -> [B, L/C, G, J, C, C].

    Its gradient adds the heads' one by one: XLA's sum over them takes a CPU six times as long.
    """
    return jnp.broadcast_to(x[:, :, :, None], (*x.shape[:3], count, *x.shape[3:]))


_for_each_head.defvjp(
    lambda x, count: (_for_each_head(x, count), None),
    lambda count, _, g: (sum(g[:, :, :, head] for head in range(count)),),
)


def scalar_decay_step(inputs: Inputs, state_BHKV: Array) -> tuple[Array, Array]:
    """One position of `scalar_decay_scan`: (y [B, H, V], the next state), float32."""
    q_BGK, k_BGK, v_BHV, log_decay_BH = inputs
    share = v_BHV.shape[1] // q_BGK.shape[1]
    q_BHK, k_BHK = (jnp.repeat(x.astype(jnp.float32), share, axis=1) for x in (q_BGK, k_BGK))
    written_BHKV = k_BHK[..., None] * v_BHV.astype(jnp.float32)[:, :, None]
    state_BHKV = jnp.exp(log_decay_BH)[..., None, None] * state_BHKV + written_BHKV
    return jnp.einsum("bhk,bhkv->bhv", q_BHK, state_BHKV), state_BHKV


@partial(jax.checkpoint, static_argnums=(1,))
def channel_decay_scan(inputs: Inputs, chunk: int) -> Array:
    """y_t = S_{t-1}^T q_t + self_weight_t v_t with one decay per channel of the key.

    The state is read *before* token t is written; `self_weight` is the weight of token t
    itself (RWKV: sum_k q u k with a learned u). To read after the write instead, pass q * w
    and self_weight = q . k.

    Args:
        inputs: queries [B, L, H, K], which read the state; keys [B, L, H, K], which write it;
            values [B, L, H, V]; log decays [B, L, H, K]; the weight of each token's own value
            [B, L, H].
        chunk: C, a power of two.

    Returns:
        y [B, L, H, V], float32.
    """
    length = inputs[2].shape[1]
    chunk = min(chunk, 1 << (length - 1).bit_length())
    q, k, v, w, own = (by_chunks_and_heads(x, chunk) for x in inputs)
    scores, before_each, after_each, total = _channel_decay_scores(q, k, w, own)
    written = jnp.swapaxes(k * jnp.exp(after_each), -1, -2) @ v
    states = states_before(jnp.exp(total)[..., None], written)
    y = scores @ v + (q * jnp.exp(before_each)) @ states  # [B, L/C, H, C, V]
    return unchunked(jnp.moveaxis(y, 3, 2), length)


def channel_decay_step(inputs: Inputs, state_BHKV: Array) -> tuple[Array, Array]:
    """One position of `channel_decay_scan`: (y [B, H, V], the next state), float32."""
    q_BHK, k_BHK, v_BHV, log_decay_BHK, self_weight_BH = inputs
    q_BHK, k_BHK, v_BHV = (x.astype(jnp.float32) for x in (q_BHK, k_BHK, v_BHV))
    y_BHV = jnp.einsum("bhk,bhkv->bhv", q_BHK, state_BHKV) + self_weight_BH[..., None] * v_BHV
    written_BHKV = k_BHK[..., None] * v_BHV[:, :, None]
    return y_BHV, jnp.exp(log_decay_BHK)[..., None] * state_BHKV + written_BHKV


def decayed_scan(inputs: Inputs, chunk: int) -> Array:
    """y_t = S_t^T q_t, with the decays of heads [B, L, H] or of channels [B, L, H, K].

    Args:
        inputs: as of `scalar_decay_scan` or `channel_decay_scan`, without a weight of own values.
        chunk: C, a power of two; as in `scalar_decay_scan` and `channel_decay_scan`.

    Returns:
        y [B, L, H, V], float32.
    """
    if inputs[3].ndim < inputs[0].ndim:
        return scalar_decay_scan(inputs, chunk)
    return channel_decay_scan(_read_after_write(*inputs), chunk)


def decayed_step(inputs: Inputs, state_BHKV: Array) -> tuple[Array, Array]:
    """One position of `decayed_scan`: (y [B, H, V], the next state), float32."""
    if inputs[3].ndim < inputs[0].ndim:
        return scalar_decay_step(inputs, state_BHKV)
    return channel_decay_step(_read_after_write(*inputs), state_BHKV)


def _read_after_write(q: Array, k: Array, v: Array, log_decay: Array) -> Inputs:
    """The inputs of `channel_decay_scan` for queries that read what their token writes."""
    own = (q * k).sum(axis=-1)
    return q * jnp.exp(log_decay), k, v, log_decay, own


def head_decay_scores(
    readers: tuple[Array, ...], k: Array, w: Array
) -> tuple[list[Array], Array, Array, Array]:
    """What chunks need where a head has one decay.

    Args:
        readers: queries, [B, L/C, H, C, K] each.
        k: keys, likewise.
        w: logarithms of the decays, [B, L/C, H, C].

    Returns:
        For each reader r the scores [t, s] = r[t] k[s] (decays after s, up to t) for s <= t, else
        zero; the decays since the chunk's start, up to t; those after t, until its end; all of
        them. These three are broadcastable to [.., C, K], [.., C, K] and [.., K, V].
    """
    decays = jnp.exp(_sums_between(w))
    since, until = jnp.exp(jnp.cumsum(w, axis=-1)), jnp.exp(_sums_after(w, axis=3))
    scores = [r @ jnp.swapaxes(k, -1, -2) * decays for r in readers]
    return scores, since[..., None], until[..., None], since[..., -1:, None]


def channel_decay_scores(
    readers: tuple[Array, ...], k: Array, w: Array
) -> tuple[list[Array], Array, Array, Array]:
    """As `head_decay_scores`, with a decay of each channel of the key: w [B, L/C, H, C, K]."""
    count, kept = len(readers), jnp.exp(w)
    r = jnp.concatenate(readers)
    many_k, many_w, many_kept = (jnp.concatenate([x] * count) for x in (k, w, kept))
    own = (r * many_k).sum(axis=-1)
    scores, before, after, total = _channel_decay_scores(r * many_kept, many_k, many_w, own)
    size = len(k)
    since, until = jnp.exp(before[:size]) * kept, jnp.exp(after[:size])
    return jnp.split(scores, count), since, until, jnp.exp(total[:size])[..., None]


def _channel_decay_scores(
    q: Array, k: Array, w: Array, self_weight: Array
) -> tuple[Array, Array, Array, Array]:
    """Scores within a chunk, [..., C, C], and the sums of log decays up to its edges.

        scores[t, s] = sum_k q[t] k[s] exp(sum of w[j] over s < j < t)    for s < t

    Blocks start at one position and are merged in pairs. Between s in the first block of a
    pair and t in the second are exactly the decays from s to the border and those from the
    border to t, so their scores are one matrix product of (q exp(border to t)) with
    (k exp(s to border)), and both exponents are <= 0.
    """
    lead = q.shape[:-2]
    # Batch and chunks are one axis here: libtpu 0.0.52 fails at products of six axes.
    q, k, w, self_weight = (x.reshape(-1, *x.shape[2:]) for x in (q, k, w, self_weight))

    def halves(x: Array) -> tuple[Array, Array]:
        return x[..., 0::2, :, :], x[..., 1::2, :, :]

    # All are [..., number of blocks, positions in a block, features].
    scores = self_weight[..., None, None]
    q, k, total = (x[..., None, :] for x in (q, k, w))
    before = after = jnp.zeros_like(total)
    while scores.shape[-3] > 1:
        (q1, q2), (k1, k2), (total1, total2) = halves(q), halves(k), halves(total)
        (scores1, scores2), (before1, before2) = halves(scores), halves(before)
        after1, after2 = halves(after)
        across = (q2 * jnp.exp(before2)) @ jnp.swapaxes(k1 * jnp.exp(after1), -1, -2)
        upper = jnp.concatenate([scores1, jnp.zeros_like(across)], axis=-1)
        lower = jnp.concatenate([across, scores2], axis=-1)
        scores = jnp.concatenate([upper, lower], axis=-2)
        before = jnp.concatenate([before1, total1 + before2], axis=-2)
        after = jnp.concatenate([after1 + total2, after2], axis=-2)
        total = total1 + total2
        q = jnp.concatenate([q1, q2], axis=-2)
        k = jnp.concatenate([k1, k2], axis=-2)
    found = scores[..., 0, :, :], before[..., 0, :, :], after[..., 0, :, :], total[..., 0, 0, :]
    return tuple(x.reshape(*lead, *x.shape[2:]) for x in found)  # type: ignore[return-value]


def _sums_after(w: Array, axis: int) -> Array:
    """At each position the sum of all later ones, on `axis`."""
    later, padding = jax.lax.slice_in_dim(w, 1, None, axis=axis), [(0, 0)] * w.ndim
    padding[axis] = (0, 1)
    return jax.lax.cumsum(jnp.pad(later, padding), axis=axis, reverse=True)


def _sums_between(w: Array) -> Array:
    """[..., C] -> [..., C, C]: sum of w[j] over s < j <= t at [t, s]; -inf for s > t."""
    at_C = jnp.arange(w.shape[-1])
    t, s = (jax.lax.broadcast_to_rank(x, w.ndim + 1) for x in (at_C[:, None], at_C))
    # Subtracting two cumulative sums would lose a weak decay after a strong one.
    sums = jnp.cumsum(jnp.where(t > s, w[..., :, None], 0.0), axis=-2)
    return jnp.where(t >= s, sums, -jnp.inf)


def _decays_between(w: Array) -> Array:
    """[..., C] -> [..., C, C]: the decays between two positions, in either order.

    Differences of cumulative sums, but of two: multiples of 1/256, whose sums are exact, and rests,
    whose sums are small. So a weak decay after a strong one is not lost.
    """
    w = jnp.maximum(w, -128.0)  # whose exp is zero in float32
    large = jax.lax.stop_gradient(jnp.round(w * 256) / 256)
    sums = (jnp.cumsum(x, axis=-1) for x in (large, w - large))
    return jnp.exp(-jnp.abs(sum(x[..., :, None] - x[..., None, :] for x in sums)))


def states_before(kept: Array, written: Array) -> Array:
    """The states of s' = kept s + written from zero, in about 16 log16(N) steps for N updates.

    A step of a loop takes a TPU or a GPU microseconds, however little there is to compute. So
    groups of 16 updates are computed side by side, each from a state of zero. Then the same scan
    over the groups finds their first states, and what is kept of these is added.

    Args:
        kept: the factor of each update, [B, N, ...], broadcastable to the state.
        written: what each update adds, [B, N, ...].

    Returns:
        The state before each update, [B, N, ...].
    """
    count = written.shape[1]
    if count <= _GROUP:
        updates = (jnp.moveaxis(kept, 1, 0), jnp.moveaxis(written, 1, 0))
        _, states = jax.lax.scan(_update, jnp.zeros_like(written[:, 0]), updates)
        return jnp.moveaxis(states, 0, 1)
    # [16, B, N/16, ...]; the padding keeps everything and writes nothing.
    kept = jnp.moveaxis(chunked(kept, _GROUP, fill=1.0), 2, 0)
    written = jnp.moveaxis(chunked(written, _GROUP), 2, 0)
    from_zero = (jnp.ones_like(kept[0]), jnp.zeros_like(written[0]))
    (kept_by_group, written_by_group), (kept, states) = jax.lax.scan(
        _compose, from_zero, (kept, written)
    )
    states = states + kept * states_before(kept_by_group, written_by_group)[None]
    return unchunked(jnp.moveaxis(states, 0, 2), count)


Update = tuple[Array, Array]


def _update(state: Array, update: Update) -> tuple[Array, Array]:
    kept, written = update
    return kept * state + written, state


def _compose(so_far: Update, update: Update) -> tuple[Update, Update]:
    """One more update after the composition of those so far."""
    kept, written = update
    return (kept * so_far[0], kept * so_far[1] + written), so_far


def by_chunks_and_heads(x: Array, chunk: int) -> Array:
    """[B, L, H, ...] -> [B, L/C, H, C, ...], padded as by `_chunks`."""
    return jnp.moveaxis(_chunks(x, chunk), 2, 3)


def _chunks(x: Array, chunk: int) -> Array:
    """[B, L, ...] -> [B, L/C, C, ...] in float32.

    The padding is zeros: positions that decay nothing (log 1 = 0) and write nothing.
    """
    return chunked(x.astype(jnp.float32), chunk)
