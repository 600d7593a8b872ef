"""Marian's own models (github.com/marian-nmt/marian), as Marian and Bergamot's engine compute them.

The paper's model with post-norm and other sinusoids; the decoder's first input is zeros. In small
models that must decode fast, SSRUs take the place of the decoder's self-attention. The names of
tensors and options are those in a `.npz` or `.bin`; the matrices are [in, out], the vectors [1, n].

Where a folder holds no vocabulary in YAML, row i of a table is piece i of the SentencePiece model.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.data.sources.files import read_lines
from transformer_jax.errors import UserError
from transformer_jax.formats.family import Languages, Published, make_tokenizers
from transformer_jax.formats.vocabularies import vocabulary
from transformer_jax.layers.feed_forward import Activation, Mlp
from transformer_jax.layers.norms import LayerNorm
from transformer_jax.mixers.base import MixerConfig
from transformer_jax.mixers.full_attention import Full, FullCross
from transformer_jax.mixers.ssru import SSRU
from transformer_jax.models.config import ModelConfig, StackConfig, layer_mixers
from transformer_jax.positions.sinusoidal import Sinusoidal
from transformer_jax.weights.arrangement import Arrangement, arrange, unused
from transformer_jax.weights.layout import ModelFolder
from transformer_jax.weights.sentencepiece_model import load_processor
from transformer_jax.weights.settings import Settings, parse_yaml
from transformer_jax.weights.tables import (
    AS_ROW,
    SAME,
    TRANSPOSED,
    Change,
    Shape,
    Table,
    Tensor,
    chain,
    rows,
)

#: Options that must have these values where they are given.
_NEEDED: dict[str, Any] = {
    "type": "transformer",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-train-position-embeddings": False,
    "transformer-train-positions": False,
    "transformer-no-projection": False,
    "transformer-no-bias": False,
    "transformer-no-affine": False,
    "transformer-ffn-depth": 2,
    "transformer-tied-layers": [],
    "input-types": [],
    "lemma-dim-emb": 0,
    "output-omit-bias": False,
    "ulr": False,
}
#: Options of the decoder that are 0 where they are as in the encoder.
_OF_DECODER = {
    "transformer-decoder-ffn-depth": "transformer-ffn-depth",
    "transformer-decoder-dim-ffn": "transformer-dim-ffn",
}
#: Marian's `gelu` is x sigmoid(1.702 x), which none of ours is.
_ACTIVATIONS: dict[str, Activation] = {"relu": "relu", "swish": "silu"}
_PROJECTIONS = {"query": "q", "key": "k", "value": "v", "out": "o"}
BIAS = "decoder_ff_logit_out_b"
#: The projection to logits where it is a matrix of its own, [in, out] or transposed.
PROJECTION, _TRANSPOSED_PROJECTION = "decoder_ff_logit_out_W", "decoder_ff_logit_out_Wt"

#: The logit of a piece that is never predicted, in files; logits of others are far above.
NEVER = np.float32(-1e9)


class _Vocabulary(NamedTuple):
    """The pieces of one side and the SentencePiece model that cuts text into them."""

    ids: Mapping[str, int]
    sentencepiece: bytes
    special: Mapping[str, int | None]  #: ids: pad, bos, eos, unk
    marked_tags: bool  #: whether sources may begin with a language's tag


def marian_own(folder: ModelFolder, languages: Languages) -> Published:
    """A folder with a model that Marian wrote, or that is written for Bergamot's engine."""
    options, weights = folder.config, folder.weights
    inputs, outputs = (
        options.get("tied-embeddings-all", bool, False) or options.get(name, bool, False)
        for name in ("tied-embeddings-src", "tied-embeddings")
    )
    tie = ("all" if outputs else "inputs") if inputs else ("decoder" if outputs else "none")
    sides = _vocabularies(folder)
    if inputs and sides[0].ids != sides[1].ids:
        raise UserError(
            f"{folder.path}: the embeddings of both languages are one matrix, and their "
            "vocabularies differ"
        )
    names = ["Wemb"] * 2 if inputs else ["encoder_Wemb", "decoder_Wemb"]
    sizes = [weights.shape_of(name)[0] for name in names]
    never = np.flatnonzero(weights.take(BIAS).reshape(-1) <= 0.1 * NEVER).tolist()
    for side, size in zip(sides, sizes, strict=True):
        # More rows only fill up the table; those of the target are never predicted.
        if size < len(side.ids) or not set(range(len(sides[1].ids), sizes[1])) <= set(never):
            raise UserError(
                f"{weights.origin}: embeddings of {size} pieces, but the vocabulary has "
                f"{len(side.ids)}"
            )
    source, target = (
        arrange(size, **side.special, origin=weights.origin)  # type: ignore[arg-type]
        for side, size in zip(sides, sizes, strict=True)
    )
    model = read_options(
        options,
        source_vocab_size=len(source.order),
        target_vocab_size=len(target.order),
        tie_embeddings=tie,
        unused_ids=unused(target, sides[1].ids, never),
        max_length=512,
    )
    pieces = (
        (side.sentencepiece, vocabulary(order, side.ids, marked_tags=side.marked_tags))
        for side, order in zip(sides, (source, target), strict=True)
    )
    transposed = _TRANSPOSED_PROJECTION in weights
    return Published(
        model,
        tensors(model, source, target, transposed=transposed),
        make_tokenizers(*pieces),
        _languages(folder, languages),
    )


