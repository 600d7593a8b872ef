"""The recurrences of RWKV-6, Mamba, Mamba-2, S4 and S4D, one position at a time."""

import jax.numpy as jnp
import numpy as np


def scalar_decay(q, k, v, log_decay):
    """S_t = exp(a_t) S_{t-1} + k_t v_t^T, y_t = S_t^T q_t: a delta rule that erases nothing."""
    return delta_rule(q, k, v, jnp.zeros_like(k), log_decay)


def channel_decay(q, k, v, log_decay, self_weight):
    """y_t = S_{t-1}^T q_t + self_t v_t, then S_t = diag(w_t) S_{t-1} + k_t v_t^T."""
    batch, length, heads, width = q.shape
    state = jnp.zeros((batch, heads, width, v.shape[-1]))
    out = []
    for t in range(length):
        read = (q[:, t, :, :, None] * state).sum(axis=2)
        out.append(read + self_weight[:, t, :, None] * v[:, t])
        written = k[:, t, :, :, None] * v[:, t, :, None, :]
        state = jnp.exp(log_decay[:, t])[..., None] * state + written
    return jnp.stack(out, 1), state


def delta_rule(q, k, v, e, log_decay):
    """S' = diag(w_t) S_{t-1}, S_t = S' + k_t (v_t - S'^T e_t)^T, y_t = S_t^T q_t."""
    batch, length, heads, width = q.shape
    state = jnp.zeros((batch, heads, width, v.shape[-1]))
    out = []
    for t in range(length):
        state = jnp.exp(log_decay[:, t]).reshape(batch, heads, -1, 1) * state
        change = v[:, t] - (e[:, t, :, :, None] * state).sum(axis=2)
        state = state + k[:, t, :, :, None] * change[:, :, None]
        out.append((q[:, t, :, :, None] * state).sum(axis=2))
    return jnp.stack(out, 1), state


def bilinear_impulse(a, b, c, dt, length):
    """y_0 ... y_(L-1) of x' = a x + b u, y = c x by the bilinear method, for the input 1, 0, 0 ...

    a [N, N], b and c [N] of one system; complex128, with dense matrices.
    """
    a, eye = np.asarray(a, np.complex128), np.eye(len(a))
    inverse = np.linalg.inv(eye - dt / 2 * a)
    step, state, out = inverse @ (eye + dt / 2 * a), inverse @ (dt * np.asarray(b)), []
    for _ in range(length):
        out.append(np.asarray(c) @ state)
        state = step @ state
    return np.array(out)
