"""How translations are searched for. Only `weights` changes what the model computes, slightly."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le
from pydantic import PositiveInt

from transformer_jax.decoding.base import Method
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.decoding.mbr import UTILITIES, Utility
from transformer_jax.decoding.registry import METHODS
from transformer_jax.decoding.repetition import Repetition
from transformer_jax.settings.types import SETTLED
from transformer_jax.settings.variants import OneOf


@dataclass(frozen=True)
class DecodeConfig:
    """The decoding method, and the limits on length.

    A target may hold at most `ceil(max_length_factor * source_length) + max_length_offset`
    tokens, EOS included on both sides, or its prefix and EOS if that is more. The
    limit depends on the sentence alone, so its translation does not depend on the sentences that
    share its batch.
    """

    method: Annotated[Method, OneOf(METHODS)] = Beam()  #: how translations are searched for
    max_length_factor: Annotated[float, Ge(0), Le(1000)] = 1.5
    #: most target tokens a source token
    max_length_offset: Annotated[int, Gt(0), Le(1_000_000)] = 10  #: leaves room for EOS
    max_source_length: Annotated[int, Ge(2)] = 256
    #: longer input (EOS included) is cut and counted
    source_language: str | None = None  #: of a model whose sources begin with a language token
    target_language: str | None = None  #: of a model with language tags; none = its own default
    target_prefix: str = ""  #: text that every translation begins with
    no_repeat_ngram: Annotated[int, Ge(0)] = 0
    #: no sequence of this many pieces occurs twice in a translation; 0 = off
    repetition_penalty: Annotated[float, Gt(0)] = 1.0
    #: pieces that occurred: their logits are divided by it if positive, else multiplied
    allow_unk: bool = False
    #: whether a translation may have the piece of what the vocabulary lacks, which reads ⁇
    mbr: Annotated[Utility, OneOf(UTILITIES)] | None = None
    #: rank a sentence's translations by how well each agrees with all of them
    weights: Literal["float", "int8"] = "float"
    #: int8: matrices take half of bfloat16's memory; on a CPU products are of int8 on both sides
    block_tokens: Annotated[int, Ge(2), SETTLED] | None = None
    #: pieces of a block of a document, with its context; none = as in training, or as many as fit
    context_tokens: Annotated[int, Ge(0)] | None = None
    #: of these, most pieces that precede the block, on each side; none = a quarter
    block_sentences: Annotated[PositiveInt, SETTLED] | None = None
    #: most sentences of a block with its context, which has half of them at most; none = as in
    #: training, or as many as fit
    batch_size: PositiveInt = 32
    #: most sentences a process decodes together, for speed and memory; in int8 a CPU takes at most
    #: 16 hypotheses, with which it is fastest

    @property
    def repetition(self) -> Repetition:
        """The options on repetition together."""
        return Repetition(self.no_repeat_ngram, self.repetition_penalty)

    def max_target_length(self, source_length: int, prefix_length: int = 0) -> int:
        """Most target tokens, EOS included, for a source of `source_length` tokens."""
        free = math.ceil(self.max_length_factor * source_length) + self.max_length_offset
        return max(free, prefix_length + 1)


def while_training(config: DecodeConfig) -> DecodeConfig:
    """How the validation set is translated between training steps: quickly."""
    return replace(config, method=Greedy(), mbr=None, weights="float", batch_size=64)
