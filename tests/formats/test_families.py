"""Every family of published models against Transformers' own model and tokenizer."""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.formats.published import CASES, SOURCES, TARGETS, Case
from tests.formats.runtimes import orders
from tests.oracles import need
from transformer_jax.formats.families import FAMILIES
from transformer_jax.formats.family import Languages, Published
from transformer_jax.formats.import_model import open_folder, read_model
from transformer_jax.vocabulary import BOS_ID, EOS_ID
from transformer_jax.weights.weights import Stored, Weights

torch = need("torch")
need("transformers")

#: Both libraries stop here, and differ in what they do with a hypothesis that reaches it.
LIMIT = 40


@dataclass
class Both:
    """A folder, read by both."""

    case: Case
    path: Any
    model: Any
    tokenizer: Any
    run: tj.Run
    published: Published
    source_order: np.ndarray  #: their id of each of our source ids
    order: np.ndarray  #: and target ids

    @property
    def never(self) -> list[int]:
        """Their ids that are not to be predicted."""
        unused = self.order[list(self.run.config.model.unused_ids)]
        return sorted(int(i) for i in unused if i >= 0)

    def source(self, text: str) -> Any:
        return self.tokenizer(self.case.tag + text, return_tensors="pt")


@pytest.fixture(scope="module", params=CASES)
def both(request, tmp_path_factory):
    case = CASES[request.param]
    path = tmp_path_factory.mktemp("folder")
    model, tokenizer = case.build(path)
    run = case.imported(path, tmp_path_factory.mktemp("run"))
    published = read_model(open_folder(path), case.languages)
    both_orders = orders(tokenizer, run.tokenizers())
    return Both(case, path, model, tokenizer, run, published, *both_orders)


def test_every_family_has_a_case():
    # Marian's own files are compared with Bergamot's engine.
    assert {case.family for case in CASES.values()} == set(FAMILIES) - {"marian_own"}


def test_tokenizers_give_the_same_ids(both):
    tokenizers = both.run.tokenizers()
    for text in SOURCES:
        theirs = both.source(text).input_ids[0].tolist()
        ours = [*tokenizers.source.encode(both.case.tag + text), EOS_ID]
        assert both.source_order[ours].tolist() == theirs
    for text in TARGETS:
        theirs = both.tokenizer(text_target=text).input_ids
        ours = [*tokenizers.target.encode(text), EOS_ID]
        assert both.order[ours].tolist() == theirs


def test_marian_decodes_every_id_to_the_same_text(tmp_path):
    """Some pieces are in one of the two SentencePiece models alone."""
    _, tokenizer = CASES["marian"].build(tmp_path)
    target = read_model(open_folder(tmp_path), Languages()).tokenizers.target
    rng = np.random.default_rng(0)
    for ids in rng.integers(EOS_ID + 2, target.vocab_size, (200, 6)):
        theirs = tokenizer.convert_tokens_to_ids(target.pieces(ids))
        assert target.decode(ids) == tokenizer.decode(theirs, skip_special_tokens=True)


def log_probs(both, source, target_ids):
    """Of their target ids after what is forced, by their model."""
    start = both.model.config.decoder_start_token_id
    decoder = torch.tensor([[start, *target_ids[:-1]]])
    with torch.no_grad():
        logits = both.model(**both.source(source), decoder_input_ids=decoder).logits[0].double()
    logits[:, both.never] = -torch.inf
    chosen = torch.log_softmax(logits, -1)[torch.arange(len(target_ids)), target_ids]
    return float(chosen[both.case.forced(both.tokenizer) is not None :].sum())


def test_log_probabilities_are_equal(both):
    translator = both.run.translator()
    sources = [both.case.tag + text for text in SOURCES]
    ours = translator.score(sources, TARGETS)
    theirs = [
        log_probs(both, source, both.tokenizer(text_target=target).input_ids)
        for source, target in zip(SOURCES, TARGETS, strict=True)
    ]
    assert np.abs(theirs).min() > 1  # the models are not certain of anything
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize(("beams", "patience"), [(1, None), (4, None), (4, 1.0)])
def test_greedy_and_beam_search_find_the_same_tokens(both, beams, patience):
    method = tj.Greedy()
    if beams > 1:
        # With a length penalty Transformers compares what was cut at the limit with what ended.
        method = tj.Beam(beam_size=beams, length_penalty=0.0, patience=patience)
    decoded = both.run.translator().n_best(
        [both.case.tag + text for text in SOURCES],
        1,
        method=method,
        max_length_factor=0,
        max_length_offset=LIMIT,
    )
    compared = 0
    for text, (ours,) in zip(SOURCES, decoded, strict=True):
        theirs = both.model.generate(
            **both.source(text),
            num_beams=beams,
            do_sample=False,
            max_new_tokens=LIMIT,
            length_penalty=0.0,
            early_stopping="never" if patience is None else True,
            bad_words_ids=None,
            suppress_tokens=both.never or None,
            renormalize_logits=True,
            forced_bos_token_id=both.case.forced(both.tokenizer),
        )[0].tolist()[1:]
        whole = len(ours.tokens) < LIMIT
        if whole or beams == 1:  # ours ends with EOS at the limit
            assert both.order[list(ours.tokens)].tolist()[: LIMIT - 1] == theirs[: LIMIT - 1]
            compared += 1
    assert compared >= 5


def test_export_gives_the_file_and_the_parameters_back(both):
    """Import, export, import: the parameters are the same to the bit, and those of the run."""
    weights = open_folder(both.path).weights
    params = both.published.table.to_params(both.published.model, weights)
    jax.tree.map(np.testing.assert_array_equal, params, both.run.params())
    tensors = both.published.table.to_tensors(params)
    for name, values in both.model.state_dict().items():
        if name in tensors and name not in both.published.table.zeros:
            np.testing.assert_array_equal(tensors[name], values.numpy())
    stored = {name: Stored(x.shape, lambda x=x: x) for name, x in tensors.items()}
    again = both.published.table.to_params(both.published.model, Weights("x", stored))
    jax.tree.map(np.testing.assert_array_equal, params, again)


def test_bos_is_never_predicted_where_they_have_none(both):
    if both.order[BOS_ID] < 0:
        assert BOS_ID in both.run.config.model.unused_ids
