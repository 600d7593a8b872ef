from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.oracles import need
from tests.small import small_model
from tests.translation.conftest import LETTERS, LetterTokenizer, assert_same
from transformer_jax.models import api
from transformer_jax.translation import search
from transformer_jax.translation.runner import row_choices
from transformer_jax.translation.text_batches import padded_length
from transformer_jax.vocabulary import UNK_ID


def texts(seed: int, count: int, longest: int = 40) -> list[str]:
    rng = np.random.default_rng(seed)
    letters = list("abcdefghijklmnopqrstuvwxyz")
    return ["".join(rng.choice(letters, size=rng.integers(1, longest))) for _ in range(count)]


def test_the_order_is_the_inputs(make_translator):
    sources = texts(0, 30)
    sources[4] = sources[11] = ""
    sources[7] = "   "
    expected = [source.strip() for source in sources]
    translator = make_translator()
    assert translator.translate(sources) == expected
    assert translator.translate([]) == []
    assert translator.translate([""]) == [""]
    assert translator.translate(["ab\ncd"]) == ["ab cd"]


def test_long_input_is_cut_and_counted_but_never_dropped(make_translator):
    sources = ["abcdefg", "abcdefgh", "", "abcdefghijklmnop", "a"]
    decoded = make_translator(max_source_length=8).decode(sources)
    # Eight pieces with EOS: seven letters fit.
    found = [best[0].text for best in decoded.translations]
    assert found == ["abcdefg", "abcdefg", "", "abcdefg", "a"]
    assert decoded.num_cut == 2
    # The model's own limit counts too, and bounds the target.
    decoded = make_translator(max_length=12).decode(["a" * 11, "a" * 12, "a" * 30])
    assert [len(best[0].text) for best in decoded.translations] == [11, 11, 11]
    assert decoded.num_cut == 2


@pytest.mark.parametrize(
    "method",
    [tj.Beam(beam_size=3), tj.Greedy(), tj.Sample(seed=3)],
    ids=lambda method: type(method).__name__,
)
def test_neither_batch_size_nor_order_changes_a_translation(make_translator, method):
    translator = make_translator(sharpness=3.0, method=method)
    sources = texts(1, 11, longest=20)
    whole = translator.decode(sources)
    for batch_size in (1, 7):
        other = translator.decode(sources, batch_size=batch_size)
        assert_same(other.translations, whole.translations, rtol=1e-5)
    if not isinstance(method, tj.Sample):
        backwards = translator.decode(sources[::-1])
        assert [t[0].tokens for t in backwards.translations[::-1]] == [
            t[0].tokens for t in whole.translations
        ]


def test_few_sentences_take_a_program_of_few_rows(make_translator, monkeypatch):
    """Unless the call says how many; then the translations are the same."""
    sizes, pad = [], search.pad

    def noted(rows, num_rows, length):
        sizes.append(num_rows)
        return pad(rows, num_rows, length)

    monkeypatch.setattr(search, "pad", noted)
    translator = make_translator(method=tj.Greedy(), batch_size=32)
    assert row_choices(32) == [1, 4, 16, 24, 32] and row_choices(1) == [1]
    alone = translator.translate(["abc"])
    assert translator.translate(["abc"] * 3) == alone * 3
    assert translator.translate(["abc"], batch_size=16) == alone
    assert sizes == [1, 4, 16]
    translator.translate(["abc"] * 33)
    assert sizes[3:] == [32] * 2


def test_samples_are_drawn_by_sentence_number(make_translator):
    translator = make_translator(sharpness=2.0, method=tj.Sample())
    sources = texts(2, 6, longest=15)
    whole = translator.translate(sources)
    first = translator.decode(sources[:2]).translations
    rest = translator.decode(sources[2:], first_id=2).translations
    assert [found[0].text for found in first + rest] == whole
    assert translator.translate(sources, method=tj.Sample(seed=1)) != whole
    assert len(set(translator.translate(["abcdefgh"] * 5))) > 1


def test_n_best(make_translator):
    translator = make_translator(sharpness=3.0)
    (found,) = translator.n_best(["hello"], 5)
    assert len({translation.text for translation in found}) == 5
    scores = [translation.score for translation in found]
    assert scores == sorted(scores, reverse=True)
    assert len(translator.n_best(["hello"], 1)[0]) == 1
    assert translator.n_best([""], 3)[0][0].text == ""
    # A call can choose another method.
    (three,) = translator.decode(["hello"], method="beam(beam_size=3)").translations
    assert len(three) == 3
    with pytest.raises(tj.UserError, match="greedy decoding finds one translation, not 2"):
        translator.n_best(["hello"], 2, method=tj.Greedy())


