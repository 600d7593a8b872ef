"""Exported models, loaded by the software that they are written for."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import log_softmax

from tests.formats.exporter_suite import MAX_LENGTH, Ids, Load, Ours
from tests.formats.published import SOURCES
from tests.reference.naive_bergamot import NaiveBergamot
from transformer_jax.data.tokenizer_pair import Tokenizers
from transformer_jax.decoding.greedy import Greedy
from transformer_jax.formats import safetensors
from transformer_jax.formats.exporter import TrainedModel
from transformer_jax.models.transformer import UNUSED
from transformer_jax.ops.padding import pad
from transformer_jax.paths import as_path
from transformer_jax.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID


class InCTranslate2:
    """`ctranslate2.Translator`, which takes pieces."""

    def __init__(self, folder: Path, model: TrainedModel) -> None:
        import ctranslate2

        self._translator = ctranslate2.Translator(str(folder), compute_type="default")
        self._sides = model.tokenizers.source, model.tokenizers.target

    def log_probs(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[np.ndarray]:
        source, target = (
            [side.pieces(ids) for ids in sentences]
            for side, sentences in zip(self._sides, (sources, targets), strict=True)
        )
        scored = self._translator.score_batch(source, target)
        return [np.array(result.log_probs) for result in scored]

    def greedy(self, sources: Sequence[Ids]) -> list[Ids]:
        source, target = self._sides
        results = self._translator.translate_batch(
            [source.pieces(ids) for ids in sources],
            beam_size=1,
            max_decoding_length=MAX_LENGTH - 1,
            min_decoding_length=0,
            # Our searches never choose these.
            suppress_sequences=[target.pieces([PAD_ID]), target.pieces([BOS_ID])],
        )
        ids = {piece: i for i, piece in enumerate(target.pieces(range(target.vocab_size)))}
        return [[ids[piece] for piece in result.hypotheses[0]] for result in results]


def orders(theirs: Any, ours: Tokenizers) -> list[np.ndarray]:
    """Their id of each of our pieces, of both sides; -1 for a row that they do not have."""
    known = [theirs.get_vocab()] * 2
    if getattr(theirs, "separate_vocabs", False):
        known = [theirs.encoder, theirs.target_encoder]
    found = []
    for side, ids in zip((ours.source, ours.target), known, strict=True):
        ids = ids | getattr(theirs, "lang_token_to_id", {})
        pieces = side.pieces(range(side.vocab_size))
        unused = {piece: int(piece[8:-1]) for piece in pieces if piece.startswith("<unused:")}
        found.append(np.array([unused.get(piece, ids.get(piece, -1)) for piece in pieces]))
    return found


class InTransformers:
    """The model and the tokenizer that Transformers loads."""

    def __init__(self, folder: Path, model: TrainedModel) -> None:
        import transformers

        self.model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.orders = orders(self.tokenizer, model.tokenizers)
        unused = self.orders[1][list(model.config.model.unused_ids)]
        self._unused = sorted(unused[unused >= 0].tolist())

    def _padded(self, sentences: Sequence[Ids], side: int) -> Any:
        """Transformers' ids [B, L] and their mask."""
        import torch

        rows = [torch.tensor(self.orders[side][[*ids, EOS_ID]]) for ids in sentences]
        ids = torch.nn.utils.rnn.pad_sequence(
            rows, batch_first=True, padding_value=self.model.config.pad_token_id
        )
        lengths = torch.tensor([[len(row)] for row in rows])
        return ids, (torch.arange(ids.shape[1]) < lengths).long()

    def log_probs(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[np.ndarray]:
        import torch

        ids, mask = self._padded(sources, 0)
        wanted, _ = self._padded(targets, 1)
        start = torch.full((len(ids), 1), self.model.config.decoder_start_token_id)
        with torch.no_grad():
            logits = self.model(
                input_ids=ids,
                attention_mask=mask,
                decoder_input_ids=torch.cat([start, wanted[:, :-1]], 1),
            ).logits
        logits[:, :, self._unused] += UNUSED
        chosen = torch.log_softmax(logits, -1).gather(2, wanted[..., None])[..., 0].numpy()
        return [row[: len(target) + 1] for row, target in zip(chosen, targets, strict=True)]

    def greedy(self, sources: Sequence[Ids]) -> list[Ids]:
        ids, mask = self._padded(sources, 0)
        # The suite's sentences have no language token.
        self.model.generation_config.forced_bos_token_id = None
        found = self.model.generate(
            input_ids=ids, attention_mask=mask, num_beams=1, max_new_tokens=MAX_LENGTH - 1
        )
        ours = {theirs: i for i, theirs in enumerate(self.orders[1].tolist())}
        rows = [[ours[i] for i in row[1:].tolist()] for row in found]
        return [row[: row.index(EOS_ID)] if EOS_ID in row else row for row in rows]


class NaiveInNumPy:
    """What Bergamot's engine computes of the folder, for tokenizers of our own ids."""

    def __init__(self, folder: Path, model: TrainedModel) -> None:
        self._model = NaiveBergamot(folder / "model.bin")

    def log_probs(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[np.ndarray]:
        found = []
        for source, target in zip(sources, targets, strict=True):
            logits = self._model.logits(self._model.memory([*source, EOS_ID]), target)
            log_probs = log_softmax(logits, axis=1)
            found.append(log_probs[range(len(logits)), [*target, EOS_ID]])
        return found

    def greedy(self, sources: Sequence[Ids]) -> list[Ids]:
        return [self._model.greedy([*ids, EOS_ID], EOS_ID, MAX_LENGTH) for ids in sources]


class InOnnxruntime:
    """The two graphs, fed as `docs/interop.md` says."""

    def __init__(self, folder: Path, model: TrainedModel) -> None:
        import onnx
        import onnxruntime

        self._decoder, self._encoder = (
            onnxruntime.InferenceSession(path) for path in sorted((folder / "onnx").glob("*.onnx"))
        )
        for path in (folder / "onnx").glob("*.onnx"):
            onnx.checker.check_model(str(path), full_check=True)
        self._search = json.loads((folder / "generation_config.json").read_text())

    def _steps(self, sources: Sequence[Ids]) -> Iterator[np.ndarray]:
        """Yields log-probabilities [B, V]; is sent the tokens [B]."""
        rows = [[*ids, EOS_ID] for ids in sources]
        ids, mask = pad(rows, len(rows), max(map(len, rows)))
        given = {"encoder_attention_mask": mask.astype(np.int64)}
        (given["encoder_hidden_states"],) = self._encoder.run(
            None, {"input_ids": ids.astype(np.int64), "attention_mask": mask.astype(np.int64)}
        )
        for each in self._decoder.get_inputs():
            if each.name.startswith("past"):
                shape = [
                    n if isinstance(n, int) else (n == "batch") * len(rows) for n in each.shape
                ]
                given[each.name] = np.zeros(shape, np.float32)
        given["use_cache_branch"] = np.array([False])
        tokens = np.full(len(rows), self._search["decoder_start_token_id"])
        names = [
            each.name.replace("present", "past_key_values") for each in self._decoder.get_outputs()
        ]
        while True:
            given["input_ids"] = tokens[:, None]
            made = dict(zip(names, self._decoder.run(None, given), strict=True))
            logits = made.pop("logits")[:, 0]
            given |= {name: value for name, value in made.items() if value.size}
            given["use_cache_branch"] = np.array([True])
            tokens = yield log_softmax(logits, axis=-1)

    def log_probs(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[np.ndarray]:
        wanted = [[*ids, EOS_ID] for ids in targets]
        tokens, _ = pad(wanted, len(wanted), max(map(len, wanted)))
        steps = self._steps(sources)
        found = [next(steps)]
        found += [steps.send(column) for column in tokens[:, :-1].T.astype(np.int64)]
        chosen = np.take_along_axis(np.stack(found, 1), tokens[..., None], 2)[..., 0]
        return [row[: len(ids)] for row, ids in zip(chosen, wanted, strict=True)]

    def greedy(
        self, sources: Sequence[Ids], limit: int = MAX_LENGTH - 1, allow_unk: bool = True
    ) -> list[Ids]:
        """As a program would; the suite's search may predict `<unk>`."""
        never = sorted(set(self._search["suppress_tokens"]) - ({UNK_ID} if allow_unk else set()))
        steps = self._steps(sources)
        found, log_probs = [], next(steps)
        while len(found) < limit and not (found and (np.array(found) == EOS_ID).any(0).all()):
            log_probs[:, never] = -np.inf
            found.append(log_probs.argmax(-1))
            log_probs = steps.send(found[-1])
        rows = [row.tolist() for row in np.stack(found, 1)]
        return [row[: row.index(EOS_ID)] if EOS_ID in row else row for row in rows]


def in_this_package(folder: Path, model: TrainedModel) -> Ours:
    return Ours(safetensors.read(as_path(folder)))


#: Format -> the package that it needs, if it is optional, and what loads it.
RUNTIMES: dict[str, tuple[str | None, Load]] = {
    "bergamot": (None, NaiveInNumPy),
    "ctranslate2": ("ctranslate2", InCTranslate2),
    "huggingface": ("transformers", InTransformers),
    "onnx": ("onnxruntime", InOnnxruntime),
    "safetensors": (None, in_this_package),
}


#: Both libraries stop here.
LIMIT = 40


def check_texts(run: Any, tag: str, theirs: Any) -> None:
    """The folder alone translates texts as our translator does."""
    decoded = run.translator("latest").n_best(
        [tag + text for text in SOURCES],
        1,
        method=Greedy(),
        max_length_factor=0,
        max_length_offset=LIMIT,
    )
    for text, (ours,) in zip(SOURCES, decoded, strict=True):
        inputs = theirs.tokenizer(tag + text, return_tensors="pt")
        found = theirs.model.generate(**inputs, num_beams=1, max_new_tokens=LIMIT)[0, 1:]
        tokens = theirs.orders[1][list(ours.tokens)].tolist()
        assert found.tolist()[: LIMIT - 1] == tokens[: LIMIT - 1]
