"""Models with language tokens: which languages are asked for, and another one at translation.

A language that a model lacks is one more row; all others stay as they were, and go out again.
"""

import json
import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest

from tests.formats import exporter_suite as suite
from tests.formats.published import CASES, SOURCES
from tests.formats.runtimes import InTransformers, check_texts
from tests.oracles import need
from transformer_jax.commands.main import main
from transformer_jax.errors import UserError
from transformer_jax.formats.export import export
from transformer_jax.formats.exporter import TrainedModel
from transformer_jax.formats.import_model import import_model
from transformer_jax.formats.new_language import with_language
from transformer_jax.models.paths import by_path
from transformer_jax.runs.folder import open_run

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


def test_a_language_that_is_not_known_is_refused(folder, refuses, tmp_path):
    path, case = folder
    for change in ({"target_language": "tlh"}, {"source_language": "tlh"}):
        with pytest.raises(UserError, match="_language: 'tlh' is not a language of the model; one"):
            case.imported(path, tmp_path / "run", **change)
    copy = shutil.copytree(path, tmp_path / "copy")
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    settings.pop("src_lang", None)
    (copy / "tokenizer_config.json").write_text(json.dumps(settings))
    refuses(copy, "source_language: needed by this model; one of")


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


#: The family's case: (the new language, its token).
NEW = {"nllb": ("hsb_Latn", "hsb_Latn"), "m2m100": ("hsb", "__hsb__")}
TABLE = "target_embedding/table"


@pytest.fixture(scope="module", params=NEW)
def published(request, tmp_path_factory):
    """(folder, its case, new language, its token)"""
    path, case = tmp_path_factory.mktemp("published"), CASES[request.param]
    case.build(path)
    return path, case, *NEW[request.param]


def trained(run):
    return TrainedModel(run.config, run.params("latest"), run.tokenizers())


@pytest.mark.parametrize("like", [True, False])
def test_one_row_is_new_and_the_others_are_the_same_to_the_bit(published, tmp_path, capsys, like):
    path, case, code, token = published
    source, target = case.languages
    plain = case.imported(path, tmp_path / "0")
    flags = [f"--source_language={source}", f"--target_language={code}", f"--add_language={code}"]
    flags += [f"--from_language={target}"] * like
    assert main(["import", f"--from={path}", f"--workdir={tmp_path / '1'}", *flags]) == 0
    assert f"{source} -> {code}" in capsys.readouterr().err
    run = open_run(tmp_path / "1")
    old, new = (by_path(each.params("latest")) for each in (plain, run))
    tokenizer = run.tokenizers().target
    place = tokenizer.id_of(token)
    assert tokenizer.prefix == (place,) and place not in run.config.model.unused_ids
    assert old.keys() == new.keys()
    others = np.arange(len(new[TABLE])) != place
    for name, x in new.items():
        before, after = np.asarray(old[name]), np.asarray(x)
        if name == TABLE:
            before, after = before[others[: len(before)]], after[others]
        np.testing.assert_array_equal(before, after)
    tags = list(plain.tokenizers().target.vocabulary.tags)
    rows = np.asarray(old[TABLE])[plain.tokenizers().target.id_of(token.replace(code, target))]
    if not like:
        rows = np.asarray(old[TABLE])[tags].mean(axis=0, dtype=np.float64).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(new[TABLE])[place], rows)
    if like:  # as good as the language it was made of, but for its own share of the probability
        scores = [
            each.translator("latest").score(["the dog"], ["Hund"])[0] for each in (plain, run)
        ]
        assert 0 < scores[0] - scores[1] < 0.1
    pieces = [each.tokenizers().source.encode("the dog") for each in (plain, run)]
    assert pieces[0] == pieces[1]


def test_transformers_reads_it_and_so_do_we(published, tmp_path):
    path, case, code, token = published
    run = case.imported(path, tmp_path / "run", target_language=code, add_language=code)
    export(run, "huggingface", tmp_path / "out", checkpoint="latest")
    theirs = InTransformers(tmp_path / "out", trained(run))
    suite.check_log_probs(trained(run), theirs)
    check_texts(run, "", theirs)
    number = theirs.tokenizer.convert_tokens_to_ids(token)
    source, target = run.tokenizers().source, run.tokenizers().target
    assert number == target.prefix[0] == theirs.model.generation_config.forced_bos_token_id
    assert theirs.tokenizer(SOURCES[0]).input_ids[1:-1] == source.encode(SOURCES[0])[1:]
    again = case.imported(tmp_path / "out", tmp_path / "again", target_language=code)
    assert again.config == run.config
    assert again.tokenizers().files() == run.tokenizers().files()
    jax.tree.map(np.testing.assert_array_equal, again.params("latest"), run.params("latest"))
    # Both ways: the new language is the source.
    back = case.imported(tmp_path / "out", tmp_path / "back", source_language=code)
    assert back.tokenizers().source.prefix == target.prefix


def test_rows_without_a_piece_are_taken_first_and_then_the_table_grows(published, tmp_path):
    path, case, code, token = published
    run = case.imported(path, tmp_path / "run")
    model = trained(run)
    size, sizes = len(model.params["target_embedding"]["table"]), []
    for letter in "abcdefghij":
        before = model
        model = with_language(model, code.replace("h", letter), case.languages.source)
        sizes.append(model.config.model.target_vocab_size)
        rows = model.params["target_embedding"]["table"]
        assert rows.shape[0] == sizes[-1] == model.tokenizers.source.vocab_size
        old = np.asarray(before.params["target_embedding"]["table"])
        changed = np.flatnonzero((rows[: len(old)] != old).any(axis=1)).tolist()
        assert len(changed) + len(rows) - len(old) == 1
    free = len(run.config.model.unused_ids)
    assert sizes == [max(size, size + i - free) for i in range(1, 11)] and free < 10
    pieces = model.tokenizers.target.pieces(range(sizes[-1]))
    assert len(set(pieces)) == sizes[-1] and pieces[-1] == token.replace("h", "j", 1)


def test_what_cannot_be_added_is_refused(published, tmp_path):
    path, case, code, _ = published
    source, target = case.languages

    def refused(words, **options):
        with pytest.raises(UserError, match=words) as error:
            case.imported(path, tmp_path / "run", **options)
        assert "\n" not in str(error.value) and not (tmp_path / "run").exists()

    refused(f"add_language={target}: the model has this language", add_language=target)
    refused("from_language=tlh: not a language", add_language=code, from_language="tlh")
    refused("name the new language with add_language", from_language=source)
    for other in ("hsb", "hsb_latn") if "_" in code else ("hsb_Latn",):
        refused("write the code as the model writes its own, such as", add_language=other)


def test_a_model_without_language_tokens_is_refused(tmp_path):
    CASES["marian"].build(tmp_path)
    with pytest.raises(UserError, match="no language tokens before source and target"):
        import_model(tmp_path, tmp_path / "run", add_language="hsb")
