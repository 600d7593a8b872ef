"""Plans of a tiny recipe for the devices of this machine, their text, and the command."""

import dataclasses
import importlib.util
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import transformer_jax as tj
from tests.devices import environment
from transformer_jax.commands.main import main
from transformer_jax.config import Config, TrainConfig, override
from transformer_jax.data.tokenizer_training import train_tokenizer
from transformer_jax.plan.devices import GIB, Device, Target
from transformer_jax.plan.gpu import gpu_node
from transformer_jax.plan.planner import largest_rows, largest_that_fits, make_plan, rows_that_fill
from transformer_jax.plan.programs import Compiler, Program, bytes_per_device, refusal
from transformer_jax.plan.step_time import StepTime
from transformer_jax.plan.text import as_text
from transformer_jax.plan.topologies import described, this_machine

ROOT = Path(__file__).parents[2]
STACK = tj.StackConfig(num_layers=1)
CONFIG = Config(
    tokenizer=tj.TokenizerConfig(vocab_size=64, byte_fallback=False),
    batch=tj.BatchConfig(tokens=256, max_length=16),
    model=tj.ModelConfig(
        d_model=16, d_ff=32, num_heads=4, encoder=STACK, decoder=STACK, max_length=32
    ),
    train=TrainConfig(steps=10, schedule=tj.RsqrtSchedule(learning_rate=1e-3)),
    decode=tj.DecodeConfig(batch_size=3, method=tj.Beam(beam_size=2), max_source_length=16),
)


@pytest.fixture(scope="module")
def made():
    return make_plan(CONFIG, this_machine())


def test_the_memory_is_asked_of_a_device_of_this_process(monkeypatch):
    """The first device of several processes is another process's in all but one."""

    class Remote:
        device_kind = "NVIDIA H100"

        def memory_stats(self):
            raise jax.errors.JaxRuntimeError("only supported for addressable devices")

    remote = Remote()
    monkeypatch.setattr(jax, "devices", lambda: [remote, *jax.local_devices()])
    here = this_machine()
    assert here.devices[0] is remote and here.memory == here.device.memory > 2**30


