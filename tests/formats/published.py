"""Small published models: folders as they are downloaded, with random weights.

A case writes its folder with Transformers, PyTorch and SentencePiece and gives the model and the
tokenizer that it is compared with. `python -m tests.formats.published FOLDER` writes one of
OPUS-MT's form, for sessions where none is at hand.
"""

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import sentencepiece

from tests.oracles import need
from transformer_jax.formats.family import Languages
from transformer_jax.formats.import_model import import_model
from transformer_jax.runs.folder import Run

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
    """

    family: str
    build: Callable[[Path], tuple[Any, Any]]
    languages: Languages = Languages()
    tag: str = ""

    def forced(self, tokenizer: Any) -> int | None:
        """Transformers' id of the forced first target token."""
        language = self.languages.target
        if language is None:
            return None
        if hasattr(tokenizer, "get_lang_id"):
            return int(tokenizer.get_lang_id(language))
        return int(tokenizer.convert_tokens_to_ids(language))

    def imported(self, folder: Path, workdir: Path, **changes: str) -> Run:
        """A run of a folder of this case."""
        names = dict(zip(("source_language", "target_language"), self.languages, strict=True))
        return import_model(folder, workdir, **names | changes)


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


def let_sentences_end(model: Any, eos: int, more: float) -> None:
    """Raises the logits of EOS where the last norm has a bias and the projection is the table."""
    torch = need("torch")
    with torch.no_grad():
        bias = model.model.decoder.layer_norm.bias
        model.model.shared.weight[eos] += more * bias / (bias @ bias)


def m2m100(path: Path) -> tuple[Any, Any]:
    transformers = need("transformers")
    spm = sentencepiece_model("bpe")
    (path / "sentencepiece.bpe.model").write_bytes(spm)
    pieces = ["<s>", "<pad>", "</s>", "<unk>", *reversed(pieces_of(spm)[8:])]
    write_json(path / "vocab.json", {piece: i for i, piece in enumerate(pieces)})
    write_json(path / "tokenizer_config.json", {"tokenizer_class": "M2M100Tokenizer"})
    return fairseq(path, len(pieces) + 100 + 8), transformers.M2M100Tokenizer.from_pretrained(
        path, src_lang="en", tgt_lang="de"
    )


def nllb(
    path: Path, languages: tuple[str, ...] = ("eng_Latn", "deu_Latn", "fra_Latn")
) -> tuple[Any, Any]:
    transformers = need("transformers")
    (path / "sentencepiece.bpe.model").write_bytes(sentencepiece_model("bpe"))
    tokenizer = transformers.NllbTokenizer.from_pretrained(
        path,
        src_lang=languages[0],
        tgt_lang=languages[1],
        additional_special_tokens=list(languages),
    )
    tokenizer.save_pretrained(path)
    return fairseq(path, len(tokenizer) + 2), tokenizer


def fairseq(path: Path, size: int) -> Any:
    """A model of M2M100's family."""
    transformers = need("transformers")
    config = transformers.M2M100Config(**SIZES, vocab_size=size, decoder_start_token_id=2)
    model = transformers.M2M100ForConditionalGeneration(config).eval()
    randomize(model, seed=0)
    let_sentences_end(model, 2, 4.0)
    model.save_pretrained(path)
    return model


def mbart(path: Path) -> tuple[Any, Any]:
    transformers = need("transformers")
    (path / "sentencepiece.bpe.model").write_bytes(sentencepiece_model("unigram"))
    tokenizer = transformers.MBart50Tokenizer.from_pretrained(
        path, src_lang="en_XX", tgt_lang="de_DE"
    )
    tokenizer.save_pretrained(path)
    config = transformers.MBartConfig(
        **SIZES,
        vocab_size=len(tokenizer),
        decoder_start_token_id=2,
        scale_embedding=True,
        forced_eos_token_id=None,
    )
    model = transformers.MBartForConditionalGeneration(config).eval()
    randomize(model, seed=0)
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions.weight.data[:2] = 0  # never read, and not kept
    model.final_logits_bias[0, 2] = 5.0
    model.save_pretrained(path)
    return model, tokenizer


def t5(
    path: Path,
    *,
    kind: str = "T5",
    feed_forward: str = "relu",
    tied: bool = True,
    names: tuple[str, ...] = ("shared.weight",),
    symbols: tuple[str, ...] = (),
) -> tuple[Any, Any]:
    transformers, torch = need("transformers"), need("torch")
    spm = sentencepiece_model(
        "unigram", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, user_defined_symbols=symbols
    )
    (path / "spiece.model").write_bytes(spm)
    write_json(path / "tokenizer_config.json", {"extra_ids": 4})
    tokenizer = transformers.T5Tokenizer.from_pretrained(path, extra_ids=4)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(tokenizer) + 3,
        d_model=16,
        d_kv=6,
        d_ff=32,
        num_layers=2,
        num_decoder_layers=1,
        num_heads=2,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=12,
        feed_forward_proj=feed_forward,
        tie_word_embeddings=tied,
        decoder_start_token_id=0,
    )
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    if not tied:
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    randomize(model, seed=6)
    with torch.no_grad():  # a feature that all tokens share, so that sentences end
        model.shared.weight[:, 0] += 2.0
        model.lm_head.weight[1, 0] += 24.0 if tied else 5.0
    config.save_pretrained(path)
    written = json.loads((path / "config.json").read_text())
    written.pop("scale_decoder_outputs", None)  # of Transformers 5 alone
    write_json(path / "config.json", written | {"tie_word_embeddings": tied})
    tensors = dict(model.state_dict())
    aliases = {"shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
    if tied:
        aliases.add("lm_head.weight")
    left = {name: x for name, x in tensors.items() if name not in aliases or name in names}
    torch.save(left, path / "pytorch_model.bin")
    return model, tokenizer


MANY_TARGETS = (">>deu<<", ">>fra<<")
CASES = {
    "marian": Case("marian", marian),
    "marian, two vocabularies": Case(
        "marian", partial(marian, separate=True, tags=MANY_TARGETS), tag=">>deu<< "
    ),
    "marian, many targets": Case(
        "marian", partial(marian, tags=MANY_TARGETS, activation="relu"), tag=">>fra<< "
    ),
    "m2m100": Case("m2m_100", m2m100, Languages("en", "de")),
    "nllb": Case("m2m_100", nllb, Languages("eng_Latn", "deu_Latn")),
    "mbart-50": Case("mbart", mbart, Languages("en_XX", "de_DE")),
    "t5": Case("t5", t5),
    "t5 1.1": Case("mt5", partial(t5, kind="MT5", feed_forward="gated-gelu", tied=False)),
    "madlad": Case(
        "t5",
        partial(
            t5,
            feed_forward="gated-gelu",
            tied=False,
            names=("decoder.embed_tokens.weight",),
            symbols=("<2de>", "<2fr>"),
        ),
        tag="<2de> ",
    ),
}


def write_opus_mt(folder: Path) -> None:
    """A small folder of OPUS-MT's form, with random weights."""
    folder.mkdir(parents=True)
    CASES["marian"].build(folder)


if __name__ == "__main__":
    write_opus_mt(Path(sys.argv[1]))
