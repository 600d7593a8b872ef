"""A plan as text for a terminal."""

from collections.abc import Iterator

from transformer_jax.plan.devices import GIB
from transformer_jax.plan.planner import Plan, rows_that_fill
from transformer_jax.plan.programs import Program
from transformer_jax.plan.step_time import KINDS, StepTime
from transformer_jax.training.reporter import in_words

#: A name and what is printed beside it.
Rows = Iterator[tuple[str, str]]


def as_text(plan: Plan) -> str:
    """The plan as lines of text: a table, and advice if something does not fit."""
    mesh = " x ".join(f"{axis}={size}" for axis, size in plan.mesh.items())
    verdict = "it fits" if plan.fits else "it does not fit"
    lines = [f"plan for {plan.target.description}; mesh {mesh}: {verdict}"]
    for name, text in (*_memory_rows(plan), *_time_rows(plan)):
        lines.append(f"{name:<24}{text}".rstrip())
    if not plan.fits:
        lines += ["what would help:", *(f"  {advice}" for advice in _advice(plan))]
    return "\n".join(lines)


def _memory_rows(plan: Plan) -> Rows:
    memory, own, length = plan.target.memory, plan.own_param_bytes, plan.length
    yield (
        "parameters",
        f"{plan.num_params:,}; on a device {_size(plan.param_bytes)} in decoding, in training "
        f"{_size(plan.state_bytes)} with optimizer state",
    )
    model = plan.config.model
    yield (
        "dtypes",
        f"{model.param_dtype} parameters, {model.dtype} activations, {model.matmul_dtype} products",
    )
    pairs = f"{plan.train.rows:,} pairs of {length} + {length} pieces"
    yield "training step", f"{pairs}, {plan.tokens:,} on both sides; {plan.flops:.3e} FLOPs"
    yield "  memory", _of_program(plan.train)
    if plan.config.train.teacher.pieces:
        yield "  not counted", "train.teacher: its parameters, and its pass over each batch"
    yield "decoding", f"{plan.decode.rows:,} sentences of {length} pieces"
    yield "  memory", _of_program(plan.decode)
    yield "validation", f"{plan.evaluation.rows:,} sentences, greedily, between training steps"
    yield "  memory", f"{_of_program(plan.evaluation)}, with the training state"
    own_memory = _memory(own, memory, memory is None or own <= memory)
    yield "one process alone", f"parameters of {own_memory} (translate, score)"


def _time_rows(plan: Plan) -> Rows:
    yield "collectives", "of a training step, bytes of the arrays on each device"
    for kind, (count, size) in plan.collectives.items():
        yield f"  {kind}", f"{count:,} with {_size(size)}"
    if not plan.collectives:
        yield "  none", ""
    steps = plan.config.train.steps
    recipe = f"{steps:,} steps, {plan.tokens * steps:.3e} tokens (padding counted)"
    if time := plan.time:
        yield from _step_rows(time)
        yield "  utilisation", f"{100 * (plan.utilisation or 0):.1f} % of the peak (model FLOPs)"
        yield "  speed", f"{plan.tokens / time.seconds:,.0f} tokens a second"
        yield "the recipe", f"{recipe}, {in_words(time.seconds * steps)}"
        yield "computing", "".join(f"{kind:>16}" for kind in (*KINDS, "share"))
        for part, kinds in time.parts.items():
            share = 100 * sum(kinds.values()) / time.computing
            cells = [*(_ms(kinds[kind]) for kind in KINDS), f"{share:.1f} %"]
            yield f"  {part}", "".join(f"{cell:>16}" for cell in cells)
    else:
        yield "time", f"none: {'unknown device' if plan.train.fits else 'the step does not fit'}"
        yield "the recipe", recipe
    if plan.largest_rows is not None:
        tokens = plan.largest_rows * plan.length
        pairs = f"{plan.largest_rows:,} pairs, {2 * tokens:,} tokens: batch.tokens={tokens}"
        yield "largest batch", pairs if tokens else "none fits"


def _step_rows(time: StepTime) -> Rows:
    by = "the compiler's estimates" if time.kernels is None else "a roofline of each kernel"
    yield (
        "time",
        f"{_ms(time.seconds)} a step by {by}: {_ms(time.computing)} computing, "
        f"{_ms(time.waiting)} waiting for collectives; {_ms(time.hidden)} of collectives hidden",
    )
    if time.kernels is not None:
        yield "  not counted", f"launches of {time.kernels:,} kernels; see docs/scale.md"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def _size(count: int) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB else f"{count / (1 << 20):.1f} MiB"


def _of_program(program: Program) -> str:
    return _memory(program.bytes, program.limit, program.fits)


def _memory(needed: int, limit: int | None, fits: bool) -> str:
    if limit is None:
        what = "the device's memory is unknown" if fits else "DOES NOT FIT"
        return f"{_size(needed)} a device ({what})"
    verdict = "" if fits else f": DOES NOT FIT, {_size(max(0, needed - limit))} too much"
    return f"{_size(needed)} of {_size(limit)} a device{verdict}"


def _advice(plan: Plan) -> list[str]:
    advice, train, decode = [], plan.train, plan.decode
    if not train.fits and plan.largest_rows:
        advice.append(
            f"a smaller batch: --config.batch.tokens={plan.largest_rows * plan.length}, or the "
            f"same batch in parts: --config.train.accumulate={-(-train.rows // plan.largest_rows)}"
        )
    if not train.fits and not plan.config.model.remat:
        advice.append("computing activations again in the backward pass: --config.model.remat=true")
    if not (train.fits and plan.evaluation.fits):
        if (saved := plan.state_bytes - plan.fsdp_state_bytes) > 0:
            fsdp = f"--config.mesh.data=1 --config.mesh.fsdp={len(plan.target.devices)}"
            advice.append(f"splitting the state: {fsdp} frees {_size(saved)} a device")
        advice = advice or ["more devices, or a smaller model"]
    if not decode.fits:
        devices, rows = plan.mesh["data"] * plan.mesh["fsdp"], ""
        if decode.limit and decode.limit > plan.param_bytes and decode.rows > devices:
            fitting = rows_that_fill(decode.limit, plan.param_bytes, decode)
            whole = min(fitting, decode.rows - 1) // devices * devices
            rows = f"about --config.decode.batch_size={max(devices, whole)}, or "
        advice.append(
            f"for decoding: {rows}a smaller --config.decode.method.beam_size, or a smaller "
            "--config.decode.max_source_length"
        )
    return advice
