"""Encoder-decoder Transformer translation in JAX: train, score, translate, import.

    import transformer_jax as tj

    translator = tj.open_run("runs/multi30k").translator()
    translator.translate(["My picture costs forty-five euros."])

The model is a set of pure functions of (config, params, arrays): `init`, `apply`, `loss`,
`encode`, `decode_step`. `train` trains what a config says in a run folder; `fit` trains on any
iterator of batches. Each name is imported on its first use, so importing this package reads no
file, starts no device and imports no TensorFlow.
"""

import logging

from etils import epy

# Silent unless the caller configures logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = "0.2.0"

with epy.lazy_api_imports(globals()):
    from transformer_jax.config import Config, TrainConfig, register
    from transformer_jax.data.blocks import Blocks
    from transformer_jax.data.config import BatchConfig, Corpus, DataConfig, TokenizerConfig
    from transformer_jax.data.pipeline import batches_of_pairs
    from transformer_jax.data.sources.base import Source
    from transformer_jax.data.sources.files import Files
    from transformer_jax.data.sources.grammar import Grammar
    from transformer_jax.data.sources.grammar_documents import GrammarDocuments
    from transformer_jax.data.sources.huggingface import HuggingFaceSet
    from transformer_jax.data.sources.opus import Opus
    from transformer_jax.data.sources.tfds import Tfds
    from transformer_jax.data.tokenizer_training import train_tokenizers
    from transformer_jax.decoding.base import Method
    from transformer_jax.decoding.beam import Beam
    from transformer_jax.decoding.config import DecodeConfig
    from transformer_jax.decoding.constrained import Constrained
    from transformer_jax.decoding.greedy import Greedy
    from transformer_jax.decoding.mbr import Aggregate, Pairwise
    from transformer_jax.decoding.sample import Sample
    from transformer_jax.errors import UserError
    from transformer_jax.formats.ctranslate2 import CTranslate2
    from transformer_jax.formats.export import export
    from transformer_jax.formats.import_model import import_model
    from transformer_jax.formats.safetensors import Safetensors
    from transformer_jax.layers.feed_forward import FeedForwardConfig, Glu, Mlp
    from transformer_jax.layers.norms import LayerNorm, NormConfig, RMSNorm
    from transformer_jax.layers.projections import Dense
    from transformer_jax.metrics.comet import Comet, CometKiwi
    from transformer_jax.metrics.metricx import MetricX, MetricX23, MetricX23QE, MetricXQE
    from transformer_jax.mixers.alone import MixerLayer
    from transformer_jax.mixers.base import (
        CrossMixer,
        CrossMixerConfig,
        Mixer,
        MixerConfig,
        MixerContext,
    )
    from transformer_jax.mixers.bigbird import BigBird
    from transformer_jax.mixers.full_attention import Full, FullCross
    from transformer_jax.mixers.h3 import H3
    from transformer_jax.mixers.linear import Linear, LinearCross
    from transformer_jax.mixers.linformer import Linformer, LinformerCross
    from transformer_jax.mixers.longformer import Longformer
    from transformer_jax.mixers.mamba import Mamba
    from transformer_jax.mixers.mlp_mixer import MlpMixer
    from transformer_jax.mixers.performer import Performer, PerformerCross
    from transformer_jax.mixers.reformer import Reformer
    from transformer_jax.mixers.rwkv import RWKV
    from transformer_jax.mixers.s4 import S4
    from transformer_jax.mixers.s4d import S4D
    from transformer_jax.mixers.ssd import SSD
    from transformer_jax.mixers.ssru import SSRU
    from transformer_jax.mixers.strided import Strided
    from transformer_jax.mixers.window import Window
    from transformer_jax.models.api import (
        apply,
        attention,
        decode_step,
        embed,
        encode,
        hidden_states,
        init,
        loss,
        shift_right,
    )
    from transformer_jax.models.config import ModelConfig, StackConfig
    from transformer_jax.models.lora import Lora
    from transformer_jax.models.quantization import Int8, Int8Dynamic
    from transformer_jax.optimizers.optimizers import (
        Adafactor,
        Adam,
        AdamW,
        Lion,
        Optimizer,
        Sgd,
    )
    from transformer_jax.optimizers.schedules import (
        ConstantSchedule,
        CosineSchedule,
        LinearSchedule,
        RsqrtSchedule,
        Schedule,
    )
    from transformer_jax.parallel.mesh import MeshConfig
    from transformer_jax.positions.alibi import Alibi
    from transformer_jax.positions.base import Position, PositionConfig, PositionContext
    from transformer_jax.positions.concatenated import Concatenated
    from transformer_jax.positions.learned import Learned
    from transformer_jax.positions.none import NoPosition
    from transformer_jax.positions.rope import Rope
    from transformer_jax.positions.scalar import Scalar
    from transformer_jax.positions.sinusoidal import Sinusoidal
    from transformer_jax.positions.t5 import T5
    from transformer_jax.recipes import ByPairs, load_recipe
    from transformer_jax.runs.ensemble import open_ensemble
    from transformer_jax.runs.evaluation import Report, evaluate
    from transformer_jax.runs.folder import Run, open_run
    from transformer_jax.training.loop import fit
    from transformer_jax.training.train import train
    from transformer_jax.translation.translator import Translator
    from transformer_jax.viewing.attention import draw_attention

__all__ = sorted(set(__dir__()) - set(globals()))  # type: ignore[name-defined]  # noqa: F821
