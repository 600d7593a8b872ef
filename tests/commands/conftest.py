"""A run on several corpora, trained once for the files that look at it; refused commands."""

from pathlib import Path

import pytest

from tests.conftest import write_texts

CORPORA = """
import transformer_jax as tj

en_de = tj.Files(train_source=("{place}/train.en",), train_target=("{place}/train.de",),
                 test_source=("{place}/test.en",), test_target=("{place}/test.de",))
en_fr = tj.Files(train_source=("{place}/train.en",), train_target=("{place}/train.fr",))

config = tj.Config(
    data=tj.DataConfig(
        corpora=(
            tj.Corpus(en_de),
            tj.Corpus(en_de, reverse=True, weight=0.7),
            tj.Corpus(en_fr),
            tj.Corpus(en_de, tag="<bt>", weight=1.5),
        ),
        temperature=2.0,
        validation_from_train=20,
        cache_dir="{place}/cache",
    ),
    tokenizer=tj.TokenizerConfig(vocab_size=420, sampling_alpha=0.3),
    batch=tj.BatchConfig(tokens=512, max_length=64, num_buckets=2),
    model=tj.ModelConfig(d_model=16, d_ff=32, num_heads=2, max_length=64,
                         encoder=tj.StackConfig(num_layers=1),
                         decoder=tj.StackConfig(num_layers=1)),
    train=tj.TrainConfig(steps=8, evaluate_every=4, evaluate_sentences=4, checkpoint_every=4,
                         log_every=2),
    decode=tj.DecodeConfig(method=tj.Greedy(), max_length_factor=0.5, max_length_offset=4),
)
"""


@pytest.fixture(scope="session")
def corpora_place(tmp_path_factory) -> Path:
    """A folder with the texts of `CORPORA`, and with it as recipe.py: leave it as it is."""
    folder = write_texts(tmp_path_factory.mktemp("corpora"))
    german = (folder / "train.de").read_text().splitlines()
    (folder / "train.fr").write_text("".join(line[::-1] + "\n" for line in german))
    (folder / "recipe.py").write_text(CORPORA.format(place=folder))
    return folder


@pytest.fixture(scope="session")
def corpora_run(corpora_place) -> Path:
    """A run of this recipe: copy it before you change it."""
    from transformer_jax.commands.main import main

    workdir = corpora_place / "run"
    recipe = f"--config={corpora_place / 'recipe.py'}"
    assert main(["train", recipe, f"--workdir={workdir}", "--no_progress"]) == 0
    return workdir


@pytest.fixture
def refused(capsys):
    """refused(words) -> the line in which a command is refused, the last on standard error."""
    from transformer_jax.commands.main import main

    def refused(words):
        capsys.readouterr()
        assert main(words) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("error: ")
        return line

    return refused
