"""One command from a text of translations to a folder that Firefox's engine translates with."""

import json
from typing import Any

import pytest

import transformer_jax as tj
from tests.commands.distil.test_distil import Killed, dies
from tests.oracles import need
from tests.pages import blocks
from transformer_jax.commands.main import main
from transformer_jax.data.sources.grammar.sentences import generate
from transformer_jax.formats.marian import firefox
from transformer_jax.metrics.scores import corpus_scores

RECIPE = """
from dataclasses import replace

import transformer_jax as tj

small = tj.load_recipe("student_small_text")
config = replace(
    small,
    data=tj.DataConfig(cache_dir="FOLDER/cache"),
    tokenizer=tj.TokenizerConfig(vocab_size=600),
    batch=tj.BatchConfig(tokens=1024, max_length=48, num_buckets=1),
    model=replace(small.model, d_model=64, d_ff=128, dropout_rate=0.0, matmul_dtype="float32",
                  encoder=replace(small.model.encoder, num_layers=1),
                  decoder=replace(small.model.decoder, mixers=(tj.SSRU(),))),
    train=replace(small.train, steps=STEPS, evaluate_every=STEPS, checkpoint_every=STEPS,
                  evaluate_sentences=4, ema_decay=None,
                  schedule=tj.CosineSchedule(learning_rate=4e-3, warmup_steps=40)),
)
"""


def command(folder, steps, *more):
    """Writes a text and a recipe; returns the words of the command."""
    pairs = generate(5, 1500)
    tsv = [f"{source}\t{target}\t{i % 3}\n" for i, (source, target) in enumerate(pairs)]
    (folder / "llm.tsv").write_text("".join(tsv))
    recipe = RECIPE.replace("FOLDER", str(folder)).replace("STEPS", str(steps))
    (folder / "student.py").write_text(recipe)
    held_out = pairs[-60:]
    for side, name in enumerate(("flores.en", "flores.de")):
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in held_out))
    export = f"--export=firefox(flores='{folder / 'flores.en'},{folder / 'flores.de'}')"
    words = [f"--translations={folder / 'llm.tsv'}", f"--config={folder / 'student.py'}"]
    languages = ["--config.data.source_language=en", "--config.data.target_language=de"]
    more = ["--config.data.validation_from_train=40", export, "--no_progress", *more]
    return ["distil", *words, f"--workdir={folder / 'runs' / 'llm'}", *languages, *more]


def test_a_text_becomes_a_folder_that_the_engine_translates_with(tmp_path, monkeypatch, capsys):
    fxtranslate = need("fxtranslate")
    words = command(tmp_path, 500)
    with monkeypatch.context() as patch:
        dies(patch, firefox, "_about_model", at=1)  # when half of the files are written
        with pytest.raises(Killed):
            main(words)
    made = tmp_path / "runs" / "llm" / "distillation" / "exported"
    assert not made.exists() and made.with_name("exported.partial").exists()
    assert main(words) == 0
    folder = made / "firefox"
    assert capsys.readouterr().out.endswith(f"{folder}\n")
    (program,) = [each for each in blocks("docs/students.md", "python") if "fxtranslate" in each]
    names: dict[str, Any] = {}
    monkeypatch.chdir(tmp_path)
    exec(compile(program, "docs/students.md", "exec"), names)
    assert capsys.readouterr().out.strip()
    model, vocabulary, shortlist = (names[key] for key in ("model", "vocabulary", "shortlist"))
    sources, references = zip(*generate(5, 1500)[-60:], strict=True)
    ours = tj.open_run(tmp_path / "runs" / "llm").translator().translate(sources)
    best = corpus_scores(ours, references)["bleu"].score
    flores = json.loads((folder / "metadata.json").read_text())["flores"]["bleu"]
    assert best > 40 and flores > 0.85 * best, (best, flores)  # so small, and not trained for int8
    for files in ([], [shortlist]):
        engine = fxtranslate.Translator(model, vocabulary, vocabulary, *files)
        found = corpus_scores([engine.translate(text) for text in sources], references)["bleu"]
        print(best, flores, found.score)
        assert found.score > 0.95 * flores, (len(files), found.score, flores)
    assert "- validation.best: BLEU" in (folder / "README.md").read_text()
    # What is there is not made again.
    made = (folder / "metadata.json").stat().st_mtime_ns
    assert main(words) == 0
    assert (folder / "metadata.json").stat().st_mtime_ns == made


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--export=firefux"], "'firefux' is unknown (did you mean firefox?)"),
        (["--config.model.d_ff=96"], "model.d_ff=96: Bergamot's int8 needs a multiple of 64"),
        (["--config.model.decoder.mixers=full"], "train with model.decoder.mixers=ssru"),
    ],
)
def test_what_cannot_be_exported_is_refused_before_the_training(flags, message, tmp_path, refused):
    assert message in refused(command(tmp_path, 1, *flags))
    assert not (tmp_path / "runs" / "llm" / "config.json").exists()