@pytest.mark.parametrize("mbr", [None, "pairwise"])
def test_each_sentence_has_its_own_number_of_translations(make_translator, mbr):
    if mbr:
        need("fastchrf")
    translator = make_translator(sharpness=3.0)
    sources = ["hello", "", "world", "hello world"]
    whole = translator.decode(sources, mbr=mbr).translations
    found = translator.decode(sources, mbr=mbr, num_best=[1, 1, 3, 99]).translations
    assert found == [whole[0][:1], whole[1], whole[2][:3], whole[3]]
    with pytest.raises(tj.UserError, match="num_best: 2 numbers for 4 sentences"):
        translator.decode(sources, num_best=[1, 2])
    with pytest.raises(tj.UserError, match="num_best=0: must be at least 1"):
        translator.decode(sources, num_best=0)


def test_a_real_models_translation_depends_on_its_sentence_alone(monkeypatch):
    model = small_model(32, max_length=48)
    # Larger than they start, so that the model is sure of something.
    params = jax.tree.map(lambda x: 3 * x, api.init(model, jax.random.key(0)))
    decode = tj.DecodeConfig(method=tj.Beam(beam_size=3), batch_size=5, max_length_factor=0.5)
    tokenizers = SimpleNamespace(source=LetterTokenizer(), target=LetterTokenizer())
    translator = tj.Translator(model, params, tokenizers, decode)
    sources = texts(6, 5, longest=15)
    alone = [translator.decode([source], batch_size=1).translations[0] for source in sources]
    monkeypatch.setattr(search, "padded_length", lambda length, limit: 40)
    together_and_wider = translator.decode(sources).translations
    assert_same(alone, together_and_wider, rtol=1e-5)
    assert len({found[0].tokens for found in alone}) == 5


def test_scoring_a_translation_gives_the_log_probability_it_was_found_with(make_translator):
    translator = make_translator(sharpness=4.0)
    sources = texts(3, 9, longest=20)
    best = [found[0] for found in translator.n_best(sources, 1)]
    log_probs = translator.score(sources, [translation.text for translation in best])
    np.testing.assert_allclose(log_probs, [t.log_prob for t in best], rtol=1e-5)
    scored = translator.score_pairs(sources, [translation.text for translation in best])
    assert scored.num_tokens.tolist() == [len(t.tokens) for t in best]
    assert scored.num_cut == 0
    assert translator.score_pairs(["a", "b"], ["a" * 63, "a" * 64]).num_cut == 1
    with pytest.raises(tj.UserError, match="2 source and 1 target"):
        translator.score(["a", "b"], ["a"])


def test_few_shapes_are_compiled_and_only_once(make_translator, traced_shapes):
    translator = make_translator(batch_size=8, method=tj.Sample())
    sources = texts(4, 100, longest=60)
    progress: list[int] = []
    first = translator.decode([*sources, ""], progress=progress.append)
    assert sum(progress) == 101
    num_shapes = len(traced_shapes)
    assert num_shapes <= len({16, 24, 32, 48, 64})
    assert first.timing.compile_seconds > 0
    other = translator.with_params({"sharpness": jnp.float32(29.0)})
    again = other.decode(sources, batch_size=8, method=tj.Sample(seed=5))
    shorter = other.decode(["hello"], batch_size=8, max_source_length=40)
    assert again.timing.compile_seconds == shorter.timing.compile_seconds == 0
    assert len(traced_shapes) == num_shapes


def test_padded_lengths():
    lengths = [1, 16, 17, 25, 33, 49, 65, 97, 129, 193]
    padded = [16, 16, 24, 32, 48, 64, 96, 128, 192, 256]
    assert [padded_length(n, 256) for n in lengths] == padded
    assert padded_length(90, 100) == 96
    assert padded_length(97, 100) == 100


def test_a_translation_begins_with_its_prefix(make_translator):
    translator = make_translator(sharpness=4.0, method=tj.Beam(beam_size=3))
    sources = texts(7, 9, longest=20)
    sources[4] = ""
    prefixes = ["xy", "", "q", sources[3][:4], "zz", "a" * 30, "b", "", "cd"]
    found = translator.decode(sources, target_prefix=prefixes).translations
    assert found[4][0].text == ""
    for source, prefix, translations in zip(sources, prefixes, found, strict=True):
        if source:
            assert all(each.text.startswith(prefix) for each in translations)
            alone = translator.decode([source], target_prefix=[prefix], batch_size=1)
            assert [t.tokens for t in alone.translations[0]] == [t.tokens for t in translations]
    # As ids, by another way to ask for it, and none at all.
    ids = [translator.tokenizers.target.encode(prefix) for prefix in prefixes]
    assert translator.decode(sources, target_prefix=ids).translations == found
    assert translator.n_best(sources, 1, target_prefix=prefixes) == [each[:1] for each in found]
    assert translator.translate(sources, target_prefix="") == translator.translate(sources)
    # That of all sentences can be in the config, and a call can have another one.
    always = make_translator(sharpness=4.0, method=tj.Beam(beam_size=3), target_prefix="ab")
    with_ab = translator.translate(sources, target_prefix="ab")
    assert always.translate(sources) == with_ab != translator.translate(sources)
    assert always.translate(sources, target_prefix="") == translator.translate(sources)


