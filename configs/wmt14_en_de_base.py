r"""WMT 2014 English to German with the base model of Vaswani et al. 2017.

Command:   python train.py --config=configs/wmt14_en_de_base.py --workdir=runs/wmt14_en_de_base
           python eval.py --workdir=runs/wmt14_en_de_base --checkpoint=average:5
Hardware:  not yet run; meant for TPUs or GPUs (the paper: 8 P100 GPUs)
Time:      not yet run (the paper: 12 hours for 100,000 steps)
Score:     not yet run (the paper: 27.3 BLEU on tokenised text, which is not sacreBLEU)

It trains on the TFDS set (4.5 M pairs), validates on newstest2013 and tests on newstest2014.

From the paper: the model's shape, layer norm after each sublayer, tied embeddings, dropout,
label smoothing, Adam with its schedule, about 25,000 source and target tokens a batch, beam 4
with alpha 0.6, an output of at most the input's length + 50, and the average of the last 5
checkpoints. Different from the paper: SentencePiece BPE instead of its own, bfloat16, sentences
over 256 pieces are skipped, and checkpoints are averaged over steps (every 1,500), not minutes.
Several devices add up their gradients in bfloat16, as Google's JAX submission to MLPerf 0.7 did;
--config.train.reduce_dtype=float32 takes longer on TPUs (docs/results.md).
On a TPU wmt14_en_de_base_tpu should take less time (docs/results.md).
On devices with little memory split each batch with --config.train.accumulate=4.

Parameters: 63,073,280 with 37,000 pieces, counting biases and layer norms; the paper says 65 M.
The paper does not break that number down and gives the vocabulary only as "about 37,000", so the
difference (3.0 %) cannot be traced from the paper alone: 1,000 pieces are 0.51 M parameters. The
vocabulary alone does not explain it, since no one size gives both 65 M here and 213 M for the big
model. Layer norm before each sublayer adds one layer norm after each stack: 63,075,328.
"""

import transformer_jax as tj

config = tj.Config(
    data=tj.DataConfig(
        source=tj.Tfds(name="wmt14_translate/de-en"), source_language="en", target_language="de"
    ),
    tokenizer=tj.TokenizerConfig(kind="bpe", vocab_size=37_000, character_coverage=0.9995),
    batch=tj.BatchConfig(tokens=25_000, max_length=256, length_multiple=8),
    model=tj.ModelConfig(
        d_model=512,
        d_ff=2048,
        num_heads=8,
        norm_placement="post",
        dropout_rate=0.1,
        max_length=512,
        dtype="bfloat16",
        matmul_dtype="bfloat16",
    ),
    train=tj.TrainConfig(
        steps=100_000,
        optimizer=tj.Adam(b1=0.9, b2=0.98, eps=1e-9),
        schedule=tj.RsqrtSchedule(warmup_steps=4000),
        label_smoothing=0.1,
        reduce_dtype="bfloat16",
        evaluate_every=3000,
        checkpoint_every=1500,
        keep_checkpoints=5,
    ),
    decode=tj.DecodeConfig(
        method=tj.Beam(beam_size=4, length_penalty=0.6),
        max_length_factor=1.0,
        max_length_offset=50,
    ),
)
