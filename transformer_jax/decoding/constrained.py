"""Any method under a rule of one's own: which pieces may come next, given those before.

A banned word:

    def no_hats(prefix_BZT, position):
        return jnp.arange(vocab_size) != hat                       # [V], for all hypotheses

A word that must occur, which keeps a translation from ending before it does:

    def with_hat(prefix_BZT, position):
        has_it_BZ1 = (prefix_BZT == hat).any(axis=-1, keepdims=True)
        return has_it_BZ1 | (jnp.arange(vocab_size) != EOS_ID)     # [B, Z, V]

    translator.translate(texts, method=Constrained(Beam(), no_hats))

The rule changes the distribution that is searched: log-probabilities are normalised over what is
left, as in `repetition.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import jax.numpy as jnp
from jax import Array, lax

from transformer_jax.decoding.base import Hypotheses, Limits, Method, State, Step
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.registry import METHODS
from transformer_jax.errors import UserError
from transformer_jax.ops.key_value_cache import PerSentence
from transformer_jax.settings.variants import OneOf
from transformer_jax.vocabulary import EOS_ID, PAD_ID

#: (prefix [B, Z, T] int32, then PAD; position, int32 scalar) -> bool, of a shape that broadcasts to
#: [B, Z, V]: the pieces that may stand at the position. It is traced, so it is a pure function.
Rule = Callable[[Array, Array], Any]


@dataclass(frozen=True)
class Constrained(Method):
    """A method whose translations follow a rule.

    EOS is allowed at a sentence's limit, and where the rule leaves nothing. A given prefix
    (`target_prefix`) stays, whatever the rule says of its pieces.
    """

    method: Annotated[Method, OneOf(METHODS)] = Beam()  #: that searches
    rule: Rule = lambda prefix_BZT, position: True  #: which pieces may come next

    @property
    def num_hypotheses(self) -> int:
        """Z of the method."""
        return self.method.num_hypotheses

    def with_hypotheses(self, n: int) -> "Constrained":
        """The same rule, and the method with at least `n` hypotheses."""
        return replace(self, method=self.method.with_hypotheses(n))

    def search(self, step: Step, state: State, limits: Limits) -> Hypotheses:
        """As the method; see `Method.search`."""

        def ruled(tokens_BZ: Array, position: Array, state: State) -> Any:
            limit, prefix_BZT, inner = state
            logits_BZV, inner = step(tokens_BZ, position, inner)
            before = jnp.maximum(position - 1, 0)
            last_BZ = jnp.where(position > 0, tokens_BZ, PAD_ID)
            prefix_BZT = lax.dynamic_update_index_in_dim(prefix_BZT, last_BZ, before, axis=2)
            may_end_B11 = (position >= limit.values - 1)[:, None, None]
            is_end_V = jnp.arange(logits_BZV.shape[-1]) == EOS_ID
            allowed = jnp.asarray(self.rule(prefix_BZT, position))
            if allowed.dtype != bool:
                raise UserError(f"the rule returned {allowed.dtype}: give True at allowed pieces")
            is_possible_BZV = jnp.isfinite(logits_BZV)
            is_forced_BZ1 = is_possible_BZV.sum(-1, keepdims=True) == 1  # by a prefix
            is_empty_BZ1 = ~(allowed & is_possible_BZV).any(-1, keepdims=True)
            allowed = allowed | is_forced_BZ1 | ((may_end_B11 | is_empty_BZ1) & is_end_V)
            return jnp.where(allowed, logits_BZV, -jnp.inf), (limit, prefix_BZT, inner)

        shape_BZT = (len(limits.max_lengths_B), self.num_hypotheses, limits.max_length)
        empty_BZT = jnp.full(shape_BZT, PAD_ID, jnp.int32)
        first = PerSentence(limits.max_lengths_B), empty_BZT, state
        return self.method.search(ruled, first, limits)

    @property
    def static(self) -> "Constrained":
        """With the method's static form."""
        return replace(self, method=self.method.static)

    @property
    def seed(self) -> int:  # type: ignore[override]
        """That of the method."""
        return self.method.seed