def test_a_plan_for_this_machine(made):
    devices = jax.device_count()
    assert made.mesh["data"] == devices
    assert (made.train.rows, made.length) == (16, 16)
    assert made.tokens == 512
    assert made.param_bytes == 4 * made.num_params
    # Adam: two moments, its own count and the step's.
    assert 3 * made.param_bytes < made.state_bytes < 3 * made.param_bytes + 64
    assert made.train.bytes > made.state_bytes
    assert made.train.fits and made.decode.fits and made.evaluation.fits and made.fits
    # Between steps greedy decoding adds to the memory of the optimizer's moments.
    assert made.evaluation.bytes > made.state_bytes
    assert made.evaluation.rows == -(-64 // devices) * devices
    assert made.own_param_bytes == made.param_bytes
    assert made.time is None and made.largest_rows is None  # unknown for a CPU
    if devices == 1:
        assert made.collectives == {}


def test_adapters_save_the_optimizers_memory_and_are_merged_for_decoding(made):
    config = override(CONFIG, {"model.adapter": "lora(rank=1)"})
    target = Target(jax.devices()[:1])
    compilers = [Compiler(each, target) for each in (CONFIG, config)]
    plain, adapted = (bytes_per_device(compiler.state) for compiler in compilers)
    assert plain == made.state_bytes
    more = bytes_per_device(compilers[1].state.params) - bytes_per_device(compilers[0].state.params)
    assert adapted < 3 * more + made.param_bytes + 64
    decodings = [compiler.decode(CONFIG.decode, 16) for compiler in compilers]
    assert decodings[0].bytes == decodings[1].bytes


def test_int8_weights_take_a_quarter_of_the_memory_in_decoding():
    # Wide enough that what is not a matrix hardly counts.
    wide = {"model.d_model": 64, "model.d_ff": 256, "tokenizer.vocab_size": 1000}
    configs = [override(CONFIG, wide | {"decode.weights": each}) for each in ("float", "int8")]
    target = Target(jax.devices()[:1])
    compilers = [Compiler(config, target) for config in configs]
    floats, int8 = (
        bytes_per_device(each.decoding_params(each.config.decode, each.mesh)) for each in compilers
    )
    assert 0.25 < int8 / floats < 0.29


@pytest.mark.parametrize(("languages", "tags"), [([], 0), (["de", "fr", "nl"], 3)])
def test_a_given_tokenizer_and_the_tags_determine_the_vocabulary_size(languages, tags, tmp_path):
    path = tmp_path / "given.model"
    path.write_bytes(
        train_tokenizer(tj.TokenizerConfig(vocab_size=270), ["ab cd ef gh"] * 50).model
    )
    data = tj.DataConfig(corpora=tuple(tj.Corpus(languages=("en", code)) for code in languages))
    tokenizer = tj.TokenizerConfig(source_model=str(path))
    config = dataclasses.replace(CONFIG, tokenizer=tokenizer, data=data)
    model = Compiler(config, Target(jax.devices()[:1])).config.model
    assert model.source_vocab_size == model.target_vocab_size == 270 + tags


def test_the_text_for_an_unknown_device(made):
    text = as_text(made)
    assert f"{made.num_params:,}" in text
    assert "16 pairs of 16 + 16 pieces, 512 on both sides" in text
    assert "none: unknown device" in text
    assert "DOES NOT FIT" not in text and "what would help" not in text
    taught = override(CONFIG, {"train.teacher": "word_level(run=teacher)"})
    told = "train.teacher: its parameters"
    assert told not in text and told in as_text(dataclasses.replace(made, config=taught))


@pytest.mark.parametrize("guess", [1, 90, 100, 110, 3000])
@pytest.mark.parametrize("limit", [0, 8, 9, 100, 1000])
def test_the_largest_batch_fits_and_is_near_the_limit(limit, guess):
    asked = []

    def fits(rows):
        asked.append(rows)
        return rows <= limit

    rows = largest_that_fits(fits, guess, 8)
    assert rows % 8 == 0 and rows <= limit
    assert rows + 8 > limit or rows > 0.88 * limit
    assert all(rows % 8 == 0 and rows > 0 for rows in asked)
    assert len(asked) == len(set(asked)) <= 14
    program = Program(rows=10, bytes=30, limit=None, compiled=None)
    assert rows_that_fill(memory=50, fixed=10, program=program) == 20


@pytest.mark.slow
def test_the_largest_batch_is_found_by_compiling(made):
    """On a made-up device with 1.5 times the memory that the recipe's batch needs."""
    device = Device("made up", int(1.5 * made.train.bytes), 1e12, 1e11)
    compiler = Compiler(CONFIG, Target(jax.devices()[:1], device, device.memory))
    rows = largest_rows(compiler, made.train, 16)
    assert 16 < rows < 48
    assert not compiler.train_step(2 * rows, 16).fits


def test_settings_that_cannot_work_are_refused():
    here = Target(jax.devices()[:1])
    with pytest.raises(tj.UserError, match="--plan_length=64.*max_length=32"):
        make_plan(CONFIG, here, length=64)
    small = dataclasses.replace(CONFIG, batch=tj.BatchConfig(tokens=8, max_length=16))
    with pytest.raises(tj.UserError, match="set it to at least 16"):
        make_plan(small, here)
    with pytest.raises(tj.UserError, match="does not fit 1 devices"):
        make_plan(dataclasses.replace(CONFIG, mesh=tj.MeshConfig(data=3)), here)


def on_tpus(plan, count=1, **changes):
    """The plan with other values, for this many made-up devices of 16 GiB."""
    device = Device("made up", 16 * GIB, flops=400e12, bandwidth=1e12)
    target = Target(jax.devices()[:1] * count, device, device.memory)
    return dataclasses.replace(plan, target=target, **changes)


def with_config(plan, part, **values):
    """The plan with other values in one part of its config."""
    changed = dataclasses.replace(getattr(plan.config, part), **values)
    return dataclasses.replace(plan, config=dataclasses.replace(plan.config, **{part: changed}))


def test_a_plan_that_does_not_fit_says_by_how_much_and_what_would_help(made):
    state = {"state_bytes": 8 * GIB, "fsdp_state_bytes": GIB}
    too_large = dataclasses.replace(made.train, bytes=20 * GIB, limit=16 * GIB)
    plan = on_tpus(made, 8, train=too_large, largest_rows=4, **state)
    text = as_text(plan)
    assert "20.00 GiB of 16.00 GiB a device: DOES NOT FIT, 4.00 GiB too much" in text
    assert "--config.batch.tokens=64" in text and "--config.train.accumulate=4" in text
    assert "--config.model.remat=true" in text
    assert "--config.mesh.fsdp=8 frees 7.00 GiB" in text
    assert not plan.fits
    helpless = dataclasses.replace(plan, largest_rows=0, fsdp_state_bytes=8 * GIB)
    assert "more devices, or a smaller model" in as_text(with_config(helpless, "model", remat=True))


def test_a_validation_that_does_not_fit_has_advice_on_the_state(made):
    evaluation = dataclasses.replace(made.evaluation, bytes=17 * GIB, limit=16 * GIB)
    plan = on_tpus(made, 8, evaluation=evaluation, state_bytes=8 * GIB, fsdp_state_bytes=GIB)
    text = as_text(plan)
    assert "DOES NOT FIT, 1.00 GiB too much, with the training state" in text
    assert "frees 7.00 GiB" in text and "remat" not in text
    assert not plan.fits


def test_time_and_utilisation(made):
    parts = {"mixers": {"products": 0.2, "copies": 0.05, "other": 0.05}}
    time = StepTime(seconds=0.5, computing=0.4, waiting=0.1, hidden=0.2, parts=parts)
    collectives = {"all-reduce": (3, 1 << 20)}
    plan = on_tpus(made, time=time, flops=100 * 10**12, collectives=collectives)
    plan = with_config(plan, "train", steps=7200)
    assert plan.utilisation == pytest.approx(0.5)
    text = as_text(plan)
    assert "launches" not in text
    gpu = dataclasses.replace(time, kernels=1234)
    of_gpu = as_text(dataclasses.replace(plan, time=gpu))
    assert "launches of 1,234 kernels" in of_gpu
    assert "500.00 ms a step" in text and "50.0 % of the peak" in text
    assert "1,024 tokens a second" in text
    assert "7,200 steps, 3.686e+06 tokens (padding counted), 60 min" in text
    rows = {line[:24].strip(): line[24:].split() for line in text.splitlines()}
    assert rows["all-reduce"] == ["3", "with", "1.0", "MiB"]
    assert rows["mixers"] == ["200.00", "ms", "50.00", "ms", "50.00", "ms", "75.0", "%"]


WRONG = "v5e v5e: v3:2x2 v5e:2xa v5e:0x4 2x4 h100 h100:0 h100:9 h100:8x h100:8x0 h100:x2 l4:1"


@pytest.mark.parametrize("name", WRONG.split())
def test_wrong_names_are_refused(name):
    with pytest.raises(tj.UserError, match=f"--plan_topology={name}: expected"):
        described(name)


def test_only_the_text_of_a_training_step_is_read(monkeypatch):
    """libtpu 0.0.52 compiles some searches whose text it cannot write."""

    def as_text(self):
        raise AssertionError("the text of a search was read")

    monkeypatch.setattr(jax.stages.Compiled, "as_text", as_text)
    assert Compiler(CONFIG, Target(jax.devices()[:1])).decode(CONFIG.decode, 16).fits


@pytest.mark.skipif(
    any(importlib.util.find_spec(f"jax_cuda{n}_plugin") for n in (12, 13)),
    reason="the compiler is installed",
)
def test_without_the_compiler_a_plan_for_gpus_says_what_to_install():
    with pytest.raises(tj.UserError, match="--plan_topology=h100:8 needs .* jax-cuda13-plugin"):
        gpu_node("h100:8")


def test_a_refused_program_does_not_fit_whatever_its_size(made):
    """libtpu has 15.75 of v5e's 16 GiB, so it refuses a program of 15.9 GiB."""
    refused = dataclasses.replace(
        made.train, bytes=int(15.9 * GIB), limit=int(15.75 * GIB), compiled=None
    )
    text = as_text(on_tpus(made, train=refused))
    assert "15.90 GiB of 15.75 GiB a device: DOES NOT FIT, 153.6 MiB too much" in text
    without_limit = dataclasses.replace(refused, limit=None)
    assert "DOES NOT FIT" in as_text(on_tpus(made, train=without_limit))
    assert "DOES NOT FIT" in as_text(dataclasses.replace(made, train=without_limit))


def test_decoding_that_does_not_fit_has_advice_of_its_own(made):
    decode = dataclasses.replace(made.decode, rows=32, bytes=24 * GIB, limit=16 * GIB)
    plan = on_tpus(made, decode=decode, param_bytes=0)
    text = as_text(dataclasses.replace(plan, mesh={"data": 2, "fsdp": 2, "tensor": 1}))
    assert text.count("DOES NOT FIT") == 1 and not plan.fits
    advice = text.split("what would help:\n")[1]
    assert "about --config.decode.batch_size=20," in advice
    assert "--config.decode.method.beam_size" in advice and "batch.tokens" not in advice
    one_each = dataclasses.replace(plan, mesh={"data": 32, "fsdp": 1, "tensor": 1})
    assert "decode.batch_size" not in as_text(one_each) and "beam_size" in as_text(one_each)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "RESOURCE_EXHAUSTED: ... Used 20.50G of 15.75G hbm. Exceeded hbm capacity",
            (20.5 * 2**30, 15.75 * 2**30),
        ),
        ("Used 512.0M of 15.75G hbm", (2**29, 15.75 * 2**30)),
        (
            "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total "
            "memory required for HLO temporaries (19.50G) exceeds available HBM (15.75G).",
            (22.5 * 2**30, 15.75 * 2**30),  # the arguments are added to the temporaries
        ),
        (
            "the total memory required for HLO temporaries (19.50G) exceeds available HBM.",
            (22.5 * 2**30, None),
        ),
        ("INTERNAL: something else", None),
    ],
)
def test_messages_of_the_tpus_compiler(message, expected):
    assert refusal(message, 3 * 2**30) == expected


