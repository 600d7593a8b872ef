"""Bergamot's engine in NumPy: a `model.bin` read and computed as its C++ sources do it.

One sentence at a time, in float32, with none of the package's code: names, equations and the layout
of the file are those of browsermt/marian-dev (`binary.cpp`, `transformer.h`, `rnn/cells.h`).
"""

import struct

import numpy as np
import yaml


def read(path):
    """(tensors by name, options) of a file of float32."""
    data = path.read_bytes()
    version, count = struct.unpack_from("<2Q", data)
    assert version == 1
    heads = [struct.unpack_from("<4Q", data, 16 + 32 * i) for i in range(count)]
    place = 16 + 32 * count
    names, shapes, arrays = [], [], {}
    for length, *_ in heads:
        names.append(data[place : place + length - 1].decode())
        place += length
    for _, _, rank, _ in heads:
        shapes.append(struct.unpack_from(f"<{rank}i", data, place))
        place += 4 * rank
    place += 8 + struct.unpack_from("<Q", data, place)[0]
    assert place % 256 == 0
    for name, shape, (_, kind, _, length) in zip(names, shapes, heads, strict=True):
        assert length % 256 == 0
        dtype = {0x404: np.float32, 0x101: np.int8}[kind]
        arrays[name] = np.frombuffer(data, dtype, int(np.prod(shape)), place).reshape(shape)
        place += length
    assert place == len(data)
    options = yaml.safe_load(arrays.pop("special:model.yml").tobytes().rstrip(b"\0"))
    return arrays, options


class NaiveBergamot:
    """One model; ids are those of the SentencePiece models."""

    def __init__(self, path):
        self.w, self.options = read(path)
        self.recurrent = self.options["transformer-decoder-autoreg"] == "rnn"

    def embedded(self, side, ids, first=0):
        """[L, D], None stands for zeros."""
        table = self.w["Wemb"] if "Wemb" in self.w else self.w[f"{side}_Wemb"]
        width = table.shape[1]
        words = np.stack([np.zeros(width) if i is None else table[i] for i in ids])
        places = np.arange(first, first + len(ids))[:, None]
        angles = places * 10000.0 ** (-np.arange(width // 2) / (width // 2 - 1))
        waves = np.concatenate([np.sin(angles), np.cos(angles)], 1)
        return (words * np.sqrt(width) + waves).astype(np.float32)

    def norm(self, name, x):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        return x * self.w[f"{name}_ln_scale"] + self.w[f"{name}_ln_bias"]

    def dense(self, name, kind, x):
        return x @ self.w[f"{name}_W{kind}"] + self.w[f"{name}_b{kind}"]

    def attention(self, name, x, memory, causal=False):
        q = self.dense(name, "q", x)
        k, v = (self.dense(name, kind, memory) for kind in "kv")
        heads = []
        for q_h, k_h, v_h in zip(
            *(np.split(y, self.options["transformer-heads"], 1) for y in (q, k, v)), strict=True
        ):
            scores = q_h @ k_h.T / np.sqrt(q_h.shape[1])
            if causal:
                scores = np.where(np.tri(len(x)) > 0, scores, -np.inf)
            weights = np.exp(scores - scores.max(1, keepdims=True))
            heads.append(weights / weights.sum(1, keepdims=True) @ v_h)
        return self.norm(f"{name}_Wo", x + self.dense(name, "o", np.concatenate(heads, 1)))

    def feed_forward(self, name, x):
        up = self.dense(f"{name}_ffn", "1", x)
        kind = self.options["transformer-ffn-activation"]
        up = {"relu": np.maximum(up, 0), "swish": up / (1 + np.exp(-up))}[kind]
        return self.norm(f"{name}_ffn_ffn", x + self.dense(f"{name}_ffn", "2", up))

    def ssru(self, name, x):
        keep = 1 / (1 + np.exp(-self.dense(f"{name}_rnn", "f", x)))
        new, cell, outputs = x @ self.w[f"{name}_rnn_W"], 0.0, []
        for f, w in zip(keep, new, strict=True):
            cell = f * cell + (1 - f) * w
            outputs.append(np.maximum(cell, 0))
        return self.norm(f"{name}_rnn_ffn", x + np.stack(outputs))

    def memory(self, ids):
        x = self.embedded("encoder", ids)
        for i in range(self.options["enc-depth"]):
            name = f"encoder_l{i + 1}"
            x = self.feed_forward(name, self.attention(f"{name}_self", x, x))
        return x

    def logits(self, memory, target):
        """[T + 1, V] before each token of `target` and after the last."""
        x = self.embedded("decoder", [None, *target])
        for i in range(self.options["dec-depth"]):
            name = f"decoder_l{i + 1}"
            if self.recurrent:
                x = self.ssru(name, x)
            else:
                x = self.attention(f"{name}_self", x, x, causal=True)
            x = self.feed_forward(name, self.attention(f"{name}_context", x, memory))
        w = self.w
        if "decoder_ff_logit_out_W" in w:
            matrix = w["decoder_ff_logit_out_W"]
        else:
            matrix = (w["Wemb"] if "Wemb" in w else w["decoder_Wemb"]).T
        return x @ matrix + w["decoder_ff_logit_out_b"]

    def greedy(self, source, eos, limit):
        """The translation without EOS."""
        memory, found = self.memory(source), []
        while len(found) < limit - 1:
            best = int(self.logits(memory, found)[-1].argmax())
            if best == eos:
                break
            found.append(best)
        return found
