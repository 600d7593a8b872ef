"""`--format=stablehlo` is all that a process without this package needs."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import sentencepiece

from tests.interop import exporter_suite as suite
from tests.interop import jax_alone
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.interop.export import write
from transformer_jax.interop.exporters.stablehlo import StableHLO
from transformer_jax.mixers.window import Window
from transformer_jax.paths import as_path
from transformer_jax.translation.model import SingleModel
from transformer_jax.translation.model_calls import Sources, decode_batch
from transformer_jax.translation.translator import Translator
from transformer_jax.vocabulary import EOS_ID

DECODE = DecodeConfig(method=Beam(beam_size=3), max_length_factor=1.1, max_length_offset=2)


@pytest.fixture(scope="module")
def model():
    model = suite.random_model(suite.small(), suite.tokenizers())
    return model._replace(config=replace(model.config, decode=DECODE))


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stablehlo") / "out"
    write(StableHLO(), model, as_path(folder))
    return folder


def searched(model, sources, method):
    ids_BS, mask_BS = suite.Ours._padded(sources)
    limits_B = [min(DECODE.max_target_length(len(s) + 1), suite.MAX_LENGTH) for s in sources]
    found = decode_batch(
        model.params,
        Sources(ids_BS, mask_BS, np.array(limits_B, np.int32), np.zeros(len(sources), np.int32)),
        model=SingleModel(model.config.model),
        method=method,
        max_length=suite.MAX_LENGTH,
    )
    tokens_BT, lengths_B = np.asarray(found.tokens)[:, 0], np.asarray(found.lengths)[:, 0]
    return [row[: n - 1].tolist() for row, n in zip(tokens_BT, lengths_B, strict=True)]


def test_in_a_process_without_this_package(model, folder, tmp_path):
    vocab_size = model.tokenizers.target.vocab_size
    given = {key: suite.sentences(i, vocab_size) for i, key in enumerate(("sources", "targets"))}
    (tmp_path / "in.json").write_text(json.dumps(given))
    subprocess.run(
        [
            sys.executable,
            "-P",
            jax_alone.__file__,
            str(folder),
            str(tmp_path / "in.json"),
            str(tmp_path / "out.json"),
        ],
        check=True,
        cwd=tmp_path,
    )
    found = json.loads((tmp_path / "out.json").read_text())
    want = suite.Ours(model).log_probs(given["sources"], given["targets"])
    for got, expected in zip(found["log_probs"], want, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)
    assert found["greedy"] == searched(
        model, given["sources"], DECODE.method.__class__(beam_size=1)
    )
    assert found["beam"] == searched(model, given["sources"], DECODE.method)
    assert found["beam"] != found["greedy"]


def test_any_batch_and_any_length(model, folder):
    programs = jax_alone.Programs(folder)
    about = json.loads((folder / "programs.json").read_text())
    assert about["programs"]["beam"]["inputs"] == ["params", "int32[b, s]", "int32[b]"]
    sources = suite.sentences(3, model.tokenizers.source.vocab_size)
    whole = programs.greedy(sources)
    assert [programs.greedy([source])[0] for source in sources] == whole


@pytest.mark.parametrize(
    ("target_language", "target_prefix"), [(None, ""), ("fra_Latn", ""), (None, "Anna")]
)
def test_texts_are_translated_as_here(target_language, target_prefix, tmp_path):
    """With pieces under other ids, language tokens, a prefix and controls of repetition."""
    model = suite.random_model(suite.small(), suite.language_tokenizers())
    decode = replace(
        DECODE,
        target_language=target_language,
        target_prefix=target_prefix,
        no_repeat_ngram=2,
        repetition_penalty=1.3,
    )
    model = model._replace(config=replace(model.config, decode=decode))
    write(StableHLO(platforms=("cpu",)), model, as_path(tmp_path / "out"))
    about = json.loads((tmp_path / "out" / "programs.json").read_text())
    assert about["programs"]["beam"]["inputs"] == ["params", "int32[b, s]", "int32[b]"]
    tokenizers = json.loads((tmp_path / "out" / "tokenizers.json").read_text())
    source, target = tokenizers["source.model"], tokenizers["target.model"]
    spm = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "out" / "source.model"))
    texts = ["The dog sleeps.", "The old man sees a cat.", "Ω"]
    pieces = spm.encode(texts, out_type=str)
    sources = [source["prefix"] + [source["pieces"].index(p) for p in each] for each in pieces]
    translator = Translator(model.config.model, model.params, model.tokenizers, decode)
    want = [each[0] for each in translator.n_best(texts, 1)]
    got = jax_alone.Programs(tmp_path / "out").search("beam", sources)
    assert [[*ids, EOS_ID] for ids in got] == [list(each.tokens) for each in want]
    for ids, each in zip(got, want, strict=True):
        num_prefix = len(target["prefix"])
        assert ids[:num_prefix] == target["prefix"]
        assert spm.decode([target["pieces"][i] for i in ids[num_prefix:]]) == each.text


def test_what_is_not_in_the_programs_is_refused(model):
    config = replace(model.config, decode=replace(DECODE, mbr="pairwise"))
    with pytest.raises(UserError, match=r"decode\.mbr=pairwise: StableHLO cannot express it"):
        StableHLO().check(config)


def test_fixed_sizes_where_a_mixer_needs_them(model, tmp_path):
    decode = replace(DECODE, batch_size=9)
    config = suite.small(encoder={"mixers": (Window(window=3),)})
    model = suite.random_model(config, model.tokenizers)
    model = model._replace(config=replace(model.config, decode=decode))
    write(StableHLO(platforms=("cpu",)), model, as_path(tmp_path / "out"))
    programs = jax_alone.Programs(tmp_path / "out")
    assert programs.sizes == (9, suite.MAX_LENGTH)
    suite.check_log_probs(model, programs)


def test_bfloat16_products(model, tmp_path):
    config = suite.small(matmul_dtype="bfloat16")
    model = suite.random_model(config, model.tokenizers)
    write(StableHLO(), model, as_path(tmp_path / "out"))
    suite.check_log_probs(model, jax_alone.Programs(tmp_path / "out"), tolerance=0.3)


def test_unknown_platform(model):
    with pytest.raises(UserError, match="platforms=gpu.*use some of cpu, cuda, rocm, tpu"):
        StableHLO(platforms=("gpu",)).check(model.config)
