"""Every export format, by the name it has in `--format`.

Adding one is a file that defines it and a line here.
"""

from transformer_jax.interop.exporters.base import Exporter
from transformer_jax.interop.exporters.bergamot import Bergamot
from transformer_jax.interop.exporters.ctranslate2 import CTranslate2
from transformer_jax.interop.exporters.huggingface import HuggingFace
from transformer_jax.interop.exporters.safetensors import Safetensors
from transformer_jax.interop.exporters.web import Web

EXPORTERS: dict[str, type[Exporter]] = {
    "bergamot": Bergamot,
    "ctranslate2": CTranslate2,
    "huggingface": HuggingFace,
    "safetensors": Safetensors,
    "web": Web,
}
