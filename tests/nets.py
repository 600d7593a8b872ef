"""Nets: what must stay equal while code is rewritten, recorded before and compared after.

    python -m tests.nets record FOLDER          # on the commit before, on the same machine
    python -m tests.nets compare FOLDER         # afterwards; exit status 1 if anything differs

Names of nets after FOLDER choose some of them. It trains small models on one CPU, in minutes. It
uses only what is meant to stay: commands with their flags, recipes, public names, files of a run.
To record an older commit, run this file by its path, with that commit's root as PYTHONPATH. Each
library that a command needs has to be there (./run oracles makes such an environment).

The record also keeps the runs that its commit trained, one of them stopped half-way; `compare`
opens, translates with and continues copies of them.
"""

import argparse
import contextlib
import functools
import hashlib
import importlib
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Most of the time would go into optimising programs that run once.
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"

#: What words in RUNS stand for: keys of a config with other values than the recipe's.
WORDS = {
    "FILES": """data.source_language=none data.target_language=none data.validation_from_train=20
        data.source=files(train_source=train.en,train_target=train.de,test_source=test.en,test_target=test.de)""",
    "SMALL": """data.cache_dir=cache tokenizer.vocab_size=400 batch.tokens=512 batch.max_length=48
        batch.num_buckets=1 model.d_model=32 model.d_ff=64 model.matmul_dtype=float32
        model.encoder.num_layers=1 model.decoder.num_layers=1 train.steps=100 train.log_every=1
        model.encoder.position=sinusoidal model.decoder.position=sinusoidal
        tokenizer.byte_fallback=true model.norm=layer
        train.schedule=rsqrt(learning_rate=5e-3,warmup_steps=20) train.checkpoint_every=50
        train.evaluate_every=50 train.evaluate_sentences=8
        decode.method=greedy decode.batch_size=20""",
    "DEEP": "model.encoder.num_layers=2 model.decoder.num_layers=2",
}
CORPUS = "corpus(languages='en,de',source=files(train_source=train.en,train_target=train.de)"
#: Training run -> its recipe, and what differs; the last value of a key counts.
RUNS = {
    "post_norm": """quickstart FILES SMALL model.norm_placement=post model.d_model=64
        model.norm=layer(epsilon=1e-5) batch.num_buckets=2 train.steps=600
        train.checkpoint_every=300""",
    "rope": """quickstart FILES SMALL DEEP tokenizer.kind=bpe tokenizer.joint=false
        model.encoder.position=rope model.decoder.position=rope model.norm=rms
        model.encoder.mixers=full(num_kv_heads=2,use_bias=false) model.feed_forward=glu
        model.decoder.mixers=full(num_kv_heads=2) model.tie_embeddings=decoder train.clip_norm=0.5
        model.cross=full(num_kv_heads=1,dropout_rate=0.1) train.optimizer=adamw(weight_decay=0.1)
        train.schedule=cosine(learning_rate=5e-3,warmup_steps=20) model.scan_layers=true""",
    "recurrent": """quickstart FILES SMALL model.encoder.mixers=linear model.cross=linear
        model.decoder.mixers=ssd(state_size=8),mamba(state_size=4) model.decoder.num_layers=2
        model.encoder.position=learned model.decoder.position=none model.remat=true
        train.schedule=linear(learning_rate=5e-3,warmup_steps=20)""",
    "sparse": """quickstart FILES SMALL DEEP model.encoder.position=alibi
        model.encoder.mixers=bigbird(block_size=4,random_blocks=1),full train.steps=300
        model.decoder.mixers=window(window=4),full model.decoder.position=alibi
        model.feed_forward=mlp(activation=gelu,dropout_rate=0.1) train.optimizer=lion
        data.filters=duplicates,length_ratio,script
        train.schedule=constant(learning_rate=1e-3,warmup_steps=20)""",
    "t5": """quickstart FILES SMALL DEEP
        model.encoder.position=t5 model.decoder.position=t5 train.accumulate=2 train.ema_decay=0.9
        train.optimizer=adafactor""",
    "several": "several.py SMALL train.steps=300 model.encoder.position=sinusoidal(form=halves)",
    "sampled": """quickstart FILES SMALL tokenizer.sampling_alpha=0.2 train.steps=40
        data.filters=near_duplicates,identical""",
    "lora": """finetune train.init_from=post_norm model.adapter=lora(rank=2)
        data.source=files(train_source=part.en,train_target=part.de) data.cache_dir=cache
        data.validation_from_train=20 batch.tokens=512 batch.max_length=48 batch.num_buckets=1
        train.steps=40 train.log_every=1 train.evaluate_every=20""",
    "started_quickstart": "quickstart train.steps=2 train.log_every=1 data.cache_dir=cache",
    "started_from_files": """from_files data.source.train_source=train.en model.d_model=32
        data.source.train_target=train.de model.d_ff=64 tokenizer.vocab_size=400
        train.steps=2 train.log_every=1 data.cache_dir=cache""",
    "undisturbed": """quickstart FILES SMALL train.steps=400 train.ema_decay=0.9
        train.checkpoint_every=25""",
    "blocks": """quickstart FILES SMALL data.source.documents=true batch.max_length=128
        model.max_length=128
        data.source.train_source=pages.en data.source.train_target=pages.de train.steps=40
        data.blocks=blocks(tokens=100),blocks(sentences=(1,3)) tokenizer.sampling_alpha=0.5""",
    "links": """quickstart FILES SMALL data.source.train_alignment=train.links train.steps=40
        train.alignment_weight=0.5 model.cross=full(alignment_head=0)""",
    "noise": f"""quickstart SMALL data.validation_from_train=20 train.steps=40
        data.corpora={CORPUS}),{CORPUS},noise='typos,upper_case,numbers',weight=0.5)""",
    "marian": """quickstart FILES SMALL train.steps=40 model.norm_placement=post model.d_model=64
        model.start_id=none model.decoder.mixers=ssru
        model.encoder.position=sinusoidal(form=tensor2tensor)
        model.decoder.position=sinusoidal(form=tensor2tensor) decode.method=greedy""",
    "teacher": """quickstart FILES SMALL data.cache_dir=cache train.steps=20
        train.teacher=word_level(run=post_norm,pieces=4)""",
    "prepared": "quickstart SMALL data.prepared=prepared_text train.steps=40",
}
RUNS["stopped"] = RUNS["undisturbed"]
#: Of which the record keeps the folders.
KEPT = ("post_norm", "several", "lora", "undisturbed", "stopped")
#: A recipe of several directions, one of them with a tag.
SEVERAL = """
import dataclasses
import transformer_jax as tj

def files(source, target):
    return tj.Files(train_source=(source,), train_target=(target,))

corpora = (
    tj.Corpus(files("train.en", "train.de"), ("en", "de"), weight=2.0),
    tj.Corpus(files("train.en", "train.de"), ("en", "de"), reverse=True),
    tj.Corpus(files("part.en", "part.fr"), ("en", "fr"), tag="<bt>"),
)
data = tj.DataConfig(corpora=corpora, temperature=2.0, validation_from_train=20)
config = dataclasses.replace(tj.load_recipe("quickstart"), data=data)
"""

