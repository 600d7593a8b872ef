"""Plans of a tiny recipe for this machine's devices, and what the command prints."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from transformer_jax.cli.main import main
from transformer_jax.config import Config, TrainConfig
from transformer_jax.data.config import BatchConfig, TokenizerConfig
from transformer_jax.data.sentencepiece_training import train_model
from transformer_jax.decoding.beam import Beam
from transformer_jax.decoding.config import DecodeConfig
from transformer_jax.errors import UserError
from transformer_jax.models.config import ModelConfig, StackConfig
from transformer_jax.optimizers.schedules import RsqrtSchedule
from transformer_jax.parallel.mesh import MeshConfig
from transformer_jax.plan.devices import Device
from transformer_jax.plan.plan import largest_rows, make_plan
from transformer_jax.plan.programs import Planner, refusal, settled
from transformer_jax.plan.report import fits, report
from transformer_jax.plan.timeline import Estimate
from transformer_jax.plan.topology import Target, this_machine, tpu_slice

ROOT = Path(__file__).parents[2]
STACK = StackConfig(num_layers=1)
CONFIG = Config(
    tokenizer=TokenizerConfig(vocab_size=64),
    batch=BatchConfig(tokens=256, max_length=16),
    model=ModelConfig(
        d_model=16, d_ff=32, num_heads=4, encoder=STACK, decoder=STACK, max_length=32
    ),
    train=TrainConfig(steps=10, schedule=RsqrtSchedule(learning_rate=1e-3)),
    decode=DecodeConfig(batch_size=3, method=Beam(beam_size=2), max_source_length=16),
)


@pytest.fixture(scope="module")
def made():
    return make_plan(CONFIG, this_machine())


def test_a_plan_for_this_machine(made):
    devices = jax.device_count()
    assert made.num_devices == devices and made.mesh["data"] == devices
    assert (made.rows, made.length) == (16, 16)
    assert made.tokens == 512
    assert made.param_bytes == 4 * made.num_params
    # Adam: two moments, its own count and the step's.
    assert 3 * made.param_bytes < made.state_bytes < 3 * made.param_bytes + 64
    assert made.train.bytes > made.state_bytes
    assert made.train.fits and made.decode.fits and made.evaluation.fits and fits(made)
    # Between steps the moments lie beside what greedy decoding needs.
    assert made.evaluation.bytes > made.state_bytes
    assert made.evaluation.rows == -(-64 // devices) * devices
    assert made.own_param_bytes == made.param_bytes
    assert made.estimate is None and made.largest_rows is None  # a CPU says neither
    if devices == 1:
        assert made.collectives == {}


def test_a_given_tokenizer_says_how_large_the_vocabulary_is(tmp_path):
    path = tmp_path / "given.model"
    path.write_bytes(train_model(TokenizerConfig(vocab_size=270), ["ab cd ef gh"] * 50))
    config = dataclasses.replace(CONFIG, tokenizer=TokenizerConfig(source_model=str(path)))
    model = settled(config, jax.devices()[0]).model
    assert (model.source_vocab_size, model.target_vocab_size) == (270, 270)


def test_the_report_of_a_machine_that_says_little(made):
    text = report(made)
    assert f"{made.num_params:,}" in text
    assert "16 pairs of 16 + 16 pieces, 512 tokens" in text
    assert "none: unknown device" in text
    assert "DOES NOT FIT" not in text and "what would help" not in text


@pytest.mark.slow
def test_the_largest_batch_is_found_by_compiling(made):
    """A device that is said to have 1.5 times what the recipe's batch takes."""
    device = Device("made up", int(1.5 * made.train.bytes), 1e12, 1e11)
    planner = Planner(CONFIG, Target(jax.devices()[:1], (1, 1), device))
    rows = largest_rows(planner, made.train, 16)
    assert 16 < rows < 48
    assert not planner.train_step(2 * rows, 16).fits


def test_settings_that_cannot_work_are_refused():
    here = Target(jax.devices()[:1], (), None)
    with pytest.raises(UserError, match="--plan_length=64.*max_length=32"):
        make_plan(CONFIG, here, length=64)
    small = dataclasses.replace(CONFIG, batch=BatchConfig(tokens=8, max_length=16))
    with pytest.raises(UserError, match="set it to at least 16"):
        make_plan(small, here)
    with pytest.raises(UserError, match="does not fit 1 devices"):
        make_plan(dataclasses.replace(CONFIG, mesh=MeshConfig(data=3)), here)


def test_a_plan_that_does_not_fit_says_by_how_much_and_what_would_help(made):
    gib = 1 << 30
    too_large = dataclasses.replace(made.train, bytes=20 * gib, fits=False)
    plan = dataclasses.replace(
        made,
        train=too_large,
        memory=16 * gib,
        largest_rows=4,
        num_devices=8,
        state_bytes=8 * gib,
        fsdp_state_bytes=gib,
    )
    text = report(plan)
    assert "20.00 GiB of 16.00 GiB a device: DOES NOT FIT, 4.00 GiB too much" in text
    assert "--config.batch.tokens=64" in text and "--config.train.accumulate=4" in text
    assert "--config.model.remat=true" in text
    assert "--config.mesh.fsdp=8 frees 7.00 GiB" in text
    assert not fits(plan)
    crowded = dataclasses.replace(made.evaluation, bytes=17 * gib, fits=False)
    plan_2 = dataclasses.replace(
        made,
        evaluation=crowded,
        memory=16 * gib,
        num_devices=8,
        state_bytes=8 * gib,
        fsdp_state_bytes=gib,
    )
    text = report(plan_2)
    assert "DOES NOT FIT, 1.00 GiB too much, training state and all" in text
    assert "frees 7.00 GiB" in text and "remat" not in text
    assert not fits(plan_2)
    helpless = dataclasses.replace(plan, largest_rows=0, remat=True, fsdp_state_bytes=8 * gib)
    assert "more devices, or a smaller model" in report(helpless)


