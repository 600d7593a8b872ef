"""What each of several processes runs in test_processes.py; prints one JSON object."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

SOURCES = ["4 5 6", "7", "11 10 9 8 7", "", "5 5 5 4", "6 4 10", "9"]


def main(folder: str, address: str, count: str, index: str, steps: str, *options: str) -> None:
    from transformer_jax.parallel import processes

    if int(count) > 1:
        processes.start(address, int(count), int(index))
    import jax
    import numpy as np

    from tests.training import toy
    from transformer_jax.commands.main import end_at_once
    from transformer_jax.config import Config, to_json
    from transformer_jax.decoding.beam import Beam
    from transformer_jax.decoding.config import DecodeConfig
    from transformer_jax.parallel.mesh import MeshConfig, make_mesh, process_share, replicated
    from transformer_jax.paths import as_path
    from transformer_jax.runs.folder import open_run
    from transformer_jax.training.loop import Feed, Session
    from transformer_jax.training.trainer import Trainer
    from transformer_jax.translation.translator import Translator

    mesh = MeshConfig(fsdp=-1, data=1) if "fsdp" in options else MeshConfig()
    devices = make_mesh(mesh)
    share, shares = process_share(devices)
    made = []
    tokenizers = SimpleNamespace(source=toy.Numbers(), target=toy.Numbers())
    decode = DecodeConfig(
        batch_size=2, method=Beam(beam_size=2), max_length_factor=1.0, max_length_offset=2
    )
    translator = Translator(toy.MODEL, None, tokenizers, decode, mesh=devices)
    evaluated = []

    def learn() -> str:
        made.append(1)
        return "a tokenizer" * 200_000  # 2.2 MB, a large tokenizer

    learned = processes.from_first(learn)

    def batches(position):
        for batch in toy.batches_from(position):
            size = len(batch["target"]) // shares
            yield {key: value[share * size : (share + 1) * size] for key, value in batch.items()}
            if f"kill {index}" in options and position == 6:
                os.kill(os.getpid(), 9)
            position += 1

    def evaluate(params, step):
        now = translator.with_params(params)
        # With data parallelism alone, each device keeps a part of them between the steps.
        for held, given in zip(*map(jax.tree.leaves, (now.params, params)), strict=True):
            stays = held.sharding.is_equivalent_to(given.sharding, given.ndim)
            assert stays or "fsdp" not in options, "evaluation moves the parameters"
        best = [first for first, *_ in now.decode(SOURCES).translations]
        texts = [one.text for one in best]
        log_probs = now.score(SOURCES, texts).tolist()
        assert len(set(processes.gather([json.dumps([texts, log_probs])]))) == 1, "they differ"
        evaluated.append([texts, [one.score for one in best], log_probs])
        return {"bleu": float(step)}

    train = replace(toy.TRAIN, steps=int(steps), ema_decay=0.9, log_every=1)
    try:
        files = {"tokenizer/joint.model": learned[:100].encode()}
        session = Session(
            Trainer(toy.MODEL, train, devices),
            Feed(batches, files=files),
            workdir=as_path(folder),
            evaluate=evaluate,
        )
        state = session.train()
    except Exception as error:
        print(type(error).__name__, str(error).splitlines()[0], file=sys.stderr)
        end_at_once(1)
    if processes.is_first():
        Path(folder, "config.json").write_text(to_json(Config(model=toy.MODEL, train=train)))
    processes.gather([])
    restored = open_run(folder).params("latest", devices)
    for one, other in zip(*map(jax.tree.leaves, (restored, state.ema)), strict=True):
        assert one.sharding == other.sharding or "fsdp" not in options
        other = jax.device_put(other, one.sharding)
        np.testing.assert_array_equal(one.addressable_data(0), other.addressable_data(0))
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state.params))
    whole = jax.device_put(state.params, replicated(devices))
    print(
        json.dumps(
            {
                "learned": len(made),
                "devices": jax.device_count(),
                "skipped": int(state.skipped),
                "sums": [float(np.abs(np.asarray(x)).sum()) for x in jax.tree.leaves(whole)],
                "evaluated": evaluated,
                "share": held / sum(leaf.nbytes for leaf in jax.tree.leaves(state.params)),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
