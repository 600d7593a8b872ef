"""The filters of training pairs by name, as in `--config.data.filters=duplicates,identical`."""

from transformer_jax.data.filters.base import Filter
from transformer_jax.data.filters.duplicates import Duplicates, NearDuplicates
from transformer_jax.data.filters.identical import Identical
from transformer_jax.data.filters.language import Language
from transformer_jax.data.filters.lengths import LengthRatio
from transformer_jax.data.filters.quality import Quality
from transformer_jax.data.filters.script import Script
from transformer_jax.settings.variants import Family

FILTERS: Family[Filter] = Family(
    Filter,
    duplicates=Duplicates,
    near_duplicates=NearDuplicates,
    length_ratio=LengthRatio,
    identical=Identical,
    script=Script,
    language=Language,
    quality=Quality,
)
