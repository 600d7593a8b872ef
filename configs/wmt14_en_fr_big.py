r"""WMT 2014 English to French with the big model of Vaswani et al. 2017.

Command:   python train.py --config=configs/wmt14_en_fr_big.py --workdir=runs/wmt14_en_fr_big
           python eval.py --workdir=runs/wmt14_en_fr_big --checkpoint=average:20
Hardware:  not yet run; meant for TPUs or GPUs (the paper: 8 P100 GPUs)
Time:      not yet run (the paper: 3.5 days for 300,000 steps)
Score:     not yet run (the paper: 41.8 BLEU on tokenised text, which is not sacreBLEU)

Trained on all of the TFDS set (the paper: 36 M pairs), validated on newstest2013, tested on
newstest2014.

From the paper: the model's shape, layer norm after each sublayer, tied embeddings, dropout,
label smoothing, Adam with its schedule, about 25,000 source and target tokens a batch, beam 4
with alpha 0.6 and an output of at most the input's length + 50, the average of the last 20
checkpoints. Not from it: SentencePiece BPE in place of its own, bfloat16, sentences over 256
pieces skipped, an average over steps (every 600), not minutes.
On devices with little memory cut each batch with --config.train.accumulate=4.

Its tokenizer is joint BPE of 32,000 pieces, the paper's a word-piece vocabulary of that size;
dropout is 0.1 here, 0.3 for German. Parameters: 209,106,944; the paper gives none for French.
"""

import transformer_jax as tj

config = tj.Config(
    data=tj.DataConfig(
        source=tj.Tfds(name="wmt14_translate/fr-en"), source_language="en", target_language="fr"
    ),
    tokenizer=tj.TokenizerConfig(kind="bpe", vocab_size=32_000, character_coverage=0.9995),
    batch=tj.BatchConfig(tokens=25_000, max_length=256, length_multiple=8),
    model=tj.ModelConfig(
        d_model=1024,
        d_ff=4096,
        num_heads=16,
        norm_placement="post",
        dropout_rate=0.1,
        max_length=512,
        dtype="bfloat16",
        matmul_dtype="bfloat16",
    ),
    train=tj.TrainConfig(
        steps=300_000,
        optimizer=tj.Adam(b1=0.9, b2=0.98, eps=1e-9),
        schedule=tj.RsqrtSchedule(warmup_steps=4000),
        label_smoothing=0.1,
        evaluate_every=3000,
        checkpoint_every=600,
        keep_checkpoints=20,
    ),
    decode=tj.DecodeConfig(
        beam_size=4, length_penalty=0.6, max_length_factor=1.0, max_length_offset=50
    ),
)
