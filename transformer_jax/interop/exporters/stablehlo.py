"""StableHLO programs (`jax.export`): a process with JAX alone translates, without this package.

Four programs, each in a file NAME.stablehlo, take the parameters as their first argument, a flat
dict by name, which `model.safetensors` holds once for all of them:

    encode(params, source [b, s], source_lengths [b])            -> sentence, state
    decode_step(params, tokens [b], position, state, sentence)   -> logits [b, V], state
    greedy(params, source [b, s], source_lengths [b])            -> tokens [b, 1, T], lengths,
    beam(params, source [b, s], source_lengths [b])                 scores, log_probs [b, Z] each

Ids and lengths are int32 and count EOS; T is `model.max_length`. `sentence` and `state` are tuples
of arrays. `programs.json` describes the arguments. The searches, their limits on the length, the
controls of repetition and the pieces that a translation begins with are those of the run's `decode`
config.

`tokenizers.json` has for each SentencePiece model the pieces by id, which may be others than that
model's own, and the prefix: ids that each text begins with, such as a language token.

The batch b is free. So is the source length s, up to `model.max_length`, unless the model has a
mixer whose program depends on the length: then s is `model.max_length`. JAX promises to read such a
file for six months after it was written.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from jax import export

from transformer_jax.config import Config
from transformer_jax.config_types import Strings
from transformer_jax.data.language_tags import towards
from transformer_jax.data.padding import pad
from transformer_jax.decoding.base import Method
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.errors import UserError
from transformer_jax.interop.exporters.base import Exporter, TrainedModel, without_adapter
from transformer_jax.interop.exporters.safetensors import write_weights
from transformer_jax.models import api
from transformer_jax.models.config import ModelConfig
from transformer_jax.models.paths import by_path, from_paths
from transformer_jax.translation.model import SingleModel
from transformer_jax.translation.model_calls import Sources, decode_batch
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

Program = Callable[..., Any]

#: bfloat16 products ask XLA for a layout (`ops/matmul.py`); JAX does not promise that call.
_ALLOWED = [export.DisabledSafetyCheck.custom_call("LayoutConstraint")]


@dataclass(frozen=True)
class StableHLO(Exporter):
    """A folder of programs for `jax.export.deserialize`."""

    platforms: Strings = ("cpu", "cuda", "tpu")  #: what the programs run on

    def check(self, config: Config) -> None:
        unknown = [name for name in self.platforms if name not in PLATFORMS]
        if unknown or not self.platforms:
            raise UserError(
                f"format=stablehlo(platforms={','.join(self.platforms)}): use some of "
                f"{', '.join(PLATFORMS)}"
            )
        if config.decode.mbr:
            raise UserError(
                f"decode.mbr={config.decode.mbr}: StableHLO cannot express it; set it to null in "
                "the config.json of the run"
            )

    def write(self, model: TrainedModel, folder: epath.Path) -> None:
        model, decode = without_adapter(model), model.config.decode
        tokenizers = towards(model.tokenizers, decode.source_language, decode.target_language)
        model = model._replace(tokenizers=tokenizers)
        programs = self._programs(model)
        for name, program in programs.items():
            (folder / f"{name}.stablehlo").write_bytes(program.serialize())
        (folder / "programs.json").write_text(json.dumps(_about(model, programs), indent=2) + "\n")
        write_weights(model.params, folder)
        for name, content in tokenizers.sentencepiece_models().items():
            (folder / name).write_bytes(content)
        about = tokenizers.by_file(
            lambda each: {"prefix": each.prefix, "pieces": each.pieces(range(each.vocab_size))}
        )
        (folder / "tokenizers.json").write_text(json.dumps(about, ensure_ascii=False) + "\n")

    def _programs(self, model: TrainedModel) -> dict[str, export.Exported]:
        """The programs with as few fixed sizes as the model's mixers allow."""
        config = model.config
        limit = config.model.max_length
        free = export.symbolic_shape("b, s", constraints=(f"s <= {limit}",))
        with_fixed_length = (*export.symbolic_shape("b"), limit)
        for sizes in (free, with_fixed_length):
            try:
                return self._of_sizes(model, *sizes)
            except Exception:  # JAX and NumPy raise errors of many types for symbolic sizes
                continue
        return self._of_sizes(model, config.decode.batch_size, limit)

    def _of_sizes(self, model: TrainedModel, batch: Any, length: Any) -> dict[str, export.Exported]:
        config = model.config
        params = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
            for name, leaf in by_path(model.params).items()
        }
        source_BS = jax.ShapeDtypeStruct((batch, length), jnp.int32)
        numbers_B = jax.ShapeDtypeStruct((batch,), jnp.int32)
        position = jax.ShapeDtypeStruct((), jnp.int32)
        sentences = (params, source_BS, numbers_B)

        def exported(function: Callable[..., Any], arguments: tuple[Any, ...]) -> export.Exported:
            write = export.export(
                jax.jit(function), platforms=self.platforms, disabled_checks=_ALLOWED
            )
            return write(*arguments)

        search = config.decode.method
        beam = search if isinstance(search, Beam) else Beam()
        prefix = model.tokenizers.target.encode(config.decode.target_prefix)
        encode, decode_step = _steps(config.model)
        sentence, state = jax.eval_shape(encode, *sentences)
        return {
            "encode": exported(encode, sentences),
            "decode_step": exported(decode_step, (params, numbers_B, position, state, sentence)),
            "greedy": exported(_search(config, Greedy(), prefix), sentences),
            "beam": exported(_search(config, beam, prefix), sentences),
        }


