r"""Multi30k English to German: 29,000 image captions, a small model.

Command:   python train.py --config=configs/multi30k_en_de.py --workdir=runs/multi30k \
               --config.data.source.train_source=train.en.gz \
               --config.data.source.train_target=train.de.gz \
               --config.data.source.validation_source=val.en.gz \
               --config.data.source.validation_target=val.de.gz \
               --config.data.source.test_source=test_2016_flickr.en.gz \
               --config.data.source.test_target=test_2016_flickr.de.gz
           python eval.py --workdir=runs/multi30k --checkpoint=latest
Hardware:  2 CPU cores
Time:      51 minutes in all on two cores of an Intel Xeon with AMX (bfloat16 products), tokenizer,
           compilation and validation included; another program used the idle time (2026-11-22).
           On two cores of an AMD EPYC with AVX-512 bf16, 76 minutes with half an hour of stops, 4.6
           to 9.4 steps a second (2026-11-23)
Score:     39.15 BLEU, 62.08 chrF++ on test_2016_flickr, lower-cased 39.58 BLEU (AVX-512)
Signature: nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0

The checkpoint and the length penalty were chosen on the validation set (beam 5, all 1,014
sentences): 41.09 BLEU with them; 40.35 with length_penalty=0.6 and length_penalty_form=gnmt; 40.17
with that and the best checkpoint by 300 sentences. A run on AMX scored 39.42 BLEU, 61.94 chrF++
with these last two settings (2026-11-22).

CPUs without AMX or AVX-512 bf16 have only float32 products and are several times slower. On two
cores with AVX2 these flags, with the same two settings, reached 38.26 BLEU, 60.36 chrF++ in 55
minutes (2026-11-21):
    --config.train.steps=5000 --config.train.ema_decay=0.998
    --config.model.dropout_rate=0.2 --config.tokenizer.sampling_alpha=none
"""

import transformer_jax as tj

config = tj.Config(
    data=tj.DataConfig(source_language="en", target_language="de"),
    tokenizer=tj.TokenizerConfig(kind="unigram", vocab_size=5000, sampling_alpha=0.2),
    batch=tj.BatchConfig(tokens=2048, max_length=64),
    model=tj.ModelConfig(
        d_model=192,
        d_ff=512,
        num_heads=4,
        encoder=tj.StackConfig(num_layers=3),
        decoder=tj.StackConfig(num_layers=3),
        dropout_rate=0.3,
        dtype="auto",
        matmul_dtype="auto",
        max_length=96,
    ),
    train=tj.TrainConfig(
        steps=15_000,
        schedule=tj.CosineSchedule(learning_rate=2e-3, warmup_steps=600),
        ema_decay=0.999,
        evaluate_every=1250,
        evaluate_sentences=300,
        checkpoint_every=1250,
    ),
    decode=tj.DecodeConfig(
        method=tj.Beam(beam_size=5, length_penalty=1.0, length_penalty_form="power"),
        max_source_length=96,
    ),
)
