"""Complete recurrent mixers, one token at a time.

Each takes a mixer's parameters, one sequence x [L, D], the mixer's options and its
context, and returns [L, D]. Written from the papers' equations, token by token, with none
of the package's array functions.
"""

from functools import partial

import jax
import jax.numpy as jnp


def linear(p, x):
    return x @ p["kernel"] + p.get("bias", 0.0)


def over_tokens(token, start, x):
    """The outputs of `token`: (state, x_t) -> (state, y_t)."""
    return jax.lax.scan(token, start, x)[1]


def shifted_in(window, x):
    """The window [W, E] one token later, its newest row x."""
    return jnp.concatenate([window[1:], x[None]])


def mamba(p, x, options, context):
    n, rank = options.state_size, options.dt_rank or -(-context.d_model // 16)
    inner = options.expand * context.d_model

    def token(state, x):
        window, hidden = state
        window = shifted_in(window, linear(p["into"], x))
        u = jax.nn.silu((window * p["conv"]["kernel"]).sum(0) + p["conv"]["bias"])
        low, b, c = jnp.split(linear(p["select"], u), [rank, rank + n])
        delta = jnp.log1p(jnp.exp(linear(p["delta"], low) + p["delta_bias"]))
        decay = jnp.exp(-delta[:, None] * jnp.exp(p["log_decay"]))
        hidden = decay * hidden + jnp.outer(delta * u, b)
        y = (hidden @ c + p["skip"] * u) * jax.nn.silu(linear(p["gate"], x))
        return (window, hidden), linear(p["out"], y)

    start = jnp.zeros((options.conv_width, inner)), jnp.zeros((inner, n))
    return over_tokens(token, start, x)


def ssd(p, x, options, context):
    head_dim = options.head_dim or context.head_dim
    width, n = options.expand * context.d_model, options.state_size
    heads, mixed = width // head_dim, width + 2 * options.groups * n

    def token(state, x):
        window, matrix = state
        window = shifted_in(window, linear(p["into"], x))
        u = jax.nn.silu((window * p["conv"]["kernel"]).sum(0) + p["conv"]["bias"])
        values = u[:width].reshape(heads, head_dim)
        b, c = u[width:].reshape(2, options.groups, n)
        delta = jnp.log1p(jnp.exp(linear(p["delta"], x) + p["delta_bias"]))
        new, y = [], []
        for h in range(heads):
            g = h * options.groups // heads
            decay = jnp.exp(-delta[h] * jnp.exp(p["log_decay"][h]))
            new.append(decay * matrix[h] + jnp.outer(b[g], delta[h] * values[h]))
            y.append(c[g] @ new[h] + p["skip"][h] * values[h])
        y = jnp.concatenate(y) * jax.nn.silu(linear(p["gate"], x))
        parts = y.reshape(options.groups, -1)
        parts = parts / jnp.sqrt((parts**2).mean(-1, keepdims=True) + 1e-5)
        out = linear(p["out"], parts.reshape(-1) * p["norm"]["scale"])
        return (window, jnp.stack(new)), out

    start = jnp.zeros((options.conv_width, mixed)), jnp.zeros((heads, n, head_dim))
    return over_tokens(token, start, x)


def rwkv7(p, x, options, context):
    heads, k_dim = context.num_heads, context.head_dim

    def low_rank(q, x, middle=jnp.tanh):
        return q["bias"] + middle(x @ q["down"]["kernel"]) @ q["up"]["kernel"]

    def token(state, now):
        before, matrix = state
        lerps = (now + (before - now) * blend for blend in p["blends"])
        to_r, to_w, to_k, to_v, to_a, to_g = lerps
        r, k, v = linear(p["receptance"], to_r), linear(p["key"], to_k), linear(p["value"], to_v)
        w = jnp.exp(-jnp.exp(-0.5) * jax.nn.sigmoid(low_rank(p["decay"], to_w)))
        a = jax.nn.sigmoid(low_rank(p["rate"], to_a, lambda x: x))
        c, k = k * p["erased_scale"], k * (1 + (a - 1) * p["key_rate"])
        r, k, v, w, a, c, u = (z.reshape(heads, k_dim) for z in (r, k, v, w, a, c, p["bonus"]))
        new, y, own = [], [], []
        for h in range(heads):
            unit_c = c[h] / jnp.sqrt((c[h] ** 2).sum())
            kept = jnp.diag(w[h]) - jnp.outer(a[h] * unit_c, unit_c)
            new.append(kept @ matrix[h] + jnp.outer(k[h], v[h]))
            y.append(r[h] @ new[h])
            own.append((r[h] * k[h] * u[h]).sum() * v[h])
        y = jnp.stack(y)
        y = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 64e-5)
        y = y.reshape(-1) * p["norm"]["scale"] + p["norm"]["bias"] + jnp.concatenate(own)
        gate = low_rank(p["gate"], to_g, jax.nn.sigmoid)
        return (now, jnp.stack(new)), linear(p["out"], y * gate)

    start = jnp.zeros(x.shape[-1]), jnp.zeros((heads, k_dim, k_dim))
    return over_tokens(token, start, x)


