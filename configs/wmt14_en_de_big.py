r"""WMT 2014 English to German with the big model of Vaswani et al. 2017.

Command:   python train.py --config=configs/wmt14_en_de_big.py --workdir=runs/wmt14_en_de_big
           python eval.py --workdir=runs/wmt14_en_de_big --checkpoint=average:20
Hardware:  not yet run; meant for TPUs or GPUs (the paper: 8 P100 GPUs)
Time:      not yet run (the paper: 3.5 days for 300,000 steps)
Score:     not yet run (the paper: 28.4 BLEU on tokenised text, which is not sacreBLEU)

It is wmt14_en_de_base with a larger model and more dropout, trained for longer; the average of
the last 20 checkpoints (every 600 steps) is evaluated, as in the paper.
The heads have 64 channels and a batch 25,000 tokens a side, as in the paper. On a TPU
wmt14_en_de_big_tpu should take less time (docs/results.md).
On devices with little memory split each batch with --config.train.accumulate=4.

Parameters: 214,226,944 with 37,000 pieces, counting biases and layer norms; the paper says 213 M.
The paper does not break that number down and gives the vocabulary only as "about 37,000", so the
difference (0.6 %) cannot be traced from the paper alone: 1,000 pieces are 1.02 M parameters. The
vocabulary alone does not explain it, since no one size gives both 213 M here and 65 M for the base
model. Layer norm before each sublayer adds one layer norm after each stack: 214,231,040.
"""

from dataclasses import replace

import transformer_jax as tj

base = tj.load_recipe("wmt14_en_de_base")
config = replace(
    base,
    model=replace(base.model, d_model=1024, d_ff=4096, num_heads=16, dropout_rate=0.3),
    train=replace(base.train, steps=300_000, checkpoint_every=600, keep_checkpoints=20),
)
