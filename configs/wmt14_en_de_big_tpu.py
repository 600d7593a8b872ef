r"""WMT 2014 English to German: the big model with the batch and the heads that suit a TPU slice.

Command:   python train.py --config=configs/wmt14_en_de_big_tpu.py --workdir=runs/big_tpu
           python eval.py --workdir=runs/big_tpu --checkpoint=average:20
Hardware:  not yet run; meant for a TPU slice of 8 chips, such as v5e:2x4
Time:      not yet run (docs/results.md has a plan of it)
Score:     not yet run

It is wmt14_en_de_big with

* 114,688 tokens a side in a batch, not 25,000, in 65,000 steps, not 300,000: as many tokens in all.
  Ott et al. 2018 (arXiv:1806.00187) train the same model with batches of some 400,000 tokens and a
  peak of the learning rate of 0.001, and report 29.3 BLEU where Vaswani et al. 2017 report 28.4;
* 8 heads of 128 channels, not 16 of 64: a TPU's matrix unit is 128 wide, so scores take half of the
  time. The parameters are as many. In table 3 (A) of Vaswani et al. 2017 the base model has 25.8
  BLEU with heads of 64 and 25.5 with heads of 128, on its validation set.

Neither has been measured here. wmt14_en_de_big has the paper's own values.
"""

from dataclasses import replace

import transformer_jax as tj

big = tj.load_recipe("wmt14_en_de_big")
config = replace(
    big,
    batch=replace(big.batch, tokens=114_688),
    model=replace(big.model, num_heads=8),
    train=replace(
        big.train,
        steps=65_000,
        schedule=tj.RsqrtSchedule(learning_rate=1e-3, warmup_steps=4000),
        checkpoint_every=150,
        evaluate_every=1500,
    ),
)
