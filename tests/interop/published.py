"""Small published models: folders as they are downloaded, with random weights.

A case writes its folder with Transformers, PyTorch and SentencePiece and gives the model and the
tokenizer that it is compared with.
"""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sentencepiece

from tests.oracles import need
from transformer_jax.interop.families.base import Languages

TEXT = [
    "the dog sees a cat",
    "an old man reads a long book",
    "der Hund sieht eine Katze",
    "ein alter Mann liest ein Buch",
    "le chien voit un chat",
    "schöne Grüße aus Köln",
    "Привет мир, как дела",
    "今日は良い天気です",
] * 6

#: Among them text with characters that no piece has.
SOURCES = [
    "the dog sees a cat",
    "ein alter Mann liest",
    "Привет мир",
    "schöne Katze 犬 ok",
    "今日は良い天気です",
    "a  b   c",
    "Ω",
]
TARGETS = ["der Hund sieht", "an old man", "le chien", "Katze ☃ Buch", "как дела", "a", "Köln Ω"]


def sentencepiece_model(kind: str, size: int = 90, **options: Any) -> bytes:
    """A SentencePiece model of the multilingual text."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=model,
        vocab_size=size,
        model_type=kind,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.vocab_size())]


def write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")


@dataclass(frozen=True)
class Case:
    """One folder.

    Attributes:
        family: its name in the registry.
        build: writes the folder; gives Transformers' (model, tokenizer).
        languages: what to import it with.
        tag: what to put before a source.
        forced: Transformers' id of the forced first target token.
    """

    family: str
    build: Callable[[Path], tuple[Any, Any]]
    languages: Languages = Languages()
    tag: str = ""
    forced: Callable[[Any], int | None] = field(default=lambda tokenizer: None)


def randomize(model: Any, seed: int) -> None:
    """Makes every parameter random; norms stay near 1, padding rows 0."""
    torch = need("torch")
    generator = torch.Generator().manual_seed(seed)

    def noise(x: Any) -> Any:
        return torch.randn(x.shape, generator=generator)

    with torch.no_grad():
        for name, x in model.named_parameters():
            if not x.requires_grad:  # Marian's sinusoids
                continue
            is_scale = x.ndim == 1 and name.endswith("weight")
            x.copy_(1 + 0.2 * noise(x) if is_scale else 0.35 * noise(x))
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0
        if getattr(model, "final_logits_bias", None) is not None:
            model.final_logits_bias.copy_(noise(model.final_logits_bias))


SIZES = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
}


def marian(
    path: Path, *, separate: bool = False, tags: tuple[str, ...] = (), activation: str = "swish"
) -> tuple[Any, Any]:
    transformers = need("transformers")
    models = {"source": sentencepiece_model("unigram"), "target": sentencepiece_model("bpe", 100)}
    for side, model in models.items():
        (path / f"{side}.spm").write_bytes(model)

    def numbered(*parts: bytes) -> dict[str, int]:
        # Not SentencePiece's order, and not all of its pieces.
        pieces = dict.fromkeys(piece for part in parts for piece in reversed(pieces_of(part)[6:]))
        names = ["</s>", "<unk>", *tags, *pieces, "<pad>"]
        return {piece: i for i, piece in enumerate(names)}

    shared = numbered(*models.values())
    vocabularies = [shared, shared]
    if separate:
        vocabularies = [numbered(model) for model in models.values()]
        # Transformers knows one padding id, for both sides.
        first, second = vocabularies
        for ids in vocabularies:
            del ids["<pad>"]
        size = max(map(len, vocabularies))
        for name, ids in (("s", first), ("t", second)):
            ids |= {f"{name}{i}": i for i in range(len(ids), size)}
            ids["<pad>"] = size
        write_json(path / "target_vocab.json", second)
    write_json(path / "vocab.json", vocabularies[0])
    write_json(
        path / "tokenizer_config.json",
        {
            "separate_vocabs": separate,
            "source_lang": "en",
            "target_lang": "de",
            "tokenizer_class": "MarianTokenizer",
        },
    )
    pad = vocabularies[1]["<pad>"]
    config = transformers.MarianConfig(
        **SIZES,
        vocab_size=len(vocabularies[0]),
        decoder_vocab_size=len(vocabularies[1]),
        share_encoder_decoder_embeddings=not separate,
        activation_function=activation,
        scale_embedding=True,
        pad_token_id=pad,
        decoder_start_token_id=pad,
        eos_token_id=0,
        forced_eos_token_id=None,
    )
    model = transformers.MarianMTModel(config).eval()
    randomize(model, seed=0)
    model.final_logits_bias[0, 0] = 5.0  # so that sentences end
    model.final_logits_bias[0, pad] = 0.0
    model.generation_config.bad_words_ids = [[pad]]
    model.generation_config.num_beams = 4
    model.save_pretrained(path)
    return model, transformers.MarianTokenizer.from_pretrained(path)


def case(family: str, *arguments: Any, **options: Any) -> Case:
    """A case of a builder with options."""
    names = ("languages", "tag", "forced")
    of_case = {name: options.pop(name) for name in names if name in options}
    builder = BUILDERS[family]
    return Case(family, lambda path: builder(path, *arguments, **options), **of_case)


BUILDERS: dict[str, Callable[..., tuple[Any, Any]]] = {"marian": marian}

CASES = {
    "marian": case("marian"),
    "marian, two vocabularies": case("marian", separate=True),
    "marian, many targets": case(
        "marian", tags=(">>deu<<", ">>fra<<"), tag=">>fra<< ", activation="relu"
    ),
}
