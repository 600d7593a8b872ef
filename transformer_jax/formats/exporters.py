"""Every export format, by the name it has in `--format`.

Adding one is a file that defines it and a line here.
"""

from transformer_jax.formats.ctranslate2 import CTranslate2
from transformer_jax.formats.exporter import Exporter
from transformer_jax.formats.marian.bergamot import Bergamot
from transformer_jax.formats.marian.firefox import Firefox
from transformer_jax.formats.marian.web import Web
from transformer_jax.formats.onnx.exporter import Onnx
from transformer_jax.formats.safetensors import Safetensors
from transformer_jax.formats.transformers.writer import HuggingFace

EXPORTERS: dict[str, type[Exporter]] = {
    "bergamot": Bergamot,
    "ctranslate2": CTranslate2,
    "firefox": Firefox,
    "huggingface": HuggingFace,
    "onnx": Onnx,
    "safetensors": Safetensors,
    "web": Web,
}
