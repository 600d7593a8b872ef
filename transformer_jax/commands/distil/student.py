"""The student's config: a recipe, with the text and the tokenizers of its teacher."""

import dataclasses
from collections.abc import Sequence

from transformer_jax.config import Config
from transformer_jax.data.config import TokenizerConfig
from transformer_jax.data.mapped_tokenizer import find_tag
from transformer_jax.data.sources.base import Languages
from transformer_jax.data.sources.files import Files
from transformer_jax.errors import UserError
from transformer_jax.runs.folder import Run
from transformer_jax.runs.pretrained import given_by, languages_of
from transformer_jax.settings.languages import base_language


def taught_by(teacher: Run, config: Config) -> Config:
    """The recipe, with what it leaves open from its teacher.

    The text is the teacher's where the recipe names none: its source or corpora, and what it holds
    out. So are the languages, each by itself. The tokenizers are where the recipe says nothing
    about its own.
    """
    data, tokenizer, theirs = config.data, config.tokenizer, teacher.config.data
    data = dataclasses.replace(data, **languages_of(data, theirs))
    if data.source == Files() and not data.corpora:
        held_out = theirs.validation_from_train or data.validation_from_train
        data = dataclasses.replace(
            data, source=theirs.source, corpora=theirs.corpora, validation_from_train=held_out
        )
    alpha = tokenizer.sampling_alpha
    if dataclasses.replace(tokenizer, sampling_alpha=None) == TokenizerConfig():
        tokenizer = dataclasses.replace(given_by(teacher), sampling_alpha=alpha)
    return dataclasses.replace(config, data=data, tokenizer=tokenizer)


def languages_for(teachers: Sequence[Run], direction: Languages) -> dict[str, str]:
    """The fields of `DecodeConfig` with which the teachers translate in a direction.

    Raises:
        UserError: one of them translates between other languages.
    """
    fields: dict[str, str] = {}
    for run in teachers:
        data, tokenizers = run.config.data, run.tokenizers()
        own = data.source_language, data.target_language
        # A language that is not known is any.
        sides = zip(own, direction, strict=True)
        if all(not known or base_language(known) == base_language(given) for known, given in sides):
            continue
        source, target = direction
        tags = [find_tag(each, target) for each in (tokenizers.source, tokenizers.target)]
        if any(tag is not None for tag in tags):
            fields = {"source_language": source, "target_language": target}
        elif not (data.corpora and direction in data.directions):
            raise UserError(
                f"--teacher={run.path}: it translates from {own[0]} into {own[1]}, and the "
                f"text is from {source} into {target}: give another teacher, or the text's "
                "languages by --config.data.source_language and --config.data.target_language"
            )
    return fields
