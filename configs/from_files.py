r"""Your own parallel text: two files, line by line, from about 10,000 to a million pairs.

Command:   python train.py --config=configs/from_files.py --workdir=runs/mine \
               --config.data.source.train_source=train.en \
               --config.data.source.train_target=train.de
           python eval.py --workdir=runs/mine --split=validation
Hardware:  a laptop's CPU for tens of thousands of pairs, a GPU for a million
Time:      not yet run
Score:     not yet run

Files may be gzipped (train.en.gz) and several (a.en,b.en with a.de,b.de). A .tsv file (source
TAB target) or a .jsonl file (the language codes as keys) holds both sides and is given as
train_source alone. The direction is read off two endings such as .en and .de; for other names
set --config.data.source_language=en and --config.data.target_language=de.

The last 1000 pairs are held out for validation, unless validation files are given:
    --config.data.source.validation_source=dev.en --config.data.source.validation_target=dev.de
A test set, which eval.py scores by default: data.source.test_source and data.source.test_target.

With less than about 30,000 pairs take tokenizer.vocab_size=4000 and model.dropout_rate=0.3;
from some 500,000 on, tokenizer.vocab_size=16000 and model.dropout_rate=0.1. Training stops
when validation BLEU has not risen for five evaluations. `steps` also sets the length of the
learning rate's fall, so fewer steps are a shorter whole training, not a cut one; with less
than some 10,000 take a tenth of them for train.schedule.warmup_steps.
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
    decode=tj.DecodeConfig(beam_size=4, length_penalty=0.6, max_source_length=192),
)