#: Decoding -> the flags of `translate`, with the run post_norm.
TRANSLATIONS = {
    "greedy": "--method=greedy --n_best=1",
    "beam": "--method=beam(beam_size=4) --n_best=4",
    "patience": "--method=beam(beam_size=4,patience=1,length_penalty_form=power) --n_best=2",
    "top_k": "--method=sample(num_samples=2,top_k=5,seed=3) --n_best=2",
    "top_p": "--method=sample(top_p=0.8,temperature=0.7,seed=4) --n_best=1",
    "epsilon": "--method=sample(epsilon=0.02,seed=5) --n_best=1",
    "mbr": "--method=sample(num_samples=4,epsilon=0.02) --mbr=pairwise --n_best=1",
    "prefix": "--target_prefix=Der --n_best=1",
    "repetition": "--no_repeat_ngram=2 --repetition_penalty=1.2 --n_best=1",
    "int8": "--weights=int8 --n_best=1",
    "ensemble": "--workdir=sparse --method=beam --n_best=2",
    "ensemble_probs": "--workdir=sparse --ensemble_mean=probs --n_best=1",
    "average": "--checkpoint=average:2 --n_best=1",
    "plain": "",
}


def command(*words: str) -> str:
    """What a command of the package prints on standard output."""
    import transformer_jax

    root = Path(transformer_jax.__file__).parents[1]
    scripts = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]
    module, name = scripts["transformer-jax"].split(":")
    main = getattr(importlib.import_module(module), name)
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(out):
        assert main(words) in (0, None), words
        out.flush()
    return out.buffer.getvalue().decode()  # type: ignore[attr-defined]


