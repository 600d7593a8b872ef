"""A plan as text."""

from transformer_jax.plan.breakdown import KINDS
from transformer_jax.plan.plan import Plan
from transformer_jax.plan.programs import Program
from transformer_jax.plan.search import guess_from

_GIB = 1 << 30


def report(plan: Plan) -> str:
    """The plan as lines of text for a terminal."""
    own = plan.own_param_bytes
    mesh = " x ".join(f"{axis}={size}" for axis, size in plan.mesh.items())
    lines = [
        f"plan for {plan.target}; mesh {mesh}",
        _line(
            "parameters",
            f"{plan.num_params:,}; on a device {_size(plan.param_bytes)}, with optimizer state "
            f"{_size(plan.state_bytes)}",
        ),
        _line(
            "training step",
            f"{plan.rows:,} pairs of {plan.length} + {plan.length} pieces, {plan.tokens:,} tokens; "
            f"{plan.flops:.3e} FLOPs",
        ),
        _line("  memory", _memory(plan.train, plan.memory)),
        _line("decoding", f"{plan.decode.rows:,} sentences of {plan.length} pieces"),
        _line("  memory", _memory(plan.decode, plan.memory)),
        _line("validation", f"{plan.evaluation.rows:,} sentences, greedily, between steps"),
        _line("  memory", f"{_memory(plan.evaluation, plan.memory)}, training state and all"),
        _line(
            "one process alone",
            f"parameters of {_against(own, plan.memory, own <= (plan.memory or own))} "
            "(translate, score)",
        ),
        _line("collectives", "of a training step, bytes of the arrays on each device"),
    ]
    for kind, (count, size) in plan.collectives.items():
        lines.append(_line(f"  {kind}", f"{count:,} with {_size(size)}"))
    if not plan.collectives:
        lines.append(_line("  none", ""))
    lines += _time(plan)
    if plan.largest_rows is not None:
        most = 2 * plan.largest_rows * plan.length
        lines.append(
            _line(
                "largest batch",
                f"{plan.largest_rows:,} pairs, {most:,} tokens: batch.tokens={most // 2}"
                if plan.largest_rows
                else "none fits",
            )
        )
    if not fits(plan):
        lines.append("what would help:")
    if not (plan.train.fits and plan.evaluation.fits):
        lines += _advice(plan)
    if not plan.decode.fits:
        lines.append(_decoding_advice(plan))
    return "\n".join(line.rstrip() for line in lines)


def fits(plan: Plan) -> bool:
    """Whether all programs fit."""
    return plan.train.fits and plan.decode.fits and plan.evaluation.fits


def _line(name: str, text: str) -> str:
    return f"{name:<20}{text}"


def _size(count: int) -> str:
    if count >= _GIB:
        return f"{count / _GIB:.2f} GiB"
    return f"{count / (1 << 20):.1f} MiB"


def _memory(program: Program, available: int | None) -> str:
    return _against(program.bytes, program.limit or available, program.fits)


def _against(needed: int, limit: int | None, fits: bool) -> str:
    if limit is None:
        what = "it does not say how much it has" if fits else "DOES NOT FIT"
        return f"{_size(needed)} a device ({what})"
    too_much = "" if fits else f": DOES NOT FIT, {_size(max(0, needed - limit))} too much"
    return f"{_size(needed)} of {_size(limit)} a device{too_much}"


def _time(plan: Plan) -> list[str]:
    tokens = plan.tokens * plan.steps
    whole = f"{plan.steps:,} steps, {tokens:.3e} tokens (padding counted)"
    if plan.estimate is None:
        why = "none: " + ("the step does not fit" if not plan.train.fits else "unknown device")
        return [_line("time", why), _line("the recipe", whole)]
    time = plan.estimate
    per_second = plan.tokens / time.seconds
    lines = [
        _line(
            "time",
            f"{1e3 * time.seconds:.2f} ms a step by {time.source}: "
            f"{1e3 * time.computing:.2f} ms computing, {1e3 * time.waiting:.2f} ms waiting for "
            f"collectives, {1e3 * time.hidden:.2f} ms of them hidden",
        ),
        _line("  utilisation", f"{100 * (plan.utilisation or 0):.1f} % of the peak (model FLOPs)"),
        _line("  speed", f"{per_second:,.0f} tokens a second"),
        _line("the recipe", f"{whole}, {time.seconds * plan.steps / 3600:.2f} hours"),
    ]
    if plan.breakdown:
        lines.append(_line("computing", "".join(f"{kind:>16}" for kind in (*KINDS, "share"))))
    for part, kinds in plan.breakdown.items():
        times = "".join(f"{1e3 * kinds[kind]:13.2f} ms" for kind in KINDS)
        share = sum(kinds.values()) / time.computing
        lines.append(_line(f"  {part}", f"{times}{100 * share:14.1f} %"))
    return lines


def _advice(plan: Plan) -> list[str]:
    lines = []
    if not plan.train.fits and plan.largest_rows:
        lines.append(
            f"  a smaller batch: --config.batch.tokens={plan.largest_rows * plan.length}, or the "
            "same batch in parts: "
            f"--config.train.accumulate={-(-plan.rows // plan.largest_rows)}"
        )
    if not plan.train.fits and not plan.remat:
        lines.append(
            "  computing activations again in the backward pass: --config.model.remat=true"
        )
    saved = plan.state_bytes - plan.fsdp_state_bytes
    if saved > 0:
        lines.append(
            f"  splitting the state: --config.mesh.data=1 --config.mesh.fsdp={plan.num_devices} "
            f"frees {_size(saved)} a device"
        )
    if not lines:
        lines.append("  more devices, or a smaller model")
    return lines


def _decoding_advice(plan: Plan) -> str:
    beam = (
        "a smaller --config.decode.method.beam_size, or a smaller --config.decode.max_source_length"
    )
    devices = plan.mesh.get("data", 1) * plan.mesh.get("fsdp", 1)
    limit = plan.decode.limit or plan.memory
    if limit is None or limit <= plan.param_bytes or plan.decode.rows <= devices:
        return f"  for decoding: {beam}"
    # Everything but the parameters grows with the number of sentences.
    rows = guess_from(plan.decode.rows, plan.decode.bytes, plan.param_bytes, limit)
    rows = max(devices, min(rows, plan.decode.rows - 1) // devices * devices)
    return f"  for decoding: about --config.decode.batch_size={rows}, or {beam}"
