r"""IWSLT 2014 German to English: some 160,000 sentences of TED talks, much dropout.

Command:   python train.py --config=configs/iwslt14_de_en.py --workdir=runs/iwslt14 \
               --config.data.source.train_source=train.de \
               --config.data.source.train_target=train.en \
               --config.data.source.validation_source=valid.de \
               --config.data.source.validation_target=valid.en \
               --config.data.source.test_source=test.de \
               --config.data.source.test_target=test.en
           python eval.py --workdir=runs/iwslt14 --checkpoint=average:5
Hardware:  one GPU
Time:      not yet run
Score:     not yet run

TensorFlow Datasets does not have this set (its ted_hrlr_translate has no German), so it comes from
text files; give raw, cased text. Published scores are often on lowercased, tokenised text, which
cannot be compared with sacreBLEU on cased text.

The sizes are those known as transformer_iwslt_de_en. Different from it: layer norm before each
sublayer, one vocabulary for both languages, and all three embeddings tied.
"""

import transformer_jax as tj

config = tj.Config(
    data=tj.DataConfig(source_language="de", target_language="en"),
    tokenizer=tj.TokenizerConfig(kind="bpe", vocab_size=10_000),
    batch=tj.BatchConfig(tokens=4096, max_length=175, length_multiple=8),
    model=tj.ModelConfig(
        d_model=512,
        d_ff=1024,
        num_heads=4,
        dropout_rate=0.3,
        dtype="auto",
        matmul_dtype="auto",
        max_length=256,
    ),
    train=tj.TrainConfig(
        steps=50_000,
        optimizer=tj.AdamW(weight_decay=1e-4),
        schedule=tj.RsqrtSchedule(learning_rate=5e-4, warmup_steps=4000),
        evaluate_every=2000,
        checkpoint_every=2000,
    ),
    decode=tj.DecodeConfig(method=tj.Beam(beam_size=5, length_penalty=1.0)),
)
