r"""Your own parallel text: two files, line by line, from a few thousand pairs to many millions.

Command:   python train.py --config=configs/from_files.py --workdir=runs/mine \
               --config.data.source.train_source=train.en \
               --config.data.source.train_target=train.de --config.train.minutes=60
           python eval.py --workdir=runs/mine --split=validation
Hardware:  a laptop's CPU for up to some 100,000 pairs, a GPU for more
Time:      as --config.train.minutes says; without it, the log estimates it after some steps
Score:     docs/results.md has some texts of 10,000 to 156,000 pairs

Model, dropout, vocabulary and steps follow from the number of pairs, by the table below.
The first start prints what it chose; a flag, such as --config.model.d_model=256, changes any of it.
The steps of the table are the most; --config.train.minutes lowers them to what this machine does.
docs/usage.md describes formats, validation and test sets.
"""

import transformer_jax as tj

# fmt: off
#: A text has the first row whose number is above its number of pairs, or `config` if there is none.
#: On a CPU, larger texts have the fourth row. The fourth is the recipe tatoeba_en_de; the third is
#: multi30k_en_de with batches of half the size, with which a short training gets further
#: (docs/results.md). The rates of dropout suit half an hour on two cores; a training that sees its
#: text more than 30 times may take 0.3, one that sees it less than 15 times 0.1.
by_pairs = tj.ByPairs(
    keys=(
        "tokenizer.vocab_size", "model.d_model", "model.d_ff", "model.num_heads",
        "model.encoder.num_layers", "model.decoder.num_layers", "model.dropout_rate",
        "batch.tokens", "batch.num_buckets",
        "train.steps", "train.schedule.learning_rate", "train.schedule.warmup_steps",
        "train.evaluate_every", "data.validation_from_train",
    ),
    below={
        5_000: (1000, 192, 512, 4, 3, 3, 0.3, 1024, 4, 3000, 2e-3, 300, 500, 200),
        20_000: (3000, 192, 512, 4, 3, 3, 0.3, 1024, 6, 12_000, 2e-3, 800, 1000, 500),
        60_000: (6000, 192, 512, 4, 3, 3, 0.2, 1024, 8, 24_000, 2e-3, 1200, 1000, 1000),
        200_000: (8000, 256, 1024, 4, 3, 3, 0.1, 2048, 8, 16_000, 2e-3, 1000, 1000, 1000),
        500_000: (8000, 384, 1536, 6, 4, 4, 0.1, 4096, 12, 20_000, 1e-3, 2000, 1000, 1000),
        5_000_000: (16_000, 384, 1536, 6, 4, 4, 0.1, 4096, 16, 40_000, 1e-3, 2000, 2000, 1000),
    },
    on_cpu=199_999,
)
# fmt: on

config = tj.Config(
    data=tj.DataConfig(validation_from_train=1000),
    tokenizer=tj.TokenizerConfig(kind="unigram", vocab_size=32_000),
    batch=tj.BatchConfig(tokens=8192, max_length=128),
    model=tj.ModelConfig(
        d_model=512,
        d_ff=2048,
        num_heads=8,
        encoder=tj.StackConfig(num_layers=6),
        decoder=tj.StackConfig(num_layers=6),
        dropout_rate=0.1,
        dtype="auto",
        matmul_dtype="auto",
        max_length=192,
    ),
    train=tj.TrainConfig(
        steps=100_000,
        schedule=tj.CosineSchedule(learning_rate=7e-4, warmup_steps=4000),
        ema_decay=0.999,
        evaluate_every=2000,
        early_stopping=8,
        checkpoint_every=1000,
    ),
    decode=tj.DecodeConfig(method=tj.Beam(beam_size=4, length_penalty=0.6), max_source_length=192),
)
