"""Teacher and student side by side: scores, sizes and speeds."""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from etils import epath

from transformer_jax.config import override, to_dict
from transformer_jax.data.sources.base import Pair
from transformer_jax.decoding.base import Method
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.metrics.scores import corpus_scores
from transformer_jax.models import api
from transformer_jax.paths import read_record, write_record
from transformer_jax.runs.ensemble import members
from transformer_jax.runs.folder import Run


class Contestant(NamedTuple):
    """A model that translates in one way."""

    name: str
    run: Run  #: or an ensemble
    checkpoint: str  #: as `which` of `Run.select`
    overrides: Mapping[str, Any]  #: fields of `DecodeConfig` in place of the run's own

    @property
    def decode(self) -> DecodeConfig:
        """How it translates."""
        return override(self.run.config.decode, self.overrides, prefix="decode.")

    def also_with(self, *methods: Method) -> "list[Contestant]":
        """It, and the same with each method that is of another kind than those before."""
        found = {type(self.decode.method): self}
        for method in methods:
            other = self._replace(overrides=dict(self.overrides) | {"method": method, "mbr": None})
            found.setdefault(type(method), other)
        return list(found.values())


@dataclass(frozen=True)
class Row:
    """What was measured of a contestant."""

    model: str
    method: str
    parameters: int
    megabytes: float  #: of the parameters as they are stored, 10^6 bytes, not compressed
    sentences_per_second: float  #: of the last set, without compilation
    scores: dict[str, dict[str, float]]  #: set -> metric -> score
    signature: str  #: of BLEU


def measured(
    contestant: Contestant,
    sets: Mapping[str, Sequence[Pair]],
    target_language: str,
    folder: epath.Path,
) -> Row:
    """Translates the sets on this process's devices, or reads the row of an earlier call.

    Args:
        contestant: who translates.
        sets: (source, reference) sentences, by name.
        target_language: of the references.
        folder: where rows are kept; one of another checkpoint, decoding or text is replaced.
    """
    name, run, checkpoint, overrides = contestant
    selection, decode = run.select(checkpoint), to_dict(contestant.decode)
    method = decode["method"]["kind"]
    content = [each.fingerprint(checkpoint) for each in members(run)]
    made_of = [content, decode, target_language, sets]
    inputs = {"made_of": hashlib.sha256(json.dumps(made_of).encode()).hexdigest()}
    path = folder / f"{name}-{method}.json"
    with contextlib.suppress(UserError, TypeError):  # of another checkpoint or text, or damaged
        if (stored := read_record(path, inputs, "--workdir")) is not None:
            return Row(**stored)
    translator = run.translator(selection, **overrides)
    scores, speed, signature = {}, 0.0, ""
    for each, pairs in sets.items():
        sources, references = ([pair[side] for pair in pairs] for side in (0, 1))
        made = translator.decode(sources, num_best=1)
        timing = made.timing
        if not timing.compiled_rows:  # few sentences: once more, with the compiled programs
            timing = translator.decode(sources, num_best=1).timing
        speed = timing.per_second(len(sources)) or 0.0
        texts = [best[0].text for best in made.translations]
        found = corpus_scores(texts, references, target_language=target_language)
        scores[each] = {key: score.score for key, score in found.items()}
        signature = found["bleu"].signature
    row = Row(
        model=name,
        method=method,
        parameters=sum(api.num_params(each.model) for each in members(run)),
        megabytes=sum(_num_bytes(each) for each in members(run)) / 1e6,
        sentences_per_second=speed,
        scores=scores,
        signature=signature,
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_record(path, inputs, **dataclasses.asdict(row))
    return row


def _num_bytes(run: Run) -> int:
    """The size of the parameters; a checkpoint's files are compressed."""
    leaves = jax.tree.leaves(api.abstract_params(run.model))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown, with what the numbers mean below; the first one is the teacher's."""
    sets = list(rows[0].scores)
    columns = ["model", "decoding"]
    columns += [f"{name} {metric}" for name in sets for metric in ("BLEU", "chrF++")]
    columns += ["of the teacher's", "parameters", "MB", "sentences/s"]
    lines = [columns, ["---", "---", *["---:"] * (len(columns) - 2)]]
    best = rows[0].scores[sets[-1]]["bleu"] if rows[0].model == "teacher" else 0.0
    for row in rows:
        scores = [f"{row.scores[name][key]:.2f}" for name in sets for key in ("bleu", "chrf")]
        share = f"{row.scores[sets[-1]]['bleu'] / best:.1%}" if best else ""
        sizes = [f"{row.parameters:,}", f"{row.megabytes:.1f}", f"{row.sentences_per_second:.1f}"]
        lines.append([row.model, row.method, *scores, share, *sizes])
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return (
        f"{text}\nBLEU: {rows[0].signature}. The share of the teacher's BLEU and the speeds are of "
        f"the {sets[-1]} set; speeds are on this machine, without compilation. MB are those of the "
        "parameters as they are stored, not compressed.\n"
    )
