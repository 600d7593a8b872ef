"""Causal and two-sided convolutions along the sequence, one filter per channel.

    y_t = sum_{0 <= l <= t} kernel[l] u_{t-l}

`short_convolution` is for a handful of taps, `long_convolution` for filters as long as the
sequence. The latter is O(L log L) by FFT (Gu et al. 2021, arXiv:2111.00396), in float32. The
rounding of an FFT, about 1e-7 of the largest term, is not causal: a late input can change an
early output by that much. Up to `direct_length` positions the plain sum is computed instead,
as a Toeplitz matrix product. It is exactly causal, and cheaper than three transforms there.
"""

import jax.numpy as jnp
from jax import Array


def short_convolution(x_BLE: Array, kernel_WE: Array) -> Array:
    """[B, L, E] by W shifted sums; kernel[W - 1] multiplies the position itself."""
    width, length = kernel_WE.shape[0], x_BLE.shape[1]
    x = jnp.pad(x_BLE, ((0, 0), (width - 1, 0), (0, 0)))
    # A sum of slices, since XLA's depthwise convolution is slow on a CPU.
    return sum(x[:, w : w + length] * kernel_WE[None, None, w] for w in range(width))  # type: ignore[return-value]


def short_convolution_step(x_BE: Array, window_BPE: Array, kernel_WE: Array) -> tuple[Array, Array]:
    """One position: (y, the next window); `window` holds the P = W - 1 inputs before it."""
    inputs_BWE = jnp.concatenate([window_BPE, x_BE[:, None].astype(window_BPE.dtype)], axis=1)
    return (inputs_BWE * kernel_WE[None]).sum(axis=1), inputs_BWE[:, 1:]


def long_convolution(
    u_BLD: Array, kernel: Array, reverse_kernel: Array | None = None, *, direct_length: int
) -> Array:
    """Convolves each channel with its filter; float32.

    Args:
        u_BLD: inputs, zero at padding.
        kernel: the filter [any length, D], padded with zeros or cut to L.
        reverse_kernel: a filter over the later inputs, likewise, y_t += sum_l reverse[l] u_{t+1+l};
            None for a causal convolution.
        direct_length: the longest sequence that is convolved by the plain sum.
    """
    length = u_BLD.shape[1]
    u_BLD, kernel = u_BLD.astype(jnp.float32), kernel[:length].astype(jnp.float32)
    if reverse_kernel is None:
        reverse_kernel = jnp.zeros_like(kernel[:1])
    later = reverse_kernel[: max(length - 1, 1)].astype(jnp.float32)
    if length <= direct_length:
        return _direct(u_BLD, kernel, later)
    size = 1 << (2 * length - 1).bit_length()
    # Lag -1 - l of a circular convolution has index size - 1 - l.
    middle = jnp.zeros((size - kernel.shape[0] - later.shape[0], u_BLD.shape[-1]))
    circular = jnp.concatenate([kernel, middle, later[::-1]])
    spectrum = jnp.fft.rfft(u_BLD, n=size, axis=1) * jnp.fft.rfft(circular[None], axis=1)
    return jnp.fft.irfft(spectrum, n=size, axis=1)[:, :length]


def _direct(u_BLD: Array, kernel: Array, later: Array) -> Array:
    length = u_BLD.shape[1]
    kernel, later = (jnp.pad(x, ((0, length - len(x)), (0, 0))) for x in (kernel, later))
    by_lag = jnp.concatenate([kernel, later[::-1]])  # lags 0 ... L - 1, -L ... -1
    # Row s of a Toeplitz matrix is the lags shifted by s. Repeating all 2L lags and cutting
    # rows of 2L - 1 shifts each row by one more, without a gather.
    sheared = jnp.tile(by_lag, (length, 1))[: length * (2 * length - 1)]
    toeplitz_STD = sheared.reshape(length, 2 * length - 1, -1)[:, :length]
    return jnp.einsum("std,bsd->btd", toeplitz_STD, u_BLD)