def train_words(run: str) -> list[str]:
    settings = " ".join(WORDS.get(word, word) for word in RUNS[run].split())
    recipe, *keys = settings.split()
    flags = [f"--config.{key}" for key in keys]
    return ["train", f"--config={recipe}", f"--workdir={run}", "--no_progress", *flags]


@functools.cache
def trained(name: str) -> Path:
    """The folder of a training run, which is trained at its first use."""
    if name in ("lora", "teacher"):
        trained("post_norm")
    if name == "prepared":
        _, recipe, _, _, *flags = train_words("sampled")
        command("prepare", recipe, "--output=prepared_text", *flags)
    command(*train_words(name))
    return Path(name)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def trained_net(name: str) -> Any:
    """The numbers of each step that do not depend on the clock, and the last parameters."""
    import transformer_jax as tj

    workdir = trained(name)
    kept = ("loss", "grad_norm", "learning_rate", "bleu", "validation")
    lines = map(json.loads, (workdir / "metrics.jsonl").open())
    records = [{k: v for k, v in line.items() if k.startswith(kept)} for line in lines]
    return {
        "records": list(filter(None, records)),
        "params": digests(tj.open_run(workdir).params("latest")),
    }


def digests(params: Any) -> dict[str, str]:
    import jax

    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(k): digest(jax.device_get(v).tobytes()) for k, v in leaves}


def translations_net() -> Any:
    found: dict[str, Any] = {}
    trained("sparse")
    several = "--n_best=1 --target_language="
    rows = [("post_norm", name, flags) for name, flags in TRANSLATIONS.items()]
    rows += [("several", f"several_{language}", several + language) for language in ("de", "fr")]
    for run, name, flags in rows:
        where = [f"--workdir={trained(run)}", "--input=test.en", f"--output={name}.txt"]
        command("translate", *where, *flags.split())
        found[name] = Path(f"{name}.txt").read_text(encoding="utf-8").splitlines()
    workdir = f"--workdir={trained('post_norm')}"
    for flag in ("", "--per_token"):
        words = ["score", workdir, "--source=test.en", "--target=plain.txt", *flag.split()]
        found[f"score {flag}"] = command(*words).splitlines()
    scores = json.loads(command("eval", workdir, "--json"))
    found["eval"] = {key: value for key, value in scores.items() if "second" not in key}
    return found


def translated(workdir: str, source: str, *flags: str) -> list[str]:
    """The lines that `translate` writes for those of a file."""
    command(
        "translate", f"--workdir={workdir}", f"--input={source}", f"--output={workdir}.txt", *flags
    )
    return lines(f"{workdir}.txt")


