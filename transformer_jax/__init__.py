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

__version__ = "0.3.0"

with epy.lazy_api_imports(globals()):
    from transformer_jax.config import (
        Config as Config,
        TrainConfig as TrainConfig,
        register as register,
    )
    from transformer_jax.data.blocks import Blocks as Blocks
    from transformer_jax.data.config import (
        BatchConfig as BatchConfig,
        Corpus as Corpus,
        DataConfig as DataConfig,
        TokenizerConfig as TokenizerConfig,
    )
    from transformer_jax.data.filters.base import Filter as Filter
    from transformer_jax.data.noise.base import Noise as Noise
    from transformer_jax.data.pipeline import batches_of_pairs as batches_of_pairs
    from transformer_jax.data.sources.base import Source as Source
    from transformer_jax.data.sources.files import Files as Files
    from transformer_jax.data.sources.grammar import Grammar as Grammar
    from transformer_jax.data.sources.grammar_documents import GrammarDocuments as GrammarDocuments
    from transformer_jax.data.sources.huggingface import HuggingFaceSet as HuggingFaceSet
    from transformer_jax.data.sources.opus import Opus as Opus
    from transformer_jax.data.sources.tfds import Tfds as Tfds
    from transformer_jax.data.tokenizer_training import train_tokenizers as train_tokenizers
    from transformer_jax.decoding.base import Method as Method
    from transformer_jax.decoding.beam import Beam as Beam
    from transformer_jax.decoding.config import DecodeConfig as DecodeConfig
    from transformer_jax.decoding.constrained import Constrained as Constrained
    from transformer_jax.decoding.greedy import Greedy as Greedy
    from transformer_jax.decoding.mbr import Aggregate as Aggregate, Pairwise as Pairwise
    from transformer_jax.decoding.sample import Sample as Sample
    from transformer_jax.errors import UserError as UserError
    from transformer_jax.formats.ctranslate2 import CTranslate2 as CTranslate2
    from transformer_jax.formats.export import export as export
    from transformer_jax.formats.import_model import import_model as import_model
    from transformer_jax.formats.safetensors import Safetensors as Safetensors
    from transformer_jax.layers.feed_forward import (
        FeedForwardConfig as FeedForwardConfig,
        Glu as Glu,
        Mlp as Mlp,
    )
    from transformer_jax.layers.norms import (
        LayerNorm as LayerNorm,
        NormConfig as NormConfig,
        RMSNorm as RMSNorm,
    )
    from transformer_jax.layers.projections import Dense as Dense
    from transformer_jax.metrics.comet import Comet as Comet, CometKiwi as CometKiwi
    from transformer_jax.metrics.metricx import (
        MetricX as MetricX,
        MetricX23 as MetricX23,
        MetricX23QE as MetricX23QE,
        MetricXQE as MetricXQE,
    )
    from transformer_jax.mixers.alone import MixerLayer as MixerLayer
    from transformer_jax.mixers.base import (
        CrossMixer as CrossMixer,
        CrossMixerConfig as CrossMixerConfig,
        Mixer as Mixer,
        MixerConfig as MixerConfig,
        MixerContext as MixerContext,
    )
    from transformer_jax.mixers.bigbird import BigBird as BigBird
    from transformer_jax.mixers.full_attention import Full as Full, FullCross as FullCross
    from transformer_jax.mixers.gated_deltanet import GatedDeltaNet as GatedDeltaNet
    from transformer_jax.mixers.gla import GLA as GLA
    from transformer_jax.mixers.h3 import H3 as H3
    from transformer_jax.mixers.linear import Linear as Linear, LinearCross as LinearCross
    from transformer_jax.mixers.linformer import (
        Linformer as Linformer,
        LinformerCross as LinformerCross,
    )
    from transformer_jax.mixers.longformer import Longformer as Longformer
    from transformer_jax.mixers.mamba import Mamba as Mamba
    from transformer_jax.mixers.mlp_mixer import MlpMixer as MlpMixer
    from transformer_jax.mixers.performer import (
        Performer as Performer,
        PerformerCross as PerformerCross,
    )
    from transformer_jax.mixers.reformer import Reformer as Reformer
    from transformer_jax.mixers.rwkv import RWKV as RWKV
    from transformer_jax.mixers.s4 import S4 as S4
    from transformer_jax.mixers.s4d import S4D as S4D
    from transformer_jax.mixers.ssd import SSD as SSD
    from transformer_jax.mixers.ssru import SSRU as SSRU
    from transformer_jax.mixers.strided import Strided as Strided
    from transformer_jax.mixers.window import Window as Window
    from transformer_jax.models.api import (
        apply as apply,
        decode_step as decode_step,
        encode as encode,
        init as init,
        loss as loss,
        shift_right as shift_right,
    )
    from transformer_jax.models.config import ModelConfig as ModelConfig, StackConfig as StackConfig
    from transformer_jax.models.inside import (
        attention as attention,
        embed as embed,
        hidden_states as hidden_states,
    )
    from transformer_jax.models.lora import Lora as Lora
    from transformer_jax.models.quantization import Int8 as Int8, Int8Dynamic as Int8Dynamic
    from transformer_jax.optimizers.optimizers import (
        Adafactor as Adafactor,
        Adam as Adam,
        AdamW as AdamW,
        Lion as Lion,
        Optimizer as Optimizer,
        Sgd as Sgd,
    )
    from transformer_jax.optimizers.schedules import (
        ConstantSchedule as ConstantSchedule,
        CosineSchedule as CosineSchedule,
        LinearSchedule as LinearSchedule,
        RsqrtSchedule as RsqrtSchedule,
        Schedule as Schedule,
    )
    from transformer_jax.parallel.mesh import MeshConfig as MeshConfig
    from transformer_jax.positions.alibi import Alibi as Alibi
    from transformer_jax.positions.base import (
        Position as Position,
        PositionConfig as PositionConfig,
        PositionContext as PositionContext,
    )
    from transformer_jax.positions.concatenated import Concatenated as Concatenated
    from transformer_jax.positions.learned import Learned as Learned
    from transformer_jax.positions.none import NoPosition as NoPosition
    from transformer_jax.positions.rope import Rope as Rope
    from transformer_jax.positions.scalar import Scalar as Scalar
    from transformer_jax.positions.sinusoidal import Sinusoidal as Sinusoidal
    from transformer_jax.positions.t5 import T5 as T5
    from transformer_jax.recipes import ByPairs as ByPairs, load_recipe as load_recipe
    from transformer_jax.runs.ensemble import open_ensemble as open_ensemble
    from transformer_jax.runs.evaluation import Report as Report, evaluate as evaluate
    from transformer_jax.runs.folder import Run as Run, open_run as open_run
    from transformer_jax.trackers.base import Tracker as Tracker
    from transformer_jax.training.loop import fit as fit
    from transformer_jax.training.train import train as train
    from transformer_jax.translation.translator import Translator as Translator
    from transformer_jax.viewing.attention import draw_attention as draw_attention

__all__ = sorted(set(__dir__()) - set(globals()))  # type: ignore[name-defined]  # noqa: F821