def test_a_refused_program_has_the_numbers_of_the_compilers_message(made):
    compiler = Compiler(CONFIG, Target(jax.devices()[:1]))
    state = bytes_per_device(compiler.state)

    class Refused:
        def compile(self, compiler_options):
            raise jax.errors.JaxRuntimeError(
                "the total memory required for HLO temporaries (2.0G) exceeds available HBM (1.0G)"
            )

    compiler.trainer.lower = lambda state, batch: Refused()
    program = compiler.train_step(4, 16)
    batch = 2 * 4 * 16 * (4 + 1)  # two sides of ids and masks
    assert program.bytes == (2 << 30) + state + batch
    assert (program.limit, program.fits) == (1 << 30, False)


def test_flags_of_plans_need_plan(tmp_path, capsys):
    recipe = f"--config={ROOT / 'configs' / 'quickstart.py'}"
    assert main(["train", recipe, "--plan_topology=v5e:2x4", f"--workdir={tmp_path}"]) == 2
    assert "--plan_topology needs --plan" in capsys.readouterr().err
    assert main(["train", recipe]) == 2
    assert "--workdir is missing" in capsys.readouterr().err
    assert main(["train", recipe, "--plan", "--plan_topology=v9:1"]) == 2
    assert "--plan_topology=v9:1" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_command_on_eight_devices(tmp_path):
    """Prints a plan with its collectives, and writes nothing."""
    keys = "mesh.data=2 mesh.fsdp=2 mesh.tensor=2 model.encoder.num_layers=1"
    keys += " model.decoder.num_layers=1"
    recipe = f"--config={ROOT / 'configs' / 'quickstart.py'}"
    flags = [recipe, "--plan", *(f"--config.{key}" for key in keys.split())]
    options = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": 300}
    command = [sys.executable, ROOT / "train.py", *flags]
    done = subprocess.run(command, check=False, env=environment(8), **options)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "plan for 8 x cpu" in done.stdout
    assert "mesh data=2 x fsdp=2 x tensor=2" in done.stdout
    assert "all-reduce" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_no_translation_is_planned_longer_than_the_model_can_make():
    compiler = Compiler(CONFIG, Target(jax.devices()[:1]))
    asked = (dataclasses.replace(CONFIG.decode, max_length_offset=n) for n in (16, 1000))
    one, other = (compiler.decode(each, 16).bytes for each in asked)
    assert one == other
