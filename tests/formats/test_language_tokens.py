"""Models with language tokens: which languages are asked for, and another one at translation."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.formats.published import CASES
from tests.oracles import need
from transformer_jax.errors import UserError
from transformer_jax.formats.import_model import import_model

need("torch")
need("transformers")


@pytest.fixture(scope="module", params=["m2m100", "nllb", "mbart-50"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("folder")
    case = CASES[request.param]
    case.build(path)
    return path, case


def test_another_language_is_chosen_by_its_token(folder, tmp_path):
    path, case = folder
    run = case.imported(path, tmp_path / "run")
    tokenizers, translator = run.tokenizers(), run.translator()
    source, target = tokenizers.source, tokenizers.target
    (other,) = source.pieces(source.prefix)  # into the source's own language
    first = translator.n_best(["the dog"], 1)[0][0]
    assert first.tokens[:1] == target.prefix
    assert first.text == target.decode(first.tokens[1:])
    second = translator.n_best(["the dog"], 1, target_prefix=other)[0][0]
    assert second.tokens[:1] == source.prefix != target.prefix
    # The same by the language's code; the token before the source stays, or is chosen too.
    own, into = case.languages
    assert translator.n_best(["the dog"], 1, target_language=own)[0][0] == second
    assert translator.n_best(["the dog"], 1, target_language=into)[0][0] == first
    config = replace(translator.decode_config, source_language=into)
    token = translator.source_encoder(config)("the dog")
    assert token == [*target.prefix, *source.encode("the dog")[1:]]
    with pytest.raises(UserError, match="target_language=tlh: the model has no tag for it; it has"):
        translator.translate(["the dog"], target_language="tlh")
    ids = target.encode("chat")
    assert ids[:1] == list(target.prefix)
    assert target.decode(ids) == target.decode(ids[1:])  # the token is not text
    scores = translator.score(["the dog"] * 2, ["chat", target.encode("chat")[1:]])
    np.testing.assert_array_equal(scores[0], scores[1])
    retagged = f"{target.pieces(target.prefix)[0]} the dog"
    assert source.encode(retagged) == [*target.prefix, *source.encode("the dog")[1:]]


def test_a_language_that_is_not_known_is_refused(folder, tmp_path):
    path, case = folder
    for change in ({"target_language": "tlh"}, {"source_language": "tlh"}):
        with pytest.raises(UserError, match="_language: 'tlh' is not a language of the model; one"):
            case.imported(path, tmp_path / "run", **change)
    copy = shutil.copytree(path, tmp_path / "copy")
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    settings.pop("src_lang", None)
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(UserError, match="source_language: needed by this model; one of"):
        import_model(copy, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_list_of_language_tokens_may_be_in_any_of_three_files(tmp_path):
    case = CASES["nllb"]
    case.build(tmp_path)
    want = case.imported(tmp_path, tmp_path / "0")
    added = json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="no file lists the language tokens"):
        (tmp_path / "tokenizer_config.json").write_text("{}")
        case.imported(tmp_path, tmp_path / "1")
    numbered = {str(token["id"]): {"content": token["content"]} for token in added}
    in_order = [token["content"] for token in sorted(added, key=lambda token: token["id"])][4:]
    for number, (name, content) in enumerate(
        [
            ("tokenizer_config.json", {"added_tokens_decoder": numbered}),
            ("special_tokens_map.json", {"additional_special_tokens": in_order}),
        ],
        start=2,
    ):
        (tmp_path / "tokenizer_config.json").write_text("{}")
        (tmp_path / name).write_text(json.dumps(content))
        got = case.imported(tmp_path, tmp_path / str(number))
        assert got.tokenizers().target.model == want.tokenizers().target.model


def test_the_tokens_of_mbart_25_and_the_old_order_of_nllb_are_refused(folder, tmp_path):
    path, case = folder
    copy = shutil.copytree(path, tmp_path / "copy")
    is_mbart = '"mbart"' in (copy / "config.json").read_text()
    key, value = ("tokenizer_class", "MBartTokenizer") if is_mbart else ("legacy_behaviour", True)
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps(settings | {key: value}))
    with pytest.raises(UserError, match=f"{key}={value!r} cannot be expressed"):
        case.imported(copy, tmp_path / "run")
