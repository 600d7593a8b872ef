"""MetricX: an mT5 that reads a translation and predicts how bad it is, from 0 to 25.

    score = clip(logit of <extra_id_10> after one decoder step, 0, 25)

MetricX-23 (Juraska et al. 2023, aclanthology.org/2023.wmt-1.63) has one model that reads the
reference and one that reads the source; MetricX-24 (2024.wmt-1.35) has one for both. The score is
on the scale of MQM, so lower is better.

The form of the input and the formula are those of `predict.py` and `models.py` in
github.com/google-research/metricx: the text below is cut by mT5's SentencePiece model, at most
`max_input_length` pieces with EOS, then EOS is removed; the decoder reads one PAD, and the score is
the logit of piece 250089. The weights are `google/metricx-24-hybrid-large-v2p6` and others on
Hugging Face's hub; the SentencePiece model is that of `google/mt5-large`.

Cost: one pass of the encoder over the three texts together, and one step of the decoder.
"""

from dataclasses import dataclass
from typing import ClassVar

from transformer_jax.metrics.base import Judge, Metric


@dataclass(frozen=True)
class MetricX(Metric):
    """MetricX-24 with the source and a reference."""

    worst: ClassVar[float] = 25.0
    best: ClassVar[float] = 0.0
    title: ClassVar[str] = "MetricX-24"
    # What the model reads.
    form: ClassVar[str] = "source: {source} candidate: {translation} reference: {reference}"
    max_length: ClassVar[int] = 1536  # pieces it was trained on, EOS included

    def open(self) -> Judge:
        # Not before it is asked for: it imports JAX, which reading a text needs not.
        from transformer_jax.metrics.metricx_model import MetricXModel

        return MetricXModel(self.model, self.form, self.max_length, self.worst)


@dataclass(frozen=True)
class MetricXQE(MetricX):
    """MetricX-24 with the source alone: an estimate of the quality without a reference."""

    needs_reference: ClassVar[bool] = False
    title: ClassVar[str] = "MetricX-24-QE"
    form: ClassVar[str] = "source: {source} candidate: {translation}"


@dataclass(frozen=True)
class MetricX23(MetricX):
    """MetricX-23 with a reference alone."""

    title: ClassVar[str] = "MetricX-23"
    form: ClassVar[str] = "candidate: {translation} reference: {reference}"
    max_length: ClassVar[int] = 1024


@dataclass(frozen=True)
class MetricX23QE(MetricX23):
    """MetricX-23-QE, which reads the source and no reference."""

    needs_reference: ClassVar[bool] = False
    title: ClassVar[str] = "MetricX-23-QE"
    form: ClassVar[str] = "candidate: {translation} source: {source}"
