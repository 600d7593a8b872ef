r"""A student of 6 + 4 layers for large texts, in the shape of Mozilla's `base-memory`.

Command:   transformer-jax distil --teacher=runs/teacher --config=configs/student_base_memory.py \
               --workdir=runs/student
Hardware:  a GPU
Time:      not yet run
Score:     not yet run

Text and tokenizers are the teacher's unless flags name others (docs/students.md). With 8,000 pieces
for both languages it has 23,187,776 parameters, and 22,005,056 with
--config.model.decoder.mixers=ssru, which decodes faster.

The model is one that Marian's runtimes compute too: norms after the residual connections, Marian's
sinusoids, a decoder that starts from zeros, a bias for each target piece, and widths that are
multiples of 64. A teacher with a vocabulary for each language needs
--config.model.tie_embeddings=decoder.
"""

from dataclasses import replace

import transformer_jax as tj

tiny = tj.load_recipe("student_tiny")
config = replace(
    tiny,
    model=replace(tiny.model, d_model=384, decoder=replace(tiny.model.decoder, num_layers=4)),
)
