r"""WMT 2014 English to French with the big model of Vaswani et al. 2017.

Command:   python train.py --config=configs/wmt14_en_fr_big.py --workdir=runs/wmt14_en_fr_big
           python eval.py --workdir=runs/wmt14_en_fr_big --checkpoint=average:20
Hardware:  not yet run; meant for TPUs or GPUs (the paper: 8 P100 GPUs)
Time:      not yet run (the paper: 3.5 days for 300,000 steps)
Score:     not yet run (the paper: 41.8 BLEU on tokenised text, which is not sacreBLEU)

It is wmt14_en_de_big on the whole TFDS set for French (the paper: 36 M pairs), with dropout 0.1
instead of 0.3 and a joint BPE of 32,000 pieces; the paper has a word-piece vocabulary of that
size. It validates on newstest2013 and tests on newstest2014.
On devices with little memory split each batch with --config.train.accumulate=4.

Parameters: 209,106,944; the paper gives no number for French.
"""

from dataclasses import replace

import transformer_jax as tj

german = tj.load_recipe("wmt14_en_de_big")
config = replace(
    german,
    data=replace(german.data, source=tj.Tfds(name="wmt14_translate/fr-en"), target_language="fr"),
    tokenizer=replace(german.tokenizer, vocab_size=32_000),
    model=replace(german.model, dropout_rate=0.1),
)
