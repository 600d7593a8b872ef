r"""A student of 6 + 2 layers for large texts, in the shape of Mozilla's and Bergamot's `tiny`.

Command:   transformer-jax distil --teacher=runs/teacher --config=configs/student_tiny.py \
               --workdir=runs/student
Hardware:  a GPU
Time:      not yet run
Score:     not yet run

Text and tokenizers are the teacher's unless flags name others (docs/students.md). With 8,000 pieces
for both languages it has 11,000,128 parameters, and 10,736,960 with
--config.model.decoder.mixers=ssru, which decodes faster.

The model is one that Marian's runtimes compute too: norms after the residual connections, Marian's
sinusoids, a decoder that starts from zeros, a bias for each target piece, and widths that are
multiples of 64. A teacher with a vocabulary for each language needs
--config.model.tie_embeddings=decoder.
"""

import transformer_jax as tj

config = tj.Config(
    batch=tj.BatchConfig(max_length=128, length_multiple=8),
    model=tj.ModelConfig(
        d_model=256,
        d_ff=1536,
        num_heads=8,
        encoder=tj.StackConfig(num_layers=6, position=tj.Sinusoidal(form="tensor2tensor")),
        decoder=tj.StackConfig(num_layers=2, position=tj.Sinusoidal(form="tensor2tensor")),
        norm_placement="post",
        output_bias=True,
        start_id=None,
        unused_ids=(0, 1, 3),  # no runtime writes padding, BOS or an unknown piece
        dropout_rate=0.1,
        dtype="auto",
        matmul_dtype="auto",
        max_length=192,
    ),
    train=tj.TrainConfig(
        steps=200_000,
        schedule=tj.RsqrtSchedule(learning_rate=5e-4, warmup_steps=8000),
        label_smoothing=0.0,  # a teacher's translations differ less from each other than people's
        ema_decay=0.9995,
        evaluate_every=2500,
        early_stopping=20,
        checkpoint_every=2500,
    ),
    decode=tj.DecodeConfig(method=tj.Greedy(), max_source_length=192),
)