def _languages(folder: ModelFolder, asked: Languages) -> Languages:
    """Those asked for; else what the files of a model for Bergamot's engine say.

    `model_info.json` has the codes in `srcTags` and `trgTag`, or in `shortName`, such as
    `en-pt-tiny`; the name of a vocabulary has them too: `vocab.enpt.spm`.
    """
    about = folder.settings("model_info.json")
    found = [*about.get("srcTags", dict, {})][:1] + [about.get("trgTag", str, "")]
    names = " ".join(path.name for path in folder.path.glob("*vocab.*.spm"))
    for pattern, text in (
        (r"([a-z]{2,3})-([a-z]{2,3})-", about.get("shortName", str, "")),
        (r"(?:src|trg)?vocab\.([a-z]{2})([a-z]{2})\.spm", names),
    ):
        if len(found) < 2 and (match := re.match(pattern, text)):
            found = list(match.groups())
    if len(found) < 2 or "und" in found:
        return asked
    return Languages(*(mine or theirs for mine, theirs in zip(asked, found, strict=True)))


def read_options(options: Settings, **others: Any) -> ModelConfig:
    """The model that Marian's options describe; `others` are options of ours.

    Raises:
        UserError: an option says what cannot be expressed.
    """
    options.need(_NEEDED)
    for name, same in _OF_DECODER.items():
        if options.get(name, int, 0):
            options.need({name: options.get(same, int, 2)})
    dropout = options.get("transformer-dropout-attention", float, 0.0)
    attention = Full(dropout_rate=dropout)
    mixers: dict[str, MixerConfig] = {"self-attention": attention, "rnn": SSRU()}
    mixer = options.choose("transformer-decoder-autoreg", mixers, "self-attention")
    if isinstance(mixer, SSRU):
        options.choose("dec-cell", {"ssru": None}, "gru")
        options.need({"layer-normalization": False})
    positions = Sinusoidal(form="tensor2tensor")
    return ModelConfig(
        d_model=options.number("dim-emb", 512),
        d_ff=options.number("transformer-dim-ffn", 2048),
        num_heads=options.number("transformer-heads", 8),
        encoder=StackConfig(options.number("enc-depth", 6), (attention,), positions),
        decoder=StackConfig(options.number("dec-depth", 6), (mixer,), positions),
        # Marian reads alignments from the first head of the last layer, and guides that one.
        cross=FullCross(dropout_rate=dropout, alignment_head=0),
        norm=LayerNorm(epsilon=1e-6),
        norm_placement="post",
        feed_forward=Mlp(
            activation=options.choose("transformer-ffn-activation", _ACTIVATIONS, "swish"),
            dropout_rate=options.get("transformer-dropout-ffn", float, 0.0),
        ),
        output_bias=True,
        start_id=None,
        dropout_rate=options.get("transformer-dropout", float, 0.0),
        **others,
    )