def rwkv(p, x, options, context):
    if options.version == 7:
        return rwkv7(p, x, options, context)
    heads, k_dim = context.num_heads, context.head_dim
    bonus = p["bonus"].reshape(heads, k_dim)

    def low_rank(q, x):
        return q["bias"] + jnp.tanh(x @ q["down"]["kernel"]) @ q["up"]["kernel"]

    def token(state, now):
        before, matrix = state
        guide = now + (before - now) * p["blend"]

        def lerp(name):
            return now + (before - now) * low_rank(p[f"lerp_{name}"], guide)

        r, k, v = (
            linear(p[name], lerp(name)).reshape(heads, k_dim)
            for name in ("receptance", "key", "value")
        )
        decay = jnp.exp(-jnp.exp(low_rank(p["decay"], lerp("decay")))).reshape(heads, k_dim)
        new, y = [], []
        for h in range(heads):
            pair = jnp.outer(k[h], v[h])
            y.append(r[h] @ (matrix[h] + bonus[h][:, None] * pair))
            new.append(decay[h][:, None] * matrix[h] + pair)
        y = jnp.stack(y)
        y = (y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 64e-5)
        y = y.reshape(-1) * p["norm"]["scale"] + p["norm"]["bias"]
        out = linear(p["out"], y * jax.nn.silu(linear(p["gate"], lerp("gate"))))
        return (now, jnp.stack(new)), out

    start = jnp.zeros(x.shape[-1]), jnp.zeros((heads, k_dim, k_dim))
    return over_tokens(token, start, x)


def diagonal(p, direction=0):
    """(e^(dt A), the effect of a unit input, C) of diagonal systems with zero-order hold."""
    a = -jnp.exp(p["log_decay"]) + 1j * p["frequency"]
    power = jnp.exp(a * jnp.exp(p["log_dt"])[:, None])
    c = p["output_map"][direction]
    return power, (power - 1) / a, c[..., 0] + 1j * c[..., 1]


def _s4d_sums(p, x, direction):
    power, entry, c = diagonal(p["systems"], direction)

    def token(state, u):
        state = power * state + entry * u[:, None]
        return state, 2 * (c * state).sum(-1).real

    return over_tokens(token, jnp.zeros_like(power), x)


def _s4_sums(p, x, direction):
    """Bilinear method with the dense matrix of all N states, those of each pair included."""
    p = p["systems"]

    def states(name):
        half = p[name][..., 0] + 1j * p[name][..., 1]
        return jnp.concatenate([half, half.conj()], axis=-1)

    pole = -jnp.exp(p["log_decay"]) + 1j * p["frequency"]
    pole, low_rank = jnp.concatenate([pole, pole.conj()], axis=-1), states("low_rank")
    eye, half_dt = jnp.eye(pole.shape[-1]), 0.5 * jnp.exp(p["log_dt"])[:, None, None]
    a = pole[:, None] * eye - low_rank[:, :, None] * low_rank[:, None].conj()
    inverse = jnp.linalg.inv(eye - half_dt * a)
    power = inverse @ (eye + half_dt * a)
    entry = 2 * half_dt[..., 0] * jnp.einsum("dnm,dm->dn", inverse, states("input_map"))
    c = states("output_map")[direction]

    def token(state, u):
        state = jnp.einsum("dnm,dm->dn", power, state) + entry * u[:, None]
        return state, (c * state).sum(-1).real

    return over_tokens(token, jnp.zeros_like(pole), x)


def _convolved(p, x, options, context, sums_of):
    y = sums_of(p, x, 0)
    if not context.causal:  # the second systems read what strictly follows, backwards
        behind = sums_of(p, x[::-1], 1)[::-1]
        y = y + jnp.concatenate([behind[1:], jnp.zeros_like(behind[:1])])
    value, gate = jnp.split(linear(p["out"], jax.nn.gelu(y + p["skip"] * x)), 2, axis=-1)
    return value * jax.nn.sigmoid(gate)


