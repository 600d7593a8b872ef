"""A plan as text for a terminal."""

from transformer_jax.plan.devices import GIB
from transformer_jax.plan.planner import Plan, rows_that_fill
from transformer_jax.plan.programs import Program
from transformer_jax.plan.step_time import KINDS, StepTime

#: A name and what is printed beside it.
Row = tuple[str, str]


def as_text(plan: Plan) -> str:
    """The plan as lines of text: a table, and advice if something does not fit."""
    mesh = " x ".join(f"{axis}={size}" for axis, size in plan.mesh.items())
    lines = [f"plan for {plan.target.description}; mesh {mesh}"]
    for name, text in (*_memory_rows(plan), *_collective_rows(plan), *_time_rows(plan)):
        lines.append(f"{name:<24}{text}".rstrip())
    if plan.largest_rows is not None:
        tokens = plan.largest_rows * plan.length
        pairs = f"{plan.largest_rows:,} pairs, {2 * tokens:,} tokens: batch.tokens={tokens}"
        lines.append(f"{'largest batch':<24}{pairs if tokens else 'none fits'}")
    if not plan.fits:
        lines += ["what would help:", *(f"  {advice}" for advice in _advice(plan))]
    return "\n".join(lines)


def _memory_rows(plan: Plan) -> list[Row]:
    memory, own = plan.target.memory, plan.own_param_bytes
    own_fits = memory is None or own <= memory
    return [
        (
            "parameters",
            f"{plan.num_params:,}; on a device {_size(plan.param_bytes)} in decoding, in training "
            f"{_size(plan.state_bytes)} with optimizer state",
        ),
        (
            "training step",
            f"{plan.train.rows:,} pairs of {plan.length} + {plan.length} pieces, "
            f"{plan.tokens:,} tokens; {plan.flops:.3e} FLOPs",
        ),
        ("  memory", _of_program(plan.train, memory)),
        ("decoding", f"{plan.decode.rows:,} sentences of {plan.length} pieces"),
        ("  memory", _of_program(plan.decode, memory)),
        ("validation", f"{plan.evaluation.rows:,} sentences, greedily, between training steps"),
        ("  memory", f"{_of_program(plan.evaluation, memory)}, with the training state"),
        ("one process alone", f"parameters of {_memory(own, memory, own_fits)} (translate, score)"),
    ]


def _collective_rows(plan: Plan) -> list[Row]:
    rows = [("collectives", "of a training step, bytes of the arrays on each device")]
    rows += [
        (f"  {kind}", f"{count:,} with {_size(size)}")
        for kind, (count, size) in plan.collectives.items()
    ]
    return rows if plan.collectives else [*rows, ("  none", "")]


def _time_rows(plan: Plan) -> list[Row]:
    steps = plan.config.train.steps
    recipe = f"{steps:,} steps, {plan.tokens * steps:.3e} tokens (padding counted)"
    time = plan.time
    if time is None:
        reason = "unknown device" if plan.train.fits else "the step does not fit"
        return [("time", f"none: {reason}"), ("the recipe", recipe)]
    return [
        (
            "time",
            f"{_ms(time.seconds)} a step by {time.source}: {_ms(time.computing)} computing, "
            f"{_ms(time.waiting)} waiting for collectives; {_ms(time.hidden)} of collectives "
            "hidden",
        ),
        *_kernel_rows(time),
        ("  utilisation", f"{100 * (plan.utilisation or 0):.1f} % of the peak (model FLOPs)"),
        ("  speed", f"{plan.tokens / time.seconds:,.0f} tokens a second"),
        ("the recipe", f"{recipe}, {time.seconds * steps / 3600:.2f} hours"),
        *_computing_rows(time),
    ]


def _kernel_rows(time: StepTime) -> list[Row]:
    rows = []
    if time.computing_by_compiler is not None:
        computing = _ms(time.computing_by_compiler)
        rows.append(("  by XLA's estimates", f"{computing} computing, where it gives them"))
    if time.kernels is not None:
        rows.append(("  not counted", f"launches of {time.kernels:,} kernels; see docs/scale.md"))
    return rows


def _computing_rows(time: StepTime) -> list[Row]:
    if not time.parts:
        return []
    rows = [("computing", "".join(f"{kind:>16}" for kind in (*KINDS, "share")))]
    for part, kinds in time.parts.items():
        share = 100 * sum(kinds.values()) / time.computing
        cells = [*(_ms(kinds[kind]) for kind in KINDS), f"{share:.1f} %"]
        rows.append((f"  {part}", "".join(f"{cell:>16}" for cell in cells)))
    return rows


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def _size(count: int) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / (1 << 20):.1f} MiB"


def _of_program(program: Program, memory: int | None) -> str:
    return _memory(program.bytes, program.limit or memory, program.fits)


def _memory(needed: int, limit: int | None, fits: bool) -> str:
    if limit is None:
        what = "the device's memory is unknown" if fits else "DOES NOT FIT"
        return f"{_size(needed)} a device ({what})"
    verdict = "" if fits else f": DOES NOT FIT, {_size(max(0, needed - limit))} too much"
    return f"{_size(needed)} of {_size(limit)} a device{verdict}"


def _advice(plan: Plan) -> list[str]:
    advice = []
    saved = plan.state_bytes - plan.fsdp_state_bytes
    if not plan.train.fits and plan.largest_rows:
        advice.append(
            f"a smaller batch: --config.batch.tokens={plan.largest_rows * plan.length}, or the "
            "same batch in parts: "
            f"--config.train.accumulate={-(-plan.train.rows // plan.largest_rows)}"
        )
    if not plan.train.fits and not plan.config.model.remat:
        advice.append("computing activations again in the backward pass: --config.model.remat=true")
    if not (plan.train.fits and plan.evaluation.fits) and saved > 0:
        devices = len(plan.target.devices)
        advice.append(
            f"splitting the state: --config.mesh.data=1 --config.mesh.fsdp={devices} frees "
            f"{_size(saved)} a device"
        )
    if not (plan.train.fits and plan.evaluation.fits) and not advice:
        advice.append("more devices, or a smaller model")
    return advice if plan.decode.fits else [*advice, _decoding_advice(plan)]


def _decoding_advice(plan: Plan) -> str:
    beam = (
        "a smaller --config.decode.method.beam_size, or a smaller --config.decode.max_source_length"
    )
    devices = plan.mesh["data"] * plan.mesh["fsdp"]
    limit = plan.decode.limit or plan.target.memory
    if limit is None or limit <= plan.param_bytes or plan.decode.rows <= devices:
        return f"for decoding: {beam}"
    rows = min(rows_that_fill(limit, plan.param_bytes, plan.decode), plan.decode.rows - 1)
    rows = max(devices, rows // devices * devices)
    return f"for decoding: about --config.decode.batch_size={rows}, or {beam}"
