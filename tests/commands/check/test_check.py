"""`transformer-jax check`: it passes here, and finds what is wrong."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from tests.devices import with_eight_devices
from tests.programs import Programs
from transformer_jax.commands.check import PARTS, jobs, machine, numbers, speed
from transformer_jax.commands.check.jobs import Job, at_once
from transformer_jax.commands.check.row import Row
from transformer_jax.commands.main import main
from transformer_jax.mixers.full_attention import FullAttention
from transformer_jax.ops.flash_attention import blockwise_attention
from transformer_jax.plan.topologies import this_machine

CPU = jax.devices()[0]
#: A device beside the CPU, for jobs that are not run.
OTHER = MagicMock(platform="gpu")


def found(jobs):
    return {row.name: row.is_ok for job in jobs for row in at_once(job)}


def jobs_named(name, here=CPU):
    return [job for job in numbers.jobs(here, CPU) if job.name == name]


def test_a_difference_is_relative_to_the_largest_number():
    want = {"a": jnp.array([1.0, -200.0]), "b": jnp.array([0.0])}
    got = {"a": jnp.array([1.0, -199.0]), "b": jnp.array([0.5])}
    assert numbers.difference(got, want) == pytest.approx(1 / 200)
    assert np.isnan(numbers.difference([np.ones(2), np.array([1, np.nan])], [np.ones(2)] * 2))


def test_kernels_of_attention_pass_in_one_program():
    counter = Programs()
    counter.pytest_collection_finish(None)
    rows = found(jobs_named("bfloat16 kernels"))
    assert len(rows) == 4 and all(rows.values())
    assert counter.of_process == 1


def test_a_kernel_that_reads_padding_is_found(monkeypatch):
    def reads_padding(qkv, mask, *, causal):
        return blockwise_attention(qkv, jnp.ones_like(mask), causal=causal)

    monkeypatch.setattr(numbers, "flash_attention", reads_padding)
    rows = found(jobs_named("float32 kernels"))
    assert not rows["blockwise, float32: outputs"]
    assert not rows["blockwise, float32: gradients"]


def test_a_mixer_on_another_device_is_one_program_there_and_one_on_the_cpu():
    rows = {"full": True, "full, decoder": True, "full, encoder": True}
    found = with_eight_devices("tests/commands/check/other_device.py")
    assert found == {"rows": rows, "programs": 2, "devices": {"wanted": 0, "found": 1}}


def test_a_mixer_whose_step_forgets_is_found(monkeypatch):
    assert found(jobs_named("full")) == {"full": True}
    step = FullAttention.step
    late = lambda self, x, state, position: step(self, x, state, jnp.maximum(position - 1, 0))  # noqa: E731
    monkeypatch.setattr(FullAttention, "step", late)
    assert found(jobs_named("full")) == {"full": False}


def test_a_device_that_computes_other_outputs_is_found(monkeypatch):
    """Parameters, and what is wanted of them, are from the CPU."""
    (job,) = jobs_named("full", OTHER)
    params, outputs = {"decoder": {}, "encoder": {}}, {"decoder": np.ones(3), "encoder": np.ones(3)}
    other = outputs | {"encoder": np.zeros(3)}
    fake = {
        "wanted": lambda seed, *arrays: (params, outputs),
        "found": lambda params, *arrays: (other, np.ones(3)),
    }
    rows = {row.name: row.is_ok for row in job.rows(fake)}
    assert rows == {"full": True, "full, decoder": True, "full, encoder": False}


def test_a_model_with_other_losses_is_found():
    (job,) = jobs_named("training steps and searches", OTHER)
    state, names = SimpleNamespace(params={"w": np.ones(2)}), list(job.programs)
    bad = SimpleNamespace(params={"w": np.array([1.0, np.nan])})
    pieces = [np.ones((2, 3))] * 2
    fake = {"begin": lambda: ({}, {})}
    for device in (OTHER, CPU):
        fake[f"step, {device}"] = lambda *_: (state, {"loss_sum": 1.0})
        fake[f"search, {device}"] = lambda *_: pieces
    assert list(fake) == names
    assert all(row.is_ok for row in job.rows(fake))
    fake[f"step, {OTHER}"] = lambda *_: (bad, {"loss_sum": 1.1})
    fake[f"search, {OTHER}"] = lambda *_: [np.zeros((2, 3)), pieces[1]]
    assert {row.name: row.is_ok for row in job.rows(fake)} == {
        "loss of three steps": False,
        "parameters after them": False,
        "greedy search": False,
        "beam search": True,
    }


def test_memory_is_in_gib(monkeypatch):
    """On the devices that tell it, which a CPU does not."""
    stats = {"bytes_limit": 5 << 30}
    device = SimpleNamespace(memory_stats=lambda: stats, device_kind="a device")
    monkeypatch.setattr(machine.jax, "devices", lambda: [device])
    rows = {row.name: (row.value, row.unit) for row in machine.rows()}
    assert rows["memory of a device"] == (5.0, "GiB")


def test_there_are_at_most_60_programs_and_most_telling_ones_are_first(monkeypatch, capsys):
    """The jobs of this machine are begun, and none is compiled."""
    parts = []

    def run(own, limit):
        parts.extend(job.part for job in own)
        return []

    monkeypatch.setattr(jobs, "run", run)
    assert main(["check"]) == 0
    said = re.search(r"compiling (\d+) programs in (\d+) threads", capsys.readouterr().err)
    assert int(said[2]) == os.cpu_count()
    assert [part for part, _ in itertools.groupby(parts)] == list(PARTS)
    elsewhere = [*numbers.jobs(OTHER, CPU), speed.product_job(this_machine())]
    elsewhere += speed.jobs(this_machine())
    assert 20 < int(said[1]) < sum(len(job.programs) for job in elsewhere) <= 60


class Fake:
    """A lowered program."""

    def __init__(self, compile=lambda: 1.0):
        self.compile = compile


def fake_checks(monkeypatch, jobs):
    """Of the parts product, attention, ... in place of the real ones."""
    monkeypatch.setattr(machine, "rows", lambda: iter([Row("machine", "devices", "one")]))
    monkeypatch.setattr(speed, "product_job", lambda target: jobs[0])
    monkeypatch.setattr(numbers, "jobs", lambda here, cpu: jobs[1:])
    monkeypatch.setattr(speed, "jobs", lambda target: [])


def job(part, lower=Fake, limit=1.0):
    def rows(programs):
        yield Row(f"the {part}", f"a check of {part}", programs["one"], limit=limit)

    return Job(part, f"a check of {part}", {"one": lower}, rows)


@pytest.fixture
def ended(monkeypatch):
    """Statuses of processes that do not wait for their threads."""
    statuses = []
    monkeypatch.setattr("transformer_jax.commands.main.end_at_once", statuses.append)
    return statuses


def lines(out):
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize(("value", "status"), [(0.0, 0), (2.0, 1)])
def test_the_exit_status_says_whether_something_is_wrong(value, status, monkeypatch, capsys):
    fake_checks(monkeypatch, [job("product"), job("model", lambda: Fake(lambda: value))])
    assert main(["check"]) == status
    out = capsys.readouterr().out
    assert "the model" in out and ("wrong: a check of model" in out) == bool(status)
    assert main(["check", "--json"]) == status
    printed = lines(capsys.readouterr().out)
    assert [line["ok"] for line in printed] == [True, True, not status]
    assert printed[2]["value"] == value and printed[2]["limit"] == 1.0


def test_parts_are_chosen(monkeypatch, capsys, refused):
    fake_checks(monkeypatch, [job("product"), job("model"), job("mixers")])
    assert main(["check", "--json", "--parts=mixers,machine"]) == 0
    printed = capsys.readouterr()
    assert [line["part"] for line in lines(printed.out)] == ["machine", "the mixers"]
    assert "compiling 1 programs" in printed.err
    line = refused(["check", "--parts=mixer"])
    assert "--parts=mixer: no such part (did you mean mixers?)" in line
    for limit in ("-1", "inf", "nan"):
        assert f"--limit={limit}: must be" in refused(["check", f"--limit={limit}"])


def test_what_is_timed_waits_for_all_programs():
    compiled = []

    def compile():
        time.sleep(0.05)  # for the rows of the first to be asked for too early
        compiled.append(1)

    programs = {"one": lambda: Fake(compile)}
    found = [Job("speed", str(n), programs, lambda _: [len(compiled)], True) for n in range(3)]
    assert list(jobs.run(found, 60.0)) == [3, 3, 3] and found == []


def test_nothing_is_compiled_any_more_for_who_has_gone():
    started, go = [], threading.Event()

    def compile():
        started.append(1)
        go.wait(60)

    before = set(threading.enumerate())
    many = [job("model", lambda: Fake(compile)) for _ in range(jobs.NUM_THREADS + 5)]
    rows = jobs.run([Job("machine", "first", {}, lambda _: ["row"]), *many], 60.0)
    assert next(rows) == "row"
    rows.close()
    go.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert len(started) <= jobs.NUM_THREADS


@pytest.mark.parametrize(("value", "status"), [(1.0, 2), (2.0, 1)])
def test_a_part_over_its_limit_ends_and_the_others_go_on(value, status, monkeypatch, capsys, ended):
    go_on = threading.Event()
    late = job("model", lambda: Fake(go_on.wait))
    last = Job("mixers", "last", {}, lambda _: [Row("the mixers", "last", value, limit=1.0)])
    fake_checks(monkeypatch, [Job("product", "none", {}, lambda _: []), late, last])
    main(["check", "--limit=0"])
    go_on.set()
    out = capsys.readouterr().out
    assert re.search("model\n +- +a check of model +not finished: over the limit of 0 s\n", out)
    assert " last " in out
    assert ended == [status]


@pytest.mark.parametrize("error", [jax.errors.JaxRuntimeError, NotImplementedError])
def test_what_the_compiler_refuses_is_missing(error, monkeypatch, capsys, ended):
    def refuse():
        raise error("no such kernel\nhere")

    fake_checks(monkeypatch, [job("product"), job("model", lambda: Fake(refuse)), job("mixers")])
    main(["check", "--json"])
    printed = lines(capsys.readouterr().out)
    assert [line["ok"] for line in printed] == [True, True, None, True]
    assert printed[2]["value"] == f"not finished: {error.__name__}: no such kernel"
    assert printed[2]["name"] == "a check of model" and ended == [2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_check_says_what_is_missing(number, monkeypatch, capsys, ended):
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest-xdist ignores it

    def stop(programs):
        signal.raise_signal(number)
        yield Row("the model", "never", 0.0)

    model = Job("model", "the loss", {}, stop)
    fake_checks(monkeypatch, [job("product"), model, job("mixers")])
    main(["check"])
    for each, handler in before.items():
        signal.signal(each, handler)
    out = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in out[-4:]] == [
        "model",
        "- the loss not finished: interrupted",
        "mixers",
        "- a check of mixers not finished: interrupted",
    ]
    assert ended == [2]


def test_one_program_is_lowered_at_a_time_and_cores_compile(monkeypatch, ended):
    cores = os.cpu_count()
    lowering, compiling = threading.Lock(), threading.Semaphore(cores)
    # As many as there are cores compile together, and wait for one more to come in.
    full = threading.Barrier(cores, action=lambda: time.sleep(0.1))

    def compiled():
        assert compiling.acquire(blocking=False)
        full.wait(60)
        compiling.release()
        return 0.0

    def lower():
        assert lowering.acquire(blocking=False)
        time.sleep(0.01)  # for another thread to come in
        lowering.release()
        return Fake(compiled)

    one = [job("mixers", lower) for _ in range(3 * cores)]
    fake_checks(monkeypatch, [Job("product", "none", {}, lambda _: []), *one])
    assert main(["check"]) == 0 and not ended


def test_a_program_that_is_not_timed_gets_the_options_that_the_compiler_takes(monkeypatch):
    taken = []

    def compile(compiler_options):
        if "xla_gpu_made_up" in compiler_options:
            raise jax.errors.JaxRuntimeError("no such option")
        taken.append(compiler_options)

    monkeypatch.setattr(jobs, "options_for", lambda mesh: {"known": 1})
    jobs._options.cache_clear()
    jobs.Untuned(Fake(compile), CPU).compile()
    monkeypatch.setattr(jobs, "UNTUNED", {"xla_gpu_made_up": 0})
    jobs.Untuned(Fake(compile), CPU).compile()
    jobs._options.cache_clear()
    assert taken == [{"known": 1, "xla_gpu_autotune_level": 0}, {"known": 1}]


def test_a_recipe_is_measured_without_a_plan_on_a_cpu():
    stack = tj.StackConfig(num_layers=1)
    config = tj.Config(
        tokenizer=tj.TokenizerConfig(vocab_size=300),
        model=tj.ModelConfig(encoder=stack, decoder=stack, d_model=8, d_ff=8, num_heads=1),
        batch=tj.BatchConfig(tokens=40, max_length=10),
        decode=tj.DecodeConfig(method=tj.Greedy(), batch_size=3),
    )
    tried = speed.jobs_of(config, this_machine(), seconds=0.0)
    rows = [row for job in tried for row in jobs.at_once(job)]
    assert [row.name for row in rows] == [
        "training step of 4 pairs of 10 + 10 pieces",
        "target pieces trained",
        "search (greedy) for 3 sentences of 10 pieces",
        "sentences translated",
    ]
    assert all(row.value > 0 for row in rows)
    milliseconds, pieces = rows[0].value, rows[1].value
    assert pieces == pytest.approx(40 / milliseconds * 1000)


@pytest.mark.slow
def test_the_whole_command_passes_on_this_machine():
    command = [sys.executable, "-c", "from transformer_jax.commands.main import main; exit(main())"]
    done = subprocess.run([*command, "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout and jax.devices()[0].device_kind in done.stdout
