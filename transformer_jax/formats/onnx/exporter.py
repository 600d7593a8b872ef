"""ONNX, for onnxruntime on every system, with the files and names of Optimum and Transformers.js.

`onnx/encoder_model.onnx` and `onnx/decoder_model_merged.onnx`, in int8 with `_quantized` in their
names, beside `config.json`, `generation_config.json`, `vocab.json` (the id of each piece) and the
SentencePiece models.

The decoder reads one token at a time. What it keeps are keys and values, or the numbers of an SSRU,
and without keys that say how many tokens there were, this number. On the first token it projects
the memory; later it returns nothing of it, as Optimum's decoders.

Positions and sparse mixers become tables (`stack_tables.py`). Grouped heads are written one by one.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from etils import epath

from transformer_jax.config import Config
from transformer_jax.errors import optional
from transformer_jax.formats.exporter import (
    Exporter,
    TrainedModel,
    check_expressed,
    write_pieces,
)
from transformer_jax.formats.onnx.graph import BOOL, FLOAT, INT64, Graph
from transformer_jax.formats.stack_tables import EXPRESSED, StackTables, widened
from transformer_jax.layers.feed_forward import Glu
from transformer_jax.layers.norms import RMSNorm
from transformer_jax.mixers.ssru import SSRU
from transformer_jax.models.config import StackConfig, mixer_context
from transformer_jax.models.paths import by_path
from transformer_jax.models.transformer import UNUSED
from transformer_jax.positions.rope import Rope, rotated
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID


@dataclass(frozen=True)
class Onnx(Exporter):
    """A folder for onnxruntime; its search is greedy."""

    quantization: Literal["float32", "int8"] = "float32"  #: of matrices and their products

    def check(self, config: Config) -> None:
        optional("onnx", "format=onnx", "onnx")
        check_expressed(config.model, EXPRESSED | {SSRU: frozenset()}, "ONNX")
        # It is written in the decoder alone.
        check_expressed(replace(config.model, decoder=StackConfig()), EXPRESSED, "ONNX")

    def write(self, model: TrainedModel, folder: epath.Path) -> None:
        (folder / "onnx").mkdir()
        suffix = "_quantized" if self.quantization == "int8" else ""
        for name, half in (("encoder_model", _Encoder), ("decoder_model_merged", _Decoder)):
            half(model, Graph(bool(suffix))).graph.save(folder / "onnx" / f"{name}{suffix}.onnx")
        files = _settings(model)
        tokenizers = model.tokenizers.source, model.tokenizers.target
        names = ("vocab.json", "target_vocab.json")[: 2 - model.tokenizers.joint]
        for name, side in zip(names, tokenizers, strict=False):
            files[name] = {piece: i for i, piece in enumerate(side.pieces(range(side.vocab_size)))}
        for name, values in files.items():
            (folder / name).write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n")
        write_pieces(model, folder)


def _settings(model: TrainedModel) -> dict[str, dict[str, Any]]:
    """The content of the two files of settings."""
    config, tokenizers = model.config.model, model.tokenizers
    ids = {"pad_token_id": PAD_ID, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID}
    ids["decoder_start_token_id"] = BOS_ID if config.start_id is None else config.start_id
    never = {PAD_ID, BOS_ID, *config.unused_ids, *[UNK_ID] * (not model.config.decode.allow_unk)}
    search = {"num_beams": 1, "suppress_tokens": sorted(never), "max_length": config.max_length}
    about = {
        "model_type": "marian",  # whose inputs and outputs they are
        "is_encoder_decoder": True,
        "vocab_size": tokenizers.target.vocab_size,
        "d_model": config.num_heads * mixer_context(config).head_dim,
        "source_prefix": list(tokenizers.source.prefix),
        "target_prefix": list(tokenizers.target.prefix),
    }
    for side in ("encoder", "decoder"):
        about[f"{side}_layers"] = getattr(config, side).num_layers
        about[f"{side}_attention_heads"] = config.num_heads
    return {"config.json": about | ids, "generation_config.json": ids | search}


#: Of a layer's number and what it reads.
_Mix = Callable[[int, str], str]


class _Half:
    """The encoder or the decoder. What is written is taken out of `_flat`."""

    causal = False
    _PARTS = ("query", "key", "value")

    def __init__(self, model: TrainedModel, graph: Graph) -> None:
        self.graph, self._config = graph, model.config.model
        self._stack = StackTables(self._config, self.causal, model.params)
        self._flat = {path: np.asarray(a, np.float32) for path, a in by_path(model.params).items()}
        context = mixer_context(self._config)
        self._heads, self._width = context.num_heads, context.head_dim
        self._biases: dict[bytes, str] = {}
        self._write()
        unread = [path for path in self._flat if path.startswith(f"{self._stack.name}/blocks")]
        assert not unread, f"not exported: {', '.join(unread)}"

    def _write(self) -> None:
        raise NotImplementedError

    def _run(self, words: str, width: int, positions: str, **mixes: _Mix) -> str:
        """All layers; `width` is that of the words, and `mixes` are `mixer` and `cross`."""
        g, config, stack = self.graph, self._config, self._stack
        x = g("Mul", words, np.float32(config.embedding_scale or width**0.5))
        if "embed" in stack.hooks:
            x = g("Add", x, g("Gather", stack.encodings(), positions))
        if config.embedding_norm:
            x = self._norm(f"{stack.name}/first_norm", x)
        is_pre = config.norm_placement == "pre"
        for layer in range(len(stack.mixers)):
            for part, mix in (mixes | {"feed_forward": self._feed_forward}).items():
                norm = f"{stack.name}/blocks_{layer}/{part}_residual/norm"
                x = g("Add", x, mix(layer, self._norm(norm, x) if is_pre else x))
                x = x if is_pre else self._norm(norm, x)
        return self._norm(f"{stack.name}/last_norm", x) if is_pre else x

    def _norm(self, name: str, x: str) -> str:
        g, epsilon = self.graph, self._config.norm.epsilon
        paths = (f"{name}/scale", f"{name}/bias")
        weights = [self._flat.pop(path) for path in paths if path in self._flat]
        if not isinstance(self._config.norm, RMSNorm):
            return g("LayerNormalization", x, *weights, epsilon=epsilon)
        square = g("ReduceMean", g("Mul", x, x), axes=[-1])
        return g("Mul", g("Div", x, g("Sqrt", g("Add", square, np.float32(epsilon)))), *weights)

    def _dense(self, x: str, *names: str, form: Callable[[Any], Any] = np.asarray) -> str:
        """One product with the kernels of all names, side by side."""
        kernels = [self._flat.pop(f"{name}/kernel") for name in names]
        biases = [
            self._flat.pop(f"{name}/bias", np.zeros(kernel.shape[-1:], np.float32))
            for name, kernel in zip(names, kernels, strict=True)
        ]
        kernel, bias = (np.concatenate([*map(form, each)], -1) for each in (kernels, biases))
        y = self.graph.dense(x, kernel)
        return self.graph("Add", y, bias) if bias.any() else y

    def _feed_forward(self, layer: int, x: str) -> str:
        config: Any = self._config.feed_forward
        name, is_gated = f"{self._stack.name}/blocks_{layer}/feed_forward", isinstance(config, Glu)
        first = self._dense(x, f"{name}/{'gate' if is_gated else 'up'}")
        h = self._activated(config.activation, first)
        if is_gated:
            h = self.graph("Mul", h, self._dense(x, f"{name}/up"))
        return self._dense(h, f"{name}/down")

    def _activated(self, kind: str, x: str) -> str:
        g = self.graph
        if kind in ("relu", "sigmoid"):
            return g(kind.capitalize(), x)
        if kind == "silu":
            return g("Mul", x, g("Sigmoid", x))
        if kind == "gelu":
            inner = g("Erf", g("Mul", x, np.float32(0.5**0.5)))
        else:
            cube = g("Mul", g("Mul", x, x), g("Mul", x, np.float32(0.044715)))
            inner = g("Tanh", g("Mul", g("Add", x, cube), np.float32((2 / np.pi) ** 0.5)))
        return g("Mul", g("Mul", x, np.float32(0.5)), g("Add", inner, np.float32(1)))

    def _of_each_head(self, w: np.ndarray) -> np.ndarray:
        """[..., groups * K] -> [..., H * K]."""
        groups = w.reshape(*w.shape[:-1], -1, self._width)
        each = np.repeat(groups, self._heads // groups.shape[-2], -2)
        return each.reshape(*w.shape[:-1], -1)

    def _parts(self, x: str, name: str, positions: str) -> Sequence[str]:
        """Queries, keys and values [B, H, L, K], turned at positions if the stack does that."""
        g, width, position = self.graph, self._width, self._stack.config.position
        names = [f"{name}/heads/{part}" for part in self._PARTS]
        self._by_head(self._dense(x, *names, form=self._of_each_head), names)
        if not isinstance(position, Rope):
            return names
        places = jnp.arange(self._stack.length)
        ones = jnp.tile(jnp.array([1.0, 0.0]), (1, len(places), 1, width // 2))
        turned = np.asarray(rotated(ones, places, position.base))[0, :, 0]
        cos, sin = (g("Gather", np.repeat(turned[:, i::2], 2, -1), positions) for i in (0, 1))
        quarter = np.kron(np.eye(width // 2), [[0, 1], [-1, 0]]).astype(np.float32)
        *both, value = names
        return [
            *(g("Add", g("Mul", y, cos), g("Mul", g("MatMul", y, quarter), sin)) for y in both),
            value,
        ]

    def _by_head(self, y: str, names: Sequence[str]) -> None:
        """[B, L, N * H * K] as N results [B, H, L, K]."""
        g, num_heads = self.graph, len(names) * self._heads  # -1 is no number of nothing
        y = g("Transpose", g("Reshape", y, [0, 0, num_heads, self._width]), perm=[0, 2, 1, 3])
        g("Split", y, axis=1, outputs=names)

    def _read(self, mixer: Any, parts: Sequence[str], *biases: str) -> str:
        """What attention of queries to keys and values [B, H, L, K] each reads; as these."""
        g, (query, key, value) = self.graph, parts
        scale = getattr(mixer, "score_scale", None) or self._width**-0.5
        scores = g("MatMul", query, g("Transpose", key, perm=[0, 1, 3, 2]))
        scores = g("Mul", scores, np.float32(scale))
        for bias in biases:
            scores = g("Add", scores, bias)
        return g("MatMul", g("Softmax", scores), value)

    def _bias(self, layer: int, queries: str, num_keys: str) -> list[str]:
        """What a layer adds to its scores: [H, L, M]; none, or once for all that are alike."""
        g, stack = self.graph, self._stack
        kind = stack.reads[layer].tobytes()
        if stack.has_table[layer] and kind not in self._biases:
            table_RH = stack.biases(layer)[::-1]  # query minus key
            # The decoder's table has no row for what is farther away: it is refused.
            first = stack.length - 1 if self.causal else 0
            keys = g("Unsqueeze", self._counted(num_keys), [0])
            distances = g("Sub", g("Unsqueeze", queries, [1]), keys)
            places = g("Add", distances, stack.length - 1 - first)
            bias_LMH = g("Gather", table_RH[first:], places)
            self._biases[kind] = g("Transpose", bias_LMH, perm=[2, 0, 1])
        return [self._biases[kind]] if stack.has_table[layer] else []

    def _counted(self, length: str) -> str:
        """0, 1, ... below a length [1]."""
        return self.graph("Range", np.int64(0), self.graph("Squeeze", length), np.int64(1))

    def _mask(self, name: str) -> str:
        """An input, as what is added to the scores of padding: [B, 1, 1, M]."""
        g = self.graph
        mask = g("Cast", g.end(name, ("batch", "encoder_length"), INT64), to=FLOAT)
        return g("Mul", g("Sub", g("Unsqueeze", mask, [1, 2]), np.float32(1)), np.float32(1e9))


class _Encoder(_Half):
    def _write(self) -> None:
        g, shape = self.graph, ("batch", "encoder_length")
        table = self._flat.get("source_embedding/table", self._flat["target_embedding/table"])
        ids, mask = g.end("input_ids", shape, INT64), self._mask("attention_mask")
        length = g("Shape", ids, start=1, end=2)
        positions, (read, _) = self._counted(length), g.table(widened(table, self._config.d_model))

        def mix(layer: int, x: str) -> str:
            name, bias = f"encoder/blocks_{layer}/mixer", self._bias(layer, positions, length)
            parts = self._parts(x, name, positions)
            y = self._read(self._stack.mixers[layer], parts, mask, *bias)
            y = g("Reshape", g("Transpose", y, perm=[0, 2, 1, 3]), [0, 0, -1])
            return self._dense(y, f"{name}/heads/out")

        x = self._run(read(ids), table.shape[1], positions, mixer=mix)
        g.end("last_hidden_state", (*shape, self._config.d_model), of=x)


class _Decoder(_Half):
    causal = True

    def _write(self) -> None:
        g, config, mixers = self.graph, self._config, self._stack.mixers
        ids, mask = g.end("input_ids", ("batch", 1), INT64), self._mask("encoder_attention_mask")
        ids = g("Squeeze", ids, [1])
        read_at = (layer for layer, mixer in enumerate(mixers) if not isinstance(mixer, SSRU))
        if (layer := next(read_at, None)) is not None:
            position = g("Shape", self._past(f"{layer}.decoder.key"), start=2, end=3)
        else:
            position = g("Cast", g.end("past_key_values.position", (1,)), to=INT64)
        after = g("Add", position, [1])
        if layer is None:
            g.end("present.position", (1,), of=g("Cast", after, to=FLOAT))
        table = self._flat.pop("target_embedding/table")
        read, project = g.table(widened(table, config.d_model))
        words, is_kept = read(ids), self._memory()
        if config.start_id is None:  # zeros
            is_start = g("Unsqueeze", g("Equal", ids, np.int64(BOS_ID)), [-1])
            words = g("Where", is_start, np.float32(0), words)

        def mix(layer: int, x: str) -> str:
            name, end = f"decoder/blocks_{layer}/mixer", f"{layer}.decoder."
            if isinstance(mixers[layer], SSRU):
                forget, into = (self._dense(x, f"{name}/{part}") for part in ("forget", "into"))
                written = g("Mul", g("Sigmoid", g("Neg", forget)), into)
                kept = g("Mul", g("Sigmoid", forget), self._past(f"{end}state"))
                return g("Relu", self._present(f"{end}state", g("Add", kept, written)))
            query, *now = self._parts(x, name, position)
            for i, part in enumerate(self._PARTS[1:]):
                now[i] = g("Concat", self._past(f"{end}{part}"), now[i], axis=2)
                self._present(f"{end}{part}", now[i])
            bias = self._bias(layer, position, after)
            return out(name, self._read(mixers[layer], (query, *now), *bias))

        def cross(layer: int, x: str) -> str:
            name = f"decoder/blocks_{layer}/cross"
            query = [f"{name}/heads/query"]
            self._by_head(self._dense(x, *query, form=self._of_each_head), query)
            memory = [f"{layer}.encoder.{part}" for part in self._PARTS[1:]]
            kept, made = map(self._past, memory), (f"present.{each}" for each in memory)
            both = (
                partial(self._read, config.cross, [*query, *each], mask) for each in (kept, made)
            )
            return out(name, g.choose(is_kept, *both))

        def out(name: str, y: str) -> str:
            return self._dense(g("Reshape", y, [0, -1]), f"{name}/heads/out")

        x = self._run(words, table.shape[1], position, mixer=mix, cross=cross)
        x = g("Unsqueeze", g("Mul", x, np.float32(config.logit_scale)), [1])
        kernel = self._flat.pop("projection/kernel", None)
        x = project(x) if kernel is None else g.dense(x, kernel)
        bias_V = self._flat.pop("output_bias/bias", np.zeros(len(table), np.float32)).copy()
        bias_V[list(config.unused_ids)] += UNUSED
        g.end("logits", ("batch", 1, len(table)), of=g("Add", x, bias_V) if bias_V.any() else x)

    def _by_head(self, y: str, names: Sequence[str]) -> None:
        """Of one token: [B, N * H * K] as N results [B, H, 1, K]."""
        g = self.graph
        g("Split", g("Reshape", y, [0, -1, 1, self._width]), axis=1, outputs=names)

    def _past(self, name: str) -> str:
        return self.graph.end(f"past_key_values.{name}", self._shape(name, "past_length"))

    def _present(self, name: str, of: str) -> str:
        return self.graph.end(f"present.{name}", self._shape(name, "length"), of=of)

    def _shape(self, name: str, length: str) -> Sequence[int | str]:
        if name.endswith("state"):
            return "batch", self._config.d_model
        side = "encoder_" if "encoder" in name else ""
        return "batch", self._heads, side + length, self._width

    def _memory(self) -> str:
        """Makes the keys and values of the memory, the first time; returns whether they are kept.

        Later they are made of nothing.
        """
        g, shape = self.graph, ("batch", "encoder_length", self._config.d_model)
        read, is_kept = g.end("encoder_hidden_states", shape), g.end("use_cache_branch", (1,), BOOL)
        num_new = g("Where", is_kept, [0], g("Shape", read, start=1, end=2))
        new = g("Slice", read, [0], num_new, [1])
        layers, parts = range(len(self._stack.mixers)), self._PARTS[1:]
        kernels = [f"decoder/blocks_{n}/cross/heads/{part}" for n in layers for part in parts]
        ends = [f"{n}.encoder.{part}" for n in layers for part in parts]
        made = self._dense(new, *kernels, form=self._of_each_head)
        super()._by_head(made, [f"present.{end}" for end in ends])
        for end in ends:
            self._present(end, f"present.{end}")
        return is_kept