def _mask(source_BS: jax.Array, lengths_B: jax.Array) -> jax.Array:
    return jnp.arange(source_BS.shape[1]) < lengths_B[:, None]


def _steps(config: ModelConfig) -> tuple[Program, Program]:
    """Encoding, and one step of one hypothesis a sentence, whose states are tuples of arrays."""
    structures: dict[str, Any] = {}

    def encode(params: Any, source_BS: jax.Array, lengths_B: jax.Array) -> tuple[Any, Any]:
        sentence, state = api.encode(
            config,
            from_paths(params),
            source_BS,
            _mask(source_BS, lengths_B),
            max_length=config.max_length,
        )
        structures["sentence"], structures["state"] = map(jax.tree.structure, (sentence, state))
        return tuple(jax.tree.leaves(sentence)), tuple(jax.tree.leaves(state))

    def decode_step(
        params: Any, tokens_B: jax.Array, position: jax.Array, state: Any, sentence: Any
    ) -> tuple[jax.Array, Any]:
        logits_B1V, next_state = api.decode_step(
            config,
            from_paths(params),
            tokens_B[:, None],
            position,
            jax.tree.unflatten(structures["state"], state),
            jax.tree.unflatten(structures["sentence"], sentence),
        )
        return logits_B1V[:, 0], tuple(jax.tree.leaves(next_state))

    return encode, decode_step


def _search(config: Config, method: Method, prefix: Sequence[int]) -> Program:
    """Translation with a method, within the run's limits, of targets that begin with `prefix`."""
    decode, longest = config.decode, config.model.max_length
    most = [decode.max_target_length(n, len(prefix)) for n in range(longest + 1)]
    limits = np.minimum(most, longest).astype(np.int32)
    prefix_1T, _ = pad([prefix], 1, longest)

    def translate(params: Any, source_BS: jax.Array, lengths_B: jax.Array) -> tuple[Any, ...]:
        found = decode_batch(
            from_paths(params),
            Sources(
                source_BS,
                _mask(source_BS, lengths_B),
                jnp.asarray(limits)[lengths_B],
                jnp.zeros_like(lengths_B),  # only for methods that sample
                jnp.broadcast_to(prefix_1T, (*lengths_B.shape, longest)) if prefix else None,
            ),
            model=SingleModel(config.model),
            method=method,
            max_length=longest,
            repetition=decode.repetition,
        )
        return tuple(found)

    return translate


def _about(model: TrainedModel, programs: dict[str, export.Exported]) -> dict[str, Any]:
    """What `programs.json` says."""

    def shapes(leaves: Any) -> list[str]:
        return [f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]" for leaf in leaves]

    num_params = len(by_path(model.params))
    return {
        "ids": {"pad": PAD_ID, "bos": BOS_ID, "eos": EOS_ID, "unk": UNK_ID},
        "max_length": model.config.model.max_length,
        "programs": {
            name: {
                "inputs": ["params", *shapes(program.in_avals[num_params:])],
                "outputs": shapes(program.out_avals),
                "platforms": program.platforms,
            }
            for name, program in programs.items()
        },
    }
