"""Mamba, Mamba-2, RWKV-6, S4D and H3 whole, one token after the other.

Each takes a mixer's parameters, one sequence x [L, D], the mixer's options and its
context, and returns [L, D]. Written from the papers' equations, token by token, with
none of the package's array functions.
"""

import jax
import jax.numpy as jnp


def linear(p, x):
    return x @ p["kernel"] + p.get("bias", 0.0)


def causal_taps(kernel, xs, t):
    """sum_w kernel[w] x_{t - width + 1 + w}; nothing stands before the first token."""
    width = len(kernel)
    return sum(kernel[w] * xs[t - width + 1 + w] for w in range(width) if t - width + 1 + w >= 0)


def mamba(p, x, options, context):
    n, rank = options.state_size, options.dt_rank or -(-context.d_model // 16)
    inner = linear(p["into"], x)
    hidden, out = jnp.zeros((inner.shape[-1], n)), []
    for t in range(len(x)):
        u = jax.nn.silu(causal_taps(p["conv"]["kernel"], inner, t) + p["conv"]["bias"])
        low, b, c = jnp.split(linear(p["select"], u), [rank, rank + n])
        delta = jnp.log1p(jnp.exp(linear(p["delta"], low) + p["delta_bias"]))
        decay = jnp.exp(-delta[:, None] * jnp.exp(p["log_decay"]))
        hidden = decay * hidden + jnp.outer(delta * u, b)
        y = (hidden @ c + p["skip"] * u) * jax.nn.silu(linear(p["gate"], x[t]))
        out.append(linear(p["out"], y))
    return jnp.stack(out)


def ssd(p, x, options, context):
    head_dim = options.head_dim or context.head_dim
    width = options.expand * context.d_model
    heads, n = width // head_dim, options.state_size
    mixed = linear(p["into"], x)
    state, out = jnp.zeros((heads, n, head_dim)), []
    for t in range(len(x)):
        u = jax.nn.silu(causal_taps(p["conv"]["kernel"], mixed, t) + p["conv"]["bias"])
        values = u[:width].reshape(heads, head_dim)
        b, c = u[width:].reshape(2, options.groups, n)
        delta = jnp.log1p(jnp.exp(linear(p["delta"], x[t]) + p["delta_bias"]))
        y = []
        for h in range(heads):
            g = h * options.groups // heads
            decay = jnp.exp(-delta[h] * jnp.exp(p["log_decay"][h]))
            new = decay * state[h] + jnp.outer(b[g], delta[h] * values[h])
            state = state.at[h].set(new)
            y.append(c[g] @ new + p["skip"][h] * values[h])
        y = jnp.concatenate(y) * jax.nn.silu(linear(p["gate"], x[t]))
        parts = y.reshape(options.groups, -1)
        parts = parts / jnp.sqrt((parts**2).mean(-1, keepdims=True) + 1e-5)
        out.append(linear(p["out"], parts.reshape(-1) * p["norm"]["scale"]))
    return jnp.stack(out)


def rwkv(p, x, options, context):
    heads, k_dim = context.num_heads, context.head_dim
    state, before, out = jnp.zeros((heads, k_dim, k_dim)), jnp.zeros(x.shape[-1]), []
    bonus = p["bonus"].reshape(heads, k_dim)

    def low_rank(q, x):
        return q["bias"] + jnp.tanh(x @ q["down"]["kernel"]) @ q["up"]["kernel"]

    for now in x:
        guide = now + (before - now) * p["blend"]

        def lerp(name, now=now, before=before, guide=guide):
            return now + (before - now) * low_rank(p[f"lerp_{name}"], guide)

        r, k, v = (
            linear(p[name], lerp(name)).reshape(heads, k_dim)
            for name in ("receptance", "key", "value")
        )
        decay = jnp.exp(-jnp.exp(low_rank(p["decay"], lerp("decay")))).reshape(heads, k_dim)
        y = []
        for h in range(heads):
            pair = jnp.outer(k[h], v[h])
            y.append(r[h] @ (state[h] + bonus[h][:, None] * pair))
            state = state.at[h].set(decay[h][:, None] * state[h] + pair)
        y = jnp.stack(y)
        y = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 64e-5)
        y = y.reshape(-1) * p["norm"]["scale"] + p["norm"]["bias"]
        out.append(linear(p["out"], y * jax.nn.silu(linear(p["gate"], lerp("gate")))))
        before = now
    return jnp.stack(out)


def _diagonal(p, direction=0):
    """(e^(dt A), what a unit input adds, C) of diagonal systems held constant over steps."""
    a = -jnp.exp(p["log_decay"]) + 1j * p["frequency"]
    power = jnp.exp(a * jnp.exp(p["log_dt"])[:, None])
    c = p["output_map"][direction]
    return power, (power - 1) / a, c[..., 0] + 1j * c[..., 1]


def _s4d_sums(p, x, direction):
    power, entry, c = _diagonal(p["systems"], direction)
    state, out = jnp.zeros(power.shape, complex), []
    for u in x:
        state = power * state + entry * u[:, None]
        out.append(2 * (c * state).sum(-1).real)
    return jnp.stack(out)


def s4d(p, x, options, context):
    y = _s4d_sums(p, x, 0)
    if not context.causal:  # the second systems read what strictly follows, backwards
        behind = _s4d_sums(p, x[::-1], 1)[::-1]
        y = y + jnp.concatenate([behind[1:], jnp.zeros_like(behind[:1])])
    value, gate = jnp.split(linear(p["out"], jax.nn.gelu(y + p["skip"] * x)), 2, axis=-1)
    return value * jax.nn.sigmoid(gate)


def h3(p, x, options, context):
    width = options.head_dim
    heads = context.d_model // width
    power, entry, c = _diagonal(p["systems"])
    state, out = jnp.zeros((heads, width, width, power.shape[-1]), complex), []
    keys = linear(p["key"], x)
    for t in range(len(x)):
        k = causal_taps(p["shift"][::-1], keys, t) + p["shift_skip"] * keys[t]
        k, v = k.reshape(heads, width), linear(p["value"], x[t]).reshape(heads, width)
        q = linear(p["query"], x[t]).reshape(heads, width)
        pair = k[:, :, None] * v[:, None, :]
        state = power[:, None, None] * state + entry[:, None, None] * pair[..., None]
        memory = 2 * (c[:, None, None] * state).sum(-1).real + p["skip"][:, None, None] * pair
        out.append(linear(p["out"], jnp.concatenate([q[h] @ memory[h] for h in range(heads)])))
    return jnp.stack(out)


MIXERS = {"h3": h3, "mamba": mamba, "rwkv": rwkv, "s4d": s4d, "ssd": ssd}