def h3(p, x, options, context):
    width = options.head_dim
    heads = context.d_model // width
    power, entry, c = diagonal(p["systems"])

    def token(state, x):
        window, memory = state
        window = shifted_in(window, linear(p["key"], x))
        k = (window * p["shift"][::-1]).sum(0) + p["shift_skip"] * window[-1]
        k, v = k.reshape(heads, width), linear(p["value"], x).reshape(heads, width)
        q = linear(p["query"], x).reshape(heads, width)
        pair = k[:, :, None] * v[:, None, :]
        memory = power[:, None, None] * memory + entry[:, None, None] * pair[..., None]
        seen = 2 * (c[:, None, None] * memory).sum(-1).real + p["skip"][:, None, None] * pair
        out = linear(p["out"], jnp.concatenate([q[h] @ seen[h] for h in range(heads)]))
        return (window, memory), out

    start = (
        jnp.zeros((options.shift_size, context.d_model)),
        jnp.zeros((heads, width, width, power.shape[-1]), power.dtype),
    )
    return over_tokens(token, start, x)


def ssru(p, x, options, context):
    def token(cell, x):
        keep = 1 / (1 + jnp.exp(-linear(p["forget"], x)))
        cell = keep * cell + (1 - keep) * linear(p["into"], x)
        return cell, jnp.maximum(cell, 0)

    return over_tokens(token, jnp.zeros(x.shape[-1]), x)


def unit(x):
    return x / jnp.sqrt((x**2).sum() + 1e-6)


def _decays(p, x, options, heads):
    """The decay of each head, of its one channel or of all: [H, 1 or K]."""
    if options.decay == "none":
        return jnp.ones((heads, 1))
    if options.decay == "fixed":
        return jnp.array([[1 - 2.0 ** (-5 - h)] for h in range(heads)])
    low = linear(p["delta_low"], x) if options.decay == "channel" else x
    steps = jnp.log1p(jnp.exp(linear(p["delta"], low) + p["delta_bias"]))
    return jnp.exp(-jnp.exp(p["log_decay"])[:, None] * steps.reshape(heads, -1))


def _strengths(p, x, options, heads):
    """How much of its own value a token finds in the state it erases, and how much it writes."""
    names = ("erase", "write") if options.strength == "apart" else ("strength", "strength")
    return (jax.nn.sigmoid(linear(p[name], x)).reshape(heads, -1) for name in names)


def _gated_linear(p, x, options, context, is_delta):
    heads, width = context.num_heads, context.head_dim
    values = options.expand * width

    def token(state, x):
        window, matrix = state
        window = shifted_in(window, linear(p["into"], x))
        u = window[-1]
        if options.conv_width:
            u = (window * p["conv"]["kernel"]).sum(0) + p["conv"]["bias"]
        if options.conv_width or is_delta:
            u = jax.nn.silu(u)
        q, k, v = jnp.split(u, [heads * width, 2 * heads * width])
        q, k, v = q.reshape(heads, width), k.reshape(heads, width), v.reshape(heads, values)
        kept = _decays(p, x, options, heads)
        if is_delta:
            erase, write = _strengths(p, x, options, heads)
        new, y = [], []
        for h in range(heads):
            decayed, key, query, change = kept[h][:, None] * matrix[h], k[h], q[h], v[h]
            if is_delta:
                key, query = unit(key), unit(query)
                change = write[h] * change - (erase[h] * key) @ decayed
            new.append(decayed + jnp.outer(key, change))
            read = query @ new[h] / jnp.sqrt(width)
            y.append(read / jnp.sqrt((read**2).mean() + 1e-6))
        y = jnp.concatenate(y) * p["norm"]["scale"]
        gate = getattr(jax.nn, options.gate)(linear(p["gate"], x))
        return (window, jnp.stack(new)), linear(p["out"], y * gate)

    mixed = heads * (2 * width + values)
    start = jnp.zeros((options.conv_width or 1, mixed)), jnp.zeros((heads, width, values))
    return over_tokens(token, start, x)


MIXERS = {
    "gated_deltanet": partial(_gated_linear, is_delta=True),
    "gla": partial(_gated_linear, is_delta=False),
    "h3": h3,
    "mamba": mamba,
    "rwkv": rwkv,
    "s4": partial(_convolved, sums_of=_s4_sums),
    "s4d": partial(_convolved, sums_of=_s4d_sums),
    "ssd": ssd,
    "ssru": ssru,
}
