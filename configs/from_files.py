r"""Your own parallel text: two files, line by line, from about 10,000 to a million pairs.

Command:   python train.py --config=configs/from_files.py --workdir=runs/mine \
               --config.data.source.train_source=train.en \
               --config.data.source.train_target=train.de
           python eval.py --workdir=runs/mine --split=validation
Hardware:  a laptop's CPU for tens of thousands of pairs, a GPU for a million
Time:      not yet run
Score:     not yet run

Files may be gzipped (train.en.gz), and there may be several (a.en,b.en with a.de,b.de). A .tsv
file (source TAB target) or a .jsonl file (the language codes as keys) has both sides and is given
as train_source alone. The languages are those of the file names' endings, such as .en and .de;
for other names set --config.data.source_language=en and --config.data.target_language=de.

The last 1000 pairs are held out for validation, unless there are validation files:
    --config.data.source.validation_source=dev.en --config.data.source.validation_target=dev.de
Give a test set, which eval.py scores by default, as data.source.test_source and
data.source.test_target.

With fewer than about 30,000 pairs use tokenizer.vocab_size=4000 and model.dropout_rate=0.3; with
more than about 500,000, tokenizer.vocab_size=16000 and model.dropout_rate=0.1. Training stops
when validation BLEU has not risen for five evaluations. The learning rate falls to 0 over
train.steps, so fewer steps make a shorter training, not an interrupted one. With fewer than about
10,000 steps, set train.schedule.warmup_steps to a tenth of them.
"""

import transformer_jax as tj

config = tj.Config(
    data=tj.DataConfig(validation_from_train=1000),
    tokenizer=tj.TokenizerConfig(kind="unigram", vocab_size=8000),
    batch=tj.BatchConfig(tokens=4096, max_length=128),
    model=tj.ModelConfig(
        d_model=384,
        d_ff=1536,
        num_heads=6,
        encoder=tj.StackConfig(num_layers=4),
        decoder=tj.StackConfig(num_layers=4),
        dropout_rate=0.2,
        matmul_dtype="auto",
        max_length=192,
    ),
    train=tj.TrainConfig(
        steps=20_000,
        schedule=tj.CosineSchedule(learning_rate=1e-3, warmup_steps=2000),
        ema_decay=0.999,
        evaluate_every=1000,
        early_stopping=5,
        checkpoint_every=1000,
    ),
    decode=tj.DecodeConfig(method=tj.Beam(beam_size=4, length_penalty=0.6), max_source_length=192),
)
