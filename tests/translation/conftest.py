"""Small translators: one that copies its source, letter by letter, and random models."""

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.small import small_model
from transformer_jax.models import api
from transformer_jax.translation.model import Model
from transformer_jax.vocabulary import EOS_ID, PAD_ID

LETTERS = "abcdefghijklmnopqrstuvwxyz \n"
VOCAB_SIZE = 4 + len(LETTERS)


class LetterTokenizer:
    prefix = ()

    def encode(self, text):
        return [4 + LETTERS.find(letter) for letter in text]  # 3, <unk>, where it is none

    def decode(self, ids):
        return "".join(LETTERS[i - 4] for i in ids if i >= 4)


NOISE = np.random.default_rng(0).normal(size=(VOCAB_SIZE, VOCAB_SIZE)).astype(np.float32)


@dataclass(frozen=True)
class CopyModel:
    """Prefers the source's next piece by `sharpness`, over noise that depends on the last token."""

    number: int  # of the fixture's translators: programs of one are not reused by the next
    max_length: int
    shapes: list[tuple] = field(compare=False)  # one entry a trace
    target_vocab_size: int = VOCAB_SIZE

    def _logits(self, params, last_tokens, copied):
        onehot = jax.nn.one_hot(copied, VOCAB_SIZE)
        return jnp.asarray(NOISE)[last_tokens] + params["sharpness"] * onehot

    def held(self, params, weights, mesh):
        return params

    def encode(self, params, source, mask, *, max_length, beam_size):
        assert source.shape[1] <= self.max_length
        assert max_length <= self.max_length
        self.shapes.append((*source.shape, max_length, beam_size))
        padded = jnp.where(mask, source, EOS_ID)
        state = {"last": jnp.zeros((source.shape[0], beam_size), jnp.int32)}
        return {"source": jnp.pad(padded, ((0, 0), (0, 64)), constant_values=EOS_ID)}, state

    def decode_step(self, params, tokens, position, state, sentence):
        copied = sentence["source"][:, position][:, None]
        return self._logits(params, tokens, copied), {"last": tokens}

    def apply(self, params, source, source_mask, target_in, target_mask):
        self.shapes.append(target_in.shape)
        padded = jnp.where(source_mask, source, EOS_ID)
        padded = jnp.pad(padded, ((0, 0), (0, 64)), constant_values=EOS_ID)
        assert PAD_ID == 0
        return self._logits(params, target_in, padded[:, : target_in.shape[1]])


def assert_same(found, others, **tolerance):
    """The same tokens for each sentence, which are as probable."""
    for one, other in zip(found, others, strict=True):
        assert [t.tokens for t in one] == [t.tokens for t in other]
        for value in ("log_prob", "score"):
            got, want = ([getattr(t, value) for t in each] for each in (one, other))
            np.testing.assert_allclose(got, want, **tolerance)


_numbers = itertools.count()


@pytest.fixture
def traced_shapes() -> list[tuple]:
    """The shapes for which models of this test were traced."""
    return []


@pytest.fixture
def make_translator(traced_shapes):
    """make_translator(sharpness, max_length, **decode) -> Translator over the CopyModel."""

    def make(sharpness: float = 30.0, max_length: int = 64, **decode) -> tj.Translator:
        tokenizer = LetterTokenizer()
        return tj.Translator(
            CopyModel(next(_numbers), max_length, traced_shapes),
            {"sharpness": jnp.float32(sharpness)},
            SimpleNamespace(source=tokenizer, target=tokenizer),
            tj.DecodeConfig(**({"batch_size": 4, "method": tj.Beam(beam_size=2)} | decode)),
        )

    return make


def model(**options) -> tj.ModelConfig:
    """A small model of seven ids: those of `LetterTokenizer` for a, b and c."""
    return small_model(7, **{"max_length": 24} | options)


@pytest.fixture(scope="module")
def members():
    """Configs and parameters of three models of different architectures, sure of something."""
    mamba = tj.StackConfig(num_layers=1, mixers=(tj.Mamba(),))
    configs = (model(), model(decoder=mamba, d_model=8), model(norm_placement="post"))
    trees = [api.init(config, jax.random.key(i)) for i, config in enumerate(configs)]
    return configs, tuple(jax.tree.map(lambda x: 2 * x, tree) for tree in trees)


def translator(configs, params, mean="log_probs", **decode):
    tokenizers = SimpleNamespace(source=LetterTokenizer(), target=LetterTokenizer())
    decode = tj.DecodeConfig(**{"batch_size": 4} | decode)
    if isinstance(configs, tj.ModelConfig):
        return tj.Translator(configs, params, tokenizers, decode)
    return tj.Translator(Model(tuple(configs), mean), tuple(params), tokenizers, decode)
