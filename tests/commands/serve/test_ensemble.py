"""`serve --workdir=A --workdir=B`: runs of one direction answer together."""

import pytest

import transformer_jax as tj
from tests.commands.serve.conftest import post, served
from tests.quick import quick
from tests.untrained import untrained_run
from transformer_jax.commands.main import parse
from transformer_jax.commands.run_flags import chosen_runs

TEXT = "The dog sleeps."


@pytest.fixture(scope="module")
def folders(translators, tmp_path_factory):
    """Two runs of one direction and different parameters."""
    translator, folders = translators["en", "de"], []
    data = tj.DataConfig(source_language="en", target_language="de")
    for seed in (1, 2):
        folders.append(tmp_path_factory.mktemp("runs") / str(seed))
        of_run = translator.tokenizers, data, translator.decode_config
        untrained_run(folders[-1], *of_run, seed=seed, d_ff=16, max_length=16)
    return folders


@pytest.mark.parametrize("mean", quick(["log_probs", "probs"], "probs"))
def test_runs_of_one_direction_answer_together(folders, mean):
    from transformer_jax.commands.serve.engines import open_engine

    workdirs = [f"--workdir={folder}" for folder in folders]
    args = parse(["serve", *workdirs, f"--ensemble_mean={mean}"])
    ((run, decoding),) = chosen_runs(args)
    (together,) = tj.open_ensemble(folders, mean=mean).translator().translate([TEXT])
    alone = {tj.open_run(folder).translator().translate([TEXT])[0] for folder in folders}
    assert together not in alone
    with served([open_engine(args.engine, run, args.checkpoint, **decoding)], ready=True) as url:
        form = {"q": TEXT, "source": "en", "target": "de"}
        answer = post(f"{url}/translate", json=form)
        assert (answer.status_code, answer.json()) == (200, {"translatedText": together})
        assert post(f"{url}/page/translate", json=form).json()["explains"] is False
        refused = post(f"{url}/page/explain", json=form | {"tokens": [5]})
        assert (refused.status_code, list(refused.json())) == (400, ["error"])