def documents_net() -> Any:
    """Blocks, alignments and contrastive sets."""
    workdir = f"--workdir={trained('post_norm')}"
    score = ["score", workdir, "--source=test.en", "--target=test.de", "--alignments"]
    sides = (lines(f"test.{language}") for language in ("en", "de", "fr"))
    items = ("\t".join(item) + "\n" for item in zip(*sides, strict=True))
    Path("items.tsv").write_text("".join(items), encoding="utf-8")
    return {
        "blocks": translated(str(trained("blocks")), "pages.en", "--documents"),
        "alignments": translated(str(trained("links")), "test.en", "--alignments"),
        "score": command(*score).splitlines(),
        "contrast": json.loads(command("contrast", workdir, "--input=items.tsv", "--json")),
    }


def lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()


def kept_net() -> Any:
    """What was trained when the record was made, and is only read, continued and used now."""
    import transformer_jax as tj

    found: dict[str, Any] = {}
    for name in KEPT:
        kept = Path("../kept", name)
        if not kept.exists():  # while the record is made
            kill(name) if name == "stopped" else trained(name)
            shutil.copytree(name, kept)
        if name == "stopped":  # a run does not continue in a folder of another name
            shutil.copytree(kept, name, dirs_exist_ok=True)
            found[name] = trained_net(name)
            continue
        shutil.copytree(kept, f"kept_{name}")
        language = ["--target_language=de"] if name == "several" else []
        found[name] = translated(f"kept_{name}", "test.en", *language)
        found[f"{name} parameters"] = digests(tj.open_run(f"kept_{name}").params("latest"))
    return found


def imports_net() -> Any:
    """A model of each family: its parameters, what it translates, and what is exported again."""
    import transformer_jax as tj

    found = {}
    for folder in sorted(Path("../models").iterdir()):
        flags = json.loads((folder / "flags.json").read_text())
        workdir = f"imported_{folder.name}"
        command("import", f"--from={folder}", f"--workdir={workdir}", *flags["import"])
        found[folder.name] = translated(workdir, "words.txt", "--method=greedy")
        found[f"{folder.name} parameters"] = digests(tj.open_run(workdir).params("latest"))
    return found


def plan_net() -> Any:
    """The text of a plan, without times that are measured here."""
    text = command("train", "--config=quickstart", "--plan", "--plan_no_search")
    return [line for line in text.splitlines() if not re.search(r"\d s\b", line)]


def configs_net() -> Any:
    from transformer_jax.config import to_json
    from transformer_jax.recipes import load_recipe, recipe_files

    found = {name: json.loads(to_json(load_recipe(name))) for name in recipe_files()}
    for name in RUNS.keys() - {"stopped"}:
        found[f"run {name}"] = json.loads((trained(name) / "config.json").read_text())
    return found


