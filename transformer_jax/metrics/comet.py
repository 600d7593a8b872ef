"""COMET-22 and CometKiwi: a regression on what XLM-R makes of the sentences.

Both read a mix of all layers of the encoder (Conneau et al. 2020, arXiv:1911.02116), the
embeddings included: h = gamma * sum_l p_l h_l, with p = softmax or sparsemax of one weight a layer.

* COMET-22 (Rei et al. 2022, aclanthology.org/2022.wmt-1.52): s, t, r are the means of h over the
  pieces of source, translation and reference; the regressor reads [t, r, t r, |t-r|, t s, |t-s|].
* CometKiwi (Rei et al. 2022, aclanthology.org/2022.wmt-1.60) reads `<s> t </s></s> s </s>` as one
  text, and h at `<s>`.

The regressor is a network of tanh layers. The scores are about 0 to 1; higher is better. Formulas
and names of the tensors are those of github.com/Unbabel/COMET.

The folder has `hparams.yaml` and `checkpoints/model.ckpt`, as published, and
`sentencepiece.bpe.model` of `FacebookAI/xlm-roberta-large`. Encoders of XLM-R's XL and XXL, and
mixes with a norm, are refused.
"""

from dataclasses import dataclass
from typing import ClassVar

from transformer_jax.metrics.base import Judge, Metric


@dataclass(frozen=True)
class Comet(Metric):
    """COMET-22 with the source and a reference."""

    worst: ClassVar[float] = 0.0
    best: ClassVar[float] = 1.0
    title: ClassVar[str] = "COMET-22"

    def open(self) -> Judge:
        # Not before it is asked for: it imports JAX, which reading a text needs not.
        from transformer_jax.metrics.comet_model import CometModel

        return CometModel(self.model, self.title, needs_reference=self.needs_reference)


@dataclass(frozen=True)
class CometKiwi(Comet):
    """CometKiwi-22: the source alone, no reference."""

    needs_reference: ClassVar[bool] = False
    title: ClassVar[str] = "CometKiwi-22"