@pytest.mark.parametrize("method", [tj.Greedy(), tj.Beam(beam_size=2), tj.Sample(num_samples=2)])
def test_no_translation_has_what_the_vocabulary_lacks(method, make_translator):
    """UNK in a source is copied by this model, but for the rule."""
    translator = make_translator(sharpness=40.0, method=method)
    sources = [[4, UNK_ID, 5], [UNK_ID, UNK_ID], [4, 5]]
    found, asked = (
        [one for each in translator.decode(sources, allow_unk=allow).translations for one in each]
        for allow in (False, True)
    )
    assert not any(UNK_ID in one.tokens for one in found)
    assert any(UNK_ID in one.tokens for one in asked)
    assert asked[-1].log_prob == found[-1].log_prob, "what UNK would have had is not shared"


def test_a_prefix_that_the_vocabulary_lacks_is_refused(make_translator):
    class Lacking(LetterTokenizer):
        def encode(self, text):
            return [4 + LETTERS.index(x) if x in LETTERS else UNK_ID for x in text]

    translator = make_translator(sharpness=4.0)
    translator.tokenizers = SimpleNamespace(source=LetterTokenizer(), target=Lacking())
    with pytest.raises(
        tj.UserError, match="target_prefix=ab c☃: the .* lacks c☃, so no translation"
    ):
        translator.translate(["ab"], target_prefix="ab c☃")
    with pytest.raises(tj.UserError, match=r"vocabulary lacks \[4, 3\]"):
        translator.translate(["ab"], target_prefix=[[4, UNK_ID]])
    # To score a text with such a character is another matter.
    assert np.isfinite(translator.score(["ab"], ["a☃"])).all()


def test_pieces_of_the_prefix_are_not_scored(make_translator):
    translator = make_translator(sharpness=4.0)
    sources, prefixes = texts(9, 6, longest=20), ["xy", "", "q", "a" * 30, "b", "cd"]
    best = [found[0] for found in translator.n_best(sources, 1, target_prefix=prefixes)]
    rest = [t.tokens[len(prefix) : -1] for t, prefix in zip(best, prefixes, strict=True)]
    scored = translator.score_pairs(sources, rest, target_prefix=prefixes)
    np.testing.assert_allclose(scored.log_probs, [t.log_prob for t in best], rtol=1e-5)
    assert scored.num_tokens.tolist() == [len(ids) + 1 for ids in rest]
    # The chain rule, with all pieces scored.
    whole = translator.score(sources, [t.tokens[:-1] for t in best])
    assert (whole < scored.log_probs).tolist() == [bool(prefix) for prefix in prefixes]
    other = translator.score(sources, ["a"] * 6, target_prefix=prefixes)
    both = translator.score(sources, [prefix + "a" for prefix in prefixes])
    np.testing.assert_allclose(whole - scored.log_probs, both - other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (["a"], "target_prefix: 1 prefixes for 2 sentences"),
        (["a", "b" * 64], "target_prefix of sentence 2: 64 pieces, at most 63 fit"),
        (["a", [4, 2]], "target id 2 is not a piece: they are 3 to 31"),
        ([[32], []], "target id 32 is not a piece"),
    ],
)
def test_a_wrong_prefix_is_named(make_translator, prefix, message):
    translator = make_translator()
    with pytest.raises(tj.UserError, match=message):
        translator.translate(["ab", "c"], target_prefix=prefix)
    with pytest.raises(tj.UserError, match=message):
        translator.score(["ab", "c"], ["ab", "c"], target_prefix=prefix)


def test_repetition_can_be_controlled(make_translator):
    translator = make_translator(sharpness=8.0)
    assert translator.translate(["abababab"]) == ["abababab"]
    for method in (tj.Beam(beam_size=3), tj.Greedy(), tj.Sample(seed=2)):
        (text,) = translator.translate(["abababab"], method=method, no_repeat_ngram=2)
        pairs = [text[i : i + 2] for i in range(len(text) - 1)]
        assert text.startswith("ab") and len(pairs) == len(set(pairs)) > 2
        (text,) = translator.translate(["abababab"], method=method, repetition_penalty=1e6)
        assert text.startswith("ab") and len(text) == len(set(text))


def test_what_the_vocabulary_lacks_is_named_whatever_is_known_of_the_training(make_translator):
    translator = make_translator()
    assert translator.unseen == frozenset()
    assert translator.unseen_words("ab ☃ c☃") == ["☃", "c☃"]
    assert translator.unseen_words("ab") == []
