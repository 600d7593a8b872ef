r"""Teaches an imported NLLB a language that it lacks, and keeps its other languages.

Command:   transformer-jax import --from=nllb-200-distilled-600M --workdir=runs/nllb \
               --source_language=deu_Latn --target_language=hsb_Latn \
               --add_language=hsb_Latn --from_language=ces_Latn
           python train.py --config=configs/finetune_nllb.py --workdir=runs/sorbian \
               --config.train.init_from=runs/nllb
Hardware:  as docs/tutorial_finetune.md says of adapters, and 8 bytes a number of the embeddings
Time:      as --config.train.minutes says
Score:     not yet run with the published model

The example is Upper Sorbian, which begins as Czech. For another language, copy this file and give
the copy as --config; docs/new_language.md goes through it.

Trained are low-rank adapters and the embeddings, in which the new language has its row; the
encoder and the decoder themselves are frozen. Two directions are new, and two are old ones that
are seen again (replay), so that the model does not forget them: a fifth as often, here. The
measure of what it forgot is `eval --baseline=runs/nllb`.

    --config.model.adapter='lora(rank=16,targets=decoder/*/kernel)'   leaves the encoder as it is
    --config.train.optimizer=adafactor                        less memory for the embeddings

The last 500 pairs of each text are held out for validation, unless there are validation files.
"""

import transformer_jax as tj


def text(name, first, second):
    """Line n of text/NAME.FIRST is the translation of line n of text/NAME.SECOND."""
    files = (f"text/{name}.{first}",), (f"text/{name}.{second}",)
    return tj.Files(train_source=files[0], train_target=files[1])


def both_ways(source, *languages, weight=1.0):
    """A text as two directions."""
    return [
        tj.Corpus(source, languages=languages, reverse=reverse, weight=weight)
        for reverse in (False, True)
    ]


config = tj.Config(
    data=tj.DataConfig(
        corpora=(
            *both_ways(text("new", "deu_Latn", "hsb_Latn"), "deu_Latn", "hsb_Latn"),
            *both_ways(text("old", "deu_Latn", "ces_Latn"), "deu_Latn", "ces_Latn", weight=0.2),
        ),
        validation_from_train=500,
    ),
    batch=tj.BatchConfig(max_length=128, num_buckets=8, length_multiple=8),
    model=tj.ModelConfig(adapter=tj.Lora(rank=16), dtype="auto", matmul_dtype="auto"),
    train=tj.TrainConfig(
        init_from="RUN_FOLDER",  # give another
        frozen=("encoder/*", "decoder/*"),
        steps=5000,
        schedule=tj.ConstantSchedule(learning_rate=2e-4, warmup_steps=200),
        clip_norm=1.0,
        evaluate_every=250,
        early_stopping=5,
        checkpoint_every=250,
    ),
)
