r"""A student of 3 + 1 layers for texts of some 10,000 to 200,000 pairs.

Command:   transformer-jax distil --teacher=runs/teacher --config=configs/student_small_text.py \
               --workdir=runs/student
Hardware:  a CPU core
Time:      21 minutes on one core of an AMD EPYC with AVX-512 bf16 (2026-11-25); the translations of
           29,000 sentences before it took a minute on two
Score:     36.44 BLEU, 58.95 chrF++ on Multi30k, greedy, of a teacher with 38.85 BLEU and four times
           the parameters; 36.25 BLEU with ssru

The text is the teacher's unless flags name another (docs/students.md). The vocabulary is its own
and small, as the table of embeddings is much of a small model. It has 853,584 parameters, and
820,560 with --config.model.decoder.mixers=ssru, which decodes faster.

The model is one that Marian's runtimes compute too: norms after the residual connections, Marian's
sinusoids, a decoder that starts from zeros, a bias for each target piece, and widths that are
multiples of 64.
"""

from dataclasses import replace

import transformer_jax as tj

tiny = tj.load_recipe("student_tiny")
config = replace(
    tiny,
    tokenizer=tj.TokenizerConfig(vocab_size=2000),
    batch=tj.BatchConfig(tokens=2048, max_length=96, num_buckets=8),
    model=replace(
        tiny.model,
        d_model=128,
        d_ff=256,
        num_heads=4,
        encoder=replace(tiny.model.encoder, num_layers=3),
        decoder=replace(tiny.model.decoder, num_layers=1),
        max_length=128,
    ),
    train=tj.TrainConfig(
        steps=16_000,
        schedule=tj.CosineSchedule(learning_rate=2e-3, warmup_steps=1000),
        label_smoothing=0.0,  # as in student_tiny
        ema_decay=0.999,
        evaluate_every=1000,
        checkpoint_every=1000,
    ),
    decode=replace(tiny.decode, max_source_length=128),
)
