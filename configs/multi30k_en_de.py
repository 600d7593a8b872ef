r"""Multi30k English to German: 29,000 image captions, a small model, strong dropout.

Command:   python train.py --config=configs/multi30k_en_de.py --workdir=runs/multi30k \
               --config.data.train_source=train.en.gz --config.data.train_target=train.de.gz \
               --config.data.validation_source=val.en.gz \
               --config.data.validation_target=val.de.gz \
               --config.data.test_source=test_2016_flickr.en.gz \
               --config.data.test_target=test_2016_flickr.de.gz
           python eval.py --workdir=runs/multi30k --beam_size=5
Hardware:  2 CPU cores
Time:      not yet run
Score:     not yet run
"""

from transformer_jax.data.config import BatchConfig, DataConfig, TokenizerConfig
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.training.config import Config, OptimizerConfig, TrainConfig

config = Config(
    data=DataConfig(source_language="en", target_language="de"),
    tokenizer=TokenizerConfig(kind="unigram", vocab_size=5000),
    batch=BatchConfig(tokens=2048, max_length=64),
    model=ModelConfig(
        d_model=256,
        d_ff=512,
        num_heads=4,
        encoder=StackConfig(num_layers=3),
        decoder=StackConfig(num_layers=3),
        dropout_rate=0.3,
        matmul_dtype="auto",
        max_length=96,
    ),
    train=TrainConfig(
        steps=6000,
        optimizer=OptimizerConfig(learning_rate=2e-3, warmup_steps=600, schedule="cosine"),
        ema_decay=0.998,
        evaluate_every=1000,
        evaluate_sentences=300,
        checkpoint_every=1000,
    ),
    decode=DecodeConfig(beam_size=5, length_penalty=0.6, max_source_length=96),
)