def write_options(model: ModelConfig) -> dict[str, Any]:
    """The options of the most similar model that `read_options` gives, all that the engine reads.

    A depth or a number of heads that is missing is not an error of the engine: it takes another
    number.
    """
    activation = getattr(model.feed_forward, "activation", "relu")
    names: dict[str, str] = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
    is_recurrent = isinstance(model.decoder.mixers[0], SSRU)
    tie = model.tie_embeddings
    return {
        **_NEEDED,
        "dim-vocabs": [model.source_vocab_size, model.target_vocab_size],
        "dim-emb": model.d_model,
        "enc-depth": model.encoder.num_layers,
        "enc-cell": "gru",
        "enc-type": "bidirectional",
        "dec-depth": model.decoder.num_layers,
        "dec-cell": "ssru" if is_recurrent else "gru",
        "dec-cell-base-depth": 2,
        "dec-cell-high-depth": 1,
        "layer-normalization": False,
        "transformer-decoder-autoreg": "rnn" if is_recurrent else "self-attention",
        "transformer-heads": model.num_heads,
        "transformer-dim-ffn": model.d_ff,
        "transformer-ffn-activation": names.get(activation, "relu"),
        "tied-embeddings-all": tie == "all",
        "tied-embeddings-src": tie in ("all", "inputs"),
        "tied-embeddings": tie in ("all", "decoder"),
    }


def tensors(
    model: ModelConfig, source: Arrangement, target: Arrangement, *, transposed: bool = False
) -> Table:
    """All tensors of a model.

    Args:
        model: as `read_options` gives it.
        source: arrangement of the source vocabulary.
        target: of the target vocabulary.
        transposed: whether the projection to logits, if it is a matrix of its own, is [V, D].
    """
    found: list[Tensor] = []
    zeros: dict[str, Shape] = {}

    def norm(path: str, name: str) -> None:
        for part in ("scale", "bias"):
            found.append(Tensor(f"{path}/{part}", (f"{name}_ln_{part}",), AS_ROW))

    def dense(path: str, name: str, kind: str) -> None:
        found.append(Tensor(f"{path}/kernel", (f"{name}_W{kind}",)))
        if kind == "k":  # a bias of the keys has no effect
            zeros[f"{name}_bk"] = (1, model.d_model)
        else:
            found.append(Tensor(f"{path}/bias", (f"{name}_b{kind}",), AS_ROW))

    def attention(path: str, name: str) -> None:
        for ours, theirs in _PROJECTIONS.items():
            dense(f"{path}/heads/{ours}", name, theirs)
        norm(f"{path}_residual/norm", f"{name}_Wo")

    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for i, mixer in enumerate(layer_mixers(stack)):
            block, layer = f"{side}/blocks_{i}", f"{side}_l{i + 1}"
            if isinstance(mixer, SSRU):
                found.append(Tensor(f"{block}/mixer/into/kernel", (f"{layer}_rnn_W",)))
                dense(f"{block}/mixer/forget", f"{layer}_rnn", "f")
                norm(f"{block}/mixer_residual/norm", f"{layer}_rnn_ffn")
            else:
                attention(f"{block}/mixer", f"{layer}_self")
            if side == "decoder":
                attention(f"{block}/cross", f"{layer}_context")
            dense(f"{block}/feed_forward/up", f"{layer}_ffn", "1")
            dense(f"{block}/feed_forward/down", f"{layer}_ffn", "2")
            norm(f"{block}/feed_forward_residual/norm", f"{layer}_ffn_ffn")
    tie = model.tie_embeddings
    name = "Wemb" if tie in ("all", "inputs") else "decoder_Wemb"
    found.append(Tensor("target_embedding/table", (name,), rows(target.order)))
    if tie not in ("all", "inputs"):
        found.append(Tensor("source_embedding/table", ("encoder_Wemb",), rows(source.order)))
    if tie not in ("all", "decoder"):
        name, stored = (_TRANSPOSED_PROJECTION, SAME) if transposed else (PROJECTION, TRANSPOSED)
        change = chain(stored, chain(rows(target.order), TRANSPOSED))
        found.append(Tensor("projection/kernel", (name,), change))
    bias = chain(chain(AS_ROW, rows(target.order)), _never(model))
    found.append(Tensor("output_bias/bias", (BIAS,), bias))
    return Table(found, zeros)