def exports_net() -> Any:
    wanted = [("post_norm", form) for form in ("safetensors", "ctranslate2", "huggingface")]
    wanted += [("post_norm", "ctranslate2(quantization=int8)"), ("lora", "safetensors")]
    wanted += [("rope", "ctranslate2"), ("sparse", "safetensors"), ("marian", "bergamot")]
    wanted += [("marian", "bergamot(quantization=int8,sentences=test.en)"), ("marian", "web")]
    found: dict[str, Any] = {}
    for number, (name, form) in enumerate(wanted):
        folder = Path(f"export{number}")
        command("export", f"--workdir={trained(name)}", f"--format={form}", f"--output={folder}")
        found[f"{name} {form}"] = {
            # Of JSON the values, so that the one that differs is named.
            path.name: json.loads(path.read_text())
            if path.suffix == ".json"
            else digest(path.read_bytes())
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
    return found


def kill(name: str) -> None:
    """Starts a training, which SIGKILL ends after a checkpoint."""
    tests = str(Path(__file__).parents[1])
    start = f"import sys; sys.path.append({tests!r}); from tests import nets"
    words = [sys.executable, "-c", f"{start}; nets.command(*sys.argv[1:])", *train_words(name)]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    while process.poll() is None and not Path(name, "checkpoints/75").is_dir():
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it was killed"


NETS: dict[str, Callable[[], Any]] = {
    **{name: functools.partial(trained_net, name) for name in RUNS if name != "stopped"},
    "translations": translations_net,
    "documents": documents_net,
    "configs": configs_net,
    "exports": exports_net,
    "imports": imports_net,
    "plan": plan_net,
    "kept": kept_net,
}


def write_text(record: Path) -> None:
    """The parallel text of the nets, which is kept with the record."""
    import transformer_jax as tj

    (record / "text").mkdir(parents=True, exist_ok=True)
    pairs = list(itertools.islice(tj.Grammar().pairs("train", ("en", "de")), 1020))
    pairs += [*pairs[50:60], ("12", "12")]  # for filters
    sides = {"en": [pair[0] for pair in pairs], "de": [pair[1] for pair in pairs]}
    sides["fr"] = [" ".join(word[::-1] for word in line.split()) for line in sides["en"]]
    for language, lines in sides.items():
        pages = [line + "\n" * (i % 4 == 3) for i, line in enumerate(lines[:400])]
        parts = {"test": lines[:20], "train": lines[20:], "part": lines[520:], "pages": pages}
        for name, part in parts.items():
            (record / "text" / f"{name}.{language}").write_text(
                "\n".join(part) + "\n", encoding="utf-8"
            )
    links = (f"{i}-{i}" for i in range(3))
    (record / "text" / "train.links").write_text(f"{' '.join(links)}\n" * len(pairs[20:]))
    (record / "text" / "words.txt").write_text("the dog sees a cat\nein Mann liest\n")


def write_models(record: Path) -> None:
    """Published models of all families with random weights, by tests.formats.published."""
    from tests.formats.published import CASES

    for name, case in CASES.items():
        folder = record / "models" / re.sub(r"\W+", "_", name)
        folder.mkdir(parents=True)
        case.build(folder)
        flags = [
            f"--{side}_language={value}"
            for side, value in case.languages._asdict().items()
            if value
        ]
        (folder / "flags.json").write_text(json.dumps({"import": flags}))


def leaves(value: Any, place: str = "") -> dict[str, Any]:
    """Each value in nested dicts and lists, by its place."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {place: value}
    return {k: v for name in value for k, v in leaves(value[name], f"{place}.{name}").items()}


def first_difference(old: Any, new: Any) -> str | None:
    """Where two values first differ, and how; None where they are equal."""
    old, new = leaves(old), leaves(new)
    for key in [*old, *new]:
        before, after = (each.get(key, "nothing") for each in (old, new))
        if before != after:
            return f"{key}: {before!r} -> {after!r}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("nets", nargs="*", metavar="NET", help=", ".join(NETS))
    args = parser.parse_args()
    import jax

    import transformer_jax

    os.environ["PYTHONPATH"] = str(Path(transformer_jax.__file__).parents[1])
    record, status = args.folder.absolute(), 0
    if args.action == "record":
        write_text(record)
        write_models(record)
    place = record / "runs"  # always the same one, since configs and exports name their text
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    with contextlib.chdir(place):
        for path in (record / "text").iterdir():
            Path(path.name).write_bytes(path.read_bytes())
        Path("several.py").write_text(SEVERAL)
        for name in args.nets or NETS:
            path, found = record / f"{name}.json", None
            try:
                text = json.dumps(NETS[name](), indent=1, ensure_ascii=False) + "\n"
                if args.action == "record":
                    path.write_text(text)
                else:
                    path.with_suffix(".new.json").write_text(text)  # for `diff`
                    found = first_difference(json.loads(path.read_text()), json.loads(text))
            except Exception as error:  # one net that fails does not hide the others
                found = f"{type(error).__name__}: {error}"
            jax.clear_caches()  # so many programs would need too many maps of memory
            status |= found is not None
            print(f"{name}: {found or args.action.replace('compare', 'equal')}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
