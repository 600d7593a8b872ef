"""What each of several processes runs in test_processes.py; prints one JSON object."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "training"), str(Path(__file__).parents[2])]


def main(folder: str, address: str, count: str, index: str, steps: str, *options: str) -> None:
    from transformer_jax.parallel import processes

    if int(count) > 1:
        processes.start(address, int(count), int(index))
    import jax
    import numpy as np
    import toy

    from transformer_jax.cli.main import end_at_once
    from transformer_jax.parallel.mesh import MeshConfig, make_mesh, process_share
    from transformer_jax.training.loop import fit

    mesh = MeshConfig(fsdp=2 if "fsdp" in options else 1)
    share, shares = process_share(make_mesh(mesh))
    made = []

    def learn() -> bytes:
        made.append(1)
        return b"a tokenizer" * 200_000  # several pieces of a message

    learned = processes.from_first(learn)

    def batches(position):
        for batch in toy.batches_from(position):
            size = len(batch["target"]) // shares
            yield {key: value[share * size : (share + 1) * size] for key, value in batch.items()}
            if f"kill {index}" in options and position == 6:
                os.kill(os.getpid(), 9)
            position += 1

    def evaluate(params, step):
        whole = processes.on_this_process(params)
        _, mine = processes.own_part(range(7))
        total = float(np.asarray(jax.tree.leaves(whole)[0]).sum())
        texts = processes.gather([f"{number}:{total:.6f}" for number in mine])
        assert [text.split(":")[0] for text in texts] == [str(n) for n in range(7)]
        assert len({text.split(":")[1] for text in texts}) == 1, "processes differ"
        return {"bleu": float(step)}

    train = replace(toy.TRAIN, steps=int(steps), ema_decay=0.9, log_every=1)
    try:
        state = fit(
            toy.MODEL, train, batches, workdir=folder, mesh=mesh, evaluate=evaluate,
            files={"tokenizer/joint.model": learned[:100]}, progress=False,
        )  # fmt: skip
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0], file=sys.stderr)
        end_at_once(1)
    params = processes.on_this_process(state.params)
    print(
        json.dumps(
            {
                "learned": len(made),
                "devices": jax.device_count(),
                "skipped": int(state.skipped),
                "sums": [float(np.abs(np.asarray(x)).sum()) for x in jax.tree.leaves(params)],
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