def _never(model: ModelConfig) -> Change:
    """The bias of what `unused_ids` lists: `NEVER` in files, 0 in our parameters."""
    never_V = np.zeros(model.target_vocab_size or 0, bool)
    never_V[list(model.unused_ids)] = True
    return Change(lambda x: np.where(never_V, 0, x), lambda x: np.where(never_V, NEVER, x))


def _vocabularies(folder: ModelFolder) -> list[_Vocabulary]:
    """Those of the source and the target.

    Raises:
        UserError: there is not one for both or one for each, or the ids have gaps.
    """
    patterns = ("*.vocab.yml", "*.vocab", "vocab*.yml", "*vocab*.txt")
    if found := sorted({path for pattern in patterns for path in folder.path.glob(pattern)}):
        models = [folder.content(f"{side}.spm") for side in ("source", "target")]
        files = _of_both(folder.path, found, "vocabulary, such as opus.spm32k-spm32k.vocab.yml")
        return [_of_list(path, model) for path, model in zip(files, models, strict=True)]
    found = sorted(folder.path.glob("*.spm"))
    return [_of_sentencepiece(path) for path in _of_both(folder.path, found, "*.spm")]


#: What the name of a file of one side begins with, or has between dots.
_SIDES = (("src", "source", "srcvocab"), ("trg", "target", "trgvocab"))


def _of_both(folder: Path, found: list[Path], kind: str) -> list[Path]:
    """The file of the source and that of the target; one alone is of both."""
    both = found * 2 if len(found) == 1 else []
    if len(found) == 2:
        both = [path for side in _SIDES for path in found if set(side) & set(path.name.split("."))]
    if len(both) != 2:
        raise UserError(
            f"{folder}: expected one {kind}, or one with .src. and one with .trg. in the name; "
            f"found {len(found)}"
        )
    return both


def _of_list(path: Path, sentencepiece: bytes) -> _Vocabulary:
    """Pieces with their numbers in YAML, or one a line in `.txt`."""
    if path.suffix == ".txt":
        values: dict[str, Any] = {line: i for i, line in enumerate(read_lines(path))}
    else:  # For a loader that knows types, pieces such as `on` and `1.50` are no text.
        values = parse_yaml(str(path), path.read_bytes(), all_is_text=True)
    if sorted(map(str, values.values())) != sorted(map(str, range(len(values)))):
        raise UserError(f"{path}: does not number its pieces from 0 without a gap")
    ids = {piece: int(i) for piece, i in values.items()}
    if missing := [piece for piece in ("</s>", "<unk>") if piece not in ids]:
        raise UserError(f"{path}: has no piece {missing[0]}")
    special = {"pad": None, "bos": None, "eos": ids["</s>"], "unk": ids["<unk>"]}
    return _Vocabulary(ids, sentencepiece, special, marked_tags=True)


def _of_sentencepiece(path: Path) -> _Vocabulary:
    """Pieces and special ids of a `.spm`, where -1 stands for one that it does not have."""
    content = path.read_bytes()
    processor = load_processor(content, str(path))
    ids = {processor.id_to_piece(i): i for i in range(processor.vocab_size())}
    special = {
        name: i if i >= 0 else None
        for name in ("pad", "bos", "eos", "unk")
        for i in [getattr(processor, f"{name}_id")()]
    }
    if special["eos"] is None:
        raise UserError(f"{path}: has no end of sentence (eos_id is -1)")
    return _Vocabulary(ids, content, special, marked_tags=False)