def test_time_and_utilisation(made):
    time = Estimate(seconds=0.5, computing=0.4, waiting=0.1, hidden=0.2)
    plan = dataclasses.replace(
        made,
        estimate=time,
        flops=100 * 10**12,
        peak_flops=400e12,
        steps=7200,
        collectives={"all-reduce": (3, 1 << 20)},
        breakdown={"mixers": {"products": 0.2, "copies": 0.05, "other": 0.05}},
    )
    assert plan.utilisation == pytest.approx(0.5)
    text = report(plan)
    assert "500.00 ms a step" in text and "50.0 % of the peak" in text
    assert "1,024 tokens a second" in text
    assert "7,200 steps, 3.686e+06 tokens (padding counted), 1.00 hours" in text
    assert "all-reduce        3 with 1.0 MiB" in text
    (row,) = [line.split() for line in text.splitlines() if "  mixers" in line]
    assert row == ["mixers", "200.00", "ms", "50.00", "ms", "50.00", "ms", "75.0", "%"]


@pytest.mark.parametrize("name", ["v5e", "v5e:", "v3:2x2", "v5e:2xa", "v5e:0x4", "2x4"])
def test_names_of_slices_that_are_none(name):
    with pytest.raises(UserError, match=f"--plan_topology={name}: expected"):
        tpu_slice(name)


def test_what_the_compiler_refuses_never_reads_as_if_it_fitted(made):
    """libtpu has 15.75 of v5e's 16 GiB: what lies between does not fit."""
    gib = 1 << 30
    between = dataclasses.replace(
        made.train, bytes=int(15.9 * gib), fits=False, limit=int(15.75 * gib)
    )
    text = report(dataclasses.replace(made, train=between, memory=16 * gib))
    assert "15.90 GiB of 15.75 GiB a device: DOES NOT FIT, 153.6 MiB too much" in text
    nameless = dataclasses.replace(between, limit=None)
    assert "DOES NOT FIT" in report(dataclasses.replace(made, train=nameless, memory=16 * gib))
    assert "DOES NOT FIT" in report(dataclasses.replace(made, train=nameless, memory=None))


def test_a_search_that_does_not_fit_has_advice_of_its_own(made):
    gib = 1 << 30
    decode = dataclasses.replace(made.decode, rows=32, bytes=24 * gib, fits=False, limit=16 * gib)
    plan = dataclasses.replace(made, decode=decode, memory=16 * gib, param_bytes=0)
    text = report(dataclasses.replace(plan, mesh={"data": 2, "fsdp": 2, "tensor": 1}))
    assert text.count("DOES NOT FIT") == 1 and not fits(plan)
    helpful = text.split("what would help:\n")[1]
    assert "about --config.decode.batch_size=20," in helpful
    assert "--config.decode.method.beam_size" in helpful and "batch.tokens" not in helpful
    one_each = dataclasses.replace(plan, mesh={"data": 32, "fsdp": 1, "tensor": 1})
    assert "decode.batch_size" not in report(one_each) and "beam_size" in report(one_each)


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
            (22.5 * 2**30, 15.75 * 2**30),  # the arguments stand beside the temporaries
        ),
        (
            "the total memory required for HLO temporaries (19.50G) exceeds available HBM.",
            (22.5 * 2**30, None),
        ),
        ("INTERNAL: something else", None),
    ],
)
def test_what_the_tpus_compiler_says_it_would_need(message, expected):
    assert refusal(message, 3 * 2**30) == expected


def test_a_refused_program_holds_what_the_compiler_said(made):
    planner = Planner(CONFIG, Target(jax.devices()[:1], (), None))
    state = planner.bytes_per_device(planner.state)

    class Refused:
        def compile(self):
            raise jax.errors.JaxRuntimeError(
                "the total memory required for HLO temporaries (2.0G) exceeds available HBM (1.0G)"
            )

    planner._step = type("Step", (), {"lower": lambda self, state, batch: Refused()})()
    program = planner.train_step(4, 16)
    batch = 2 * 4 * 16 * (4 + 1)  # two sides of ids and masks
    assert program.bytes == (2 << 30) + state + batch
    assert (program.limit, program.fits) == (1 << 30, False)


def test_flags_of_plans_belong_to_plans(tmp_path, capsys):
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
    command = [
        sys.executable,
        str(ROOT / "train.py"),
        f"--config={ROOT / 'configs' / 'quickstart.py'}",
        "--plan",
        "--config.mesh.data=2",
        "--config.mesh.fsdp=2",
        "--config.mesh.tensor=2",
        "--config.model.encoder.num_layers=1",
        "--config.model.decoder.num_layers=1",
    ]
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "plan for 8 x cpu" in done.stdout
    assert "mesh data=2 x fsdp=2 x tensor=2" in done.stdout
    assert "all-reduce" in done.stdout
    assert list(tmp_path.iterdir()) == []
