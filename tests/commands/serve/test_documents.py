"""A server of a model that was trained on blocks: a text of several sentences is a document."""

import httpx
import jax
import pytest

import transformer_jax as tj
from tests.commands.serve.conftest import served
from tests.oracles import apart, need
from tests.small import small_model
from transformer_jax.data.mapped_tokenizer import Tags, with_tags
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.translation.documents import Tally


@pytest.fixture(scope="module")
def translator():
    need("starlette")
    apart("it compiles a server of blocks")
    trained = tj.train_tokenizers(tj.TokenizerConfig(vocab_size=400), generate(3, 400))
    both = with_tags(trained.source, Tags(separator=True))
    config = small_model(both.vocab_size, d_ff=16, max_length=128)
    params = jax.tree.map(lambda x: 3 * x, tj.init(config, jax.random.key(0)))
    decode = tj.DecodeConfig(method=tj.Beam(beam_size=2), batch_size=8, context_tokens=100)
    return tj.Translator(config, params, Tokenizers(both, both), decode)


@pytest.fixture(scope="module")
def url(translator):
    """Its queue is full with one sentence."""
    from transformer_jax.commands.serve.jax_engine import JaxEngine

    with served([JaxEngine(translator, "en", "de")], queue=1) as url:
        yield url


def translated(url, texts):
    """The answer of LibreTranslate's route."""
    form = {"q": texts, "source": "en", "target": "de"}
    answer = httpx.post(f"{url}/translate", json=form, timeout=300)
    assert answer.status_code == 200, answer.text
    return answer.json()["translatedText"]


def test_a_text_is_translated_as_one_document(url, translator):
    first, second = ([english for english, _ in generate(seed, 5)] for seed in (5, 6))
    tally = Tally()
    wanted = translator.translate_documents([first, second], tally=tally)
    assert tally.divided and translator.translate(first) != wanted[0]
    texts = ["\n".join(first), " ".join(second), first[0]]
    found = translated(url, texts)
    assert found[0] == "\n".join(wanted[0])
    assert found[1] == " ".join(wanted[1])  # one line of five sentences
    assert [found[2]] == translator.translate(first[:1])


def test_a_blank_line_ends_a_document_and_none_of_an_admitted_request_is_refused(url, translator):
    documents = [[english for english, _ in generate(seed, 3)] for seed in (5, 6, 7)]
    first, second, third = map("\n".join, documents)
    wanted = ["\n".join(each) for each in translator.translate_documents(documents)]
    assert translated(url, [f"{first}\n \n{second}", third]) == [
        f"{wanted[0]}\n \n{wanted[1]}",
        wanted[2],
    ]


def test_a_request_can_say_that_a_line_is_a_sentence(url, translator):
    first, second, third = (english for english, _ in generate(5, 3))
    texts = [f"{first} {second}", f"{first} {second}\n{third}"]
    form = {"text": texts, "source_lang": "EN", "target_lang": "DE"}
    wanted = translator.translate_documents([text.split("\n") for text in texts])
    answer = httpx.post(f"{url}/v2/translate", json=form | {"split_sentences": "0"}, timeout=300)
    found = [each["text"] for each in answer.json()["translations"]]
    assert found == ["\n".join(each) for each in wanted]
    split = httpx.post(f"{url}/v2/translate", json=form, timeout=300).json()["translations"]
    assert split[0]["text"] == " ".join(translator.translate_documents([[first, second]])[0])
    assert split[0]["text"] != found[0]
