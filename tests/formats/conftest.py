"""Tokenizers, trained once for all tests of formats."""

import shutil

import pytest


@pytest.fixture(scope="session")
def tokenizers():
    """A joint vocabulary of 350 pieces."""
    from tests.formats import exporter_suite

    return exporter_suite.tokenizers()


@pytest.fixture(scope="session")
def two(tokenizers):
    """Two vocabularies of different sizes and kinds."""
    from transformer_jax.data.config import TokenizerConfig
    from transformer_jax.data.sources.grammar.sentences import generate
    from transformer_jax.data.tokenizer_pair import Tokenizers
    from transformer_jax.data.tokenizer_training import train_tokenizer

    texts = [pair[1] for pair in generate(1, 200)]
    other = train_tokenizer(TokenizerConfig(vocab_size=330, kind="bpe"), texts, "target")
    return Tokenizers(tokenizers.source, other)


@pytest.fixture
def refuses(tmp_path):
    """refuses(folder, words) -> the line in which its import is refused; no run is left."""
    from transformer_jax.errors import UserError
    from transformer_jax.formats.import_model import import_model

    def refuses(folder, words):
        with pytest.raises(UserError, match=words) as refusal:
            import_model(folder, tmp_path / "refused")
        assert "\n" not in str(refusal.value) and not (tmp_path / "refused").exists()
        return str(refusal.value)

    return refuses


@pytest.fixture(scope="session")
def student(tokenizers):
    """A random student, in the form that Bergamot's engine takes."""
    from tests.formats import exporter_suite
    from tests.formats.test_bergamot import STUDENT

    return exporter_suite.random_model(exporter_suite.small(**STUDENT), tokenizers)


@pytest.fixture(scope="session")
def student_folder(student, tmp_path_factory):
    """What is exported of it: leave it as it is."""
    from transformer_jax.formats.export import write
    from transformer_jax.formats.marian.bergamot import Bergamot
    from transformer_jax.paths import as_path

    folder = tmp_path_factory.mktemp("student") / "out"
    write(Bergamot(), student, as_path(folder))
    return folder


@pytest.fixture
def folder(student_folder, tmp_path):
    """A copy of that."""
    return shutil.copytree(student_folder, tmp_path / "folder")
