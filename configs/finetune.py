r"""Goes on with a trained or imported model on your own text.

Command:   python train.py --config=configs/finetune.py --workdir=runs/medical \
               --config.train.init_from=runs/mine \
               --config.data.source.train_source=medical.en \
               --config.data.source.train_target=medical.de
Hardware:  as the training of the model; less memory with adapters
Time:      as --config.train.minutes says
Score:     10.89 to 19.22 BLEU in 12 minutes with a small model in place of a published one
           (docs/tutorial_finetune.md)

Model, tokenizers, languages and decoding are those of the run folder that train.init_from names;
its best checkpoint is the start, and its BLEU on the validation set is logged as step 0. The text
has the forms of configs/from_files.py. Its last 500 pairs are held out for validation, unless
there are validation files. Without a text it is that of the run.

    --config.model.adapter='lora(rank=8)'    trains low-rank adapters alone; use a learning rate
                                             ten times higher
    --config.train.frozen='encoder/*'        trains the rest alone
    --config.model.quantize=int8             simulates int8 (docs/students.md)

Training stops when validation BLEU has not risen for five evaluations.

A batch has 4,096 target slots for each device that shares it, activations are bfloat16 on an
accelerator, and lengths are multiples of 8, which suit one. docs/tutorial_finetune.md says what
fits where.
"""

import transformer_jax as tj

config = tj.Config(
    data=tj.DataConfig(validation_from_train=500),
    batch=tj.BatchConfig(max_length=128, num_buckets=8, length_multiple=8),
    model=tj.ModelConfig(dtype="auto", matmul_dtype="auto"),
    train=tj.TrainConfig(
        init_from="RUN_FOLDER",  # give another
        steps=5000,
        schedule=tj.ConstantSchedule(learning_rate=5e-5, warmup_steps=200),
        clip_norm=1.0,
        evaluate_every=250,
        early_stopping=5,
        checkpoint_every=250,
    ),
)
