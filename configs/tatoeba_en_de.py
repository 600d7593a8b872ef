r"""Tatoeba English to German: some 156,000 pairs of short everyday sentences.

Command:   python train.py --config=configs/tatoeba_en_de.py --workdir=runs/tatoeba \
               --config.data.source.train_source=train.en.gz \
               --config.data.source.train_target=train.de.gz \
               --config.data.source.validation_source=valid.en.gz \
               --config.data.source.validation_target=valid.de.gz \
               --config.data.source.test_source=test.en.gz \
               --config.data.source.test_target=test.de.gz
           python eval.py --workdir=runs/tatoeba
Hardware:  2 CPU cores
Time:      26 minutes with --config.train.minutes=25 on one core of an AMD EPYC with AVX-512 bf16,
           3,124 steps beside other programs (2026-11-23). All 16,000 steps: not yet run
Score:     32.95 BLEU, 52.33 chrF++ after 3,124 steps; German to English 34.72 BLEU,
           51.69 chrF++ after 2,118 (docs/results.md)

The text comes from files: the TFDS set "tatoeba" is a different one, a small set for testing
sentence retrieval. Many English sentences have several German translations. Split the text by
English sentence, or the test set will contain sentences of the training set.
"""

import transformer_jax as tj

config = tj.Config(
    data=tj.DataConfig(source_language="en", target_language="de"),
    tokenizer=tj.TokenizerConfig(kind="unigram", vocab_size=8000),
    batch=tj.BatchConfig(tokens=2048, max_length=64, num_buckets=8),
    model=tj.ModelConfig(
        d_model=256,
        d_ff=1024,
        num_heads=4,
        encoder=tj.StackConfig(num_layers=3),
        decoder=tj.StackConfig(num_layers=3),
        dropout_rate=0.2,
        dtype="auto",
        matmul_dtype="auto",
        max_length=96,
    ),
    train=tj.TrainConfig(
        steps=16_000,
        schedule=tj.CosineSchedule(learning_rate=2e-3, warmup_steps=1000),
        ema_decay=0.999,
        evaluate_every=1000,
        checkpoint_every=1000,
    ),
    decode=tj.DecodeConfig(method=tj.Beam(beam_size=4, length_penalty=0.6), max_source_length=96),
)
