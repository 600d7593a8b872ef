"""The command that trains on texts in a folder, as several test files run it."""


def train_command(place, run, *more):
    """Trains in `run` by `place`'s recipe on its train.en and train.de, or goes on with it."""
    return [
        "train",
        f"--config={place / 'recipe.py'}",
        f"--workdir={run}",
        "--no_progress",
        f"--config.data.source.train_source={place / 'train.en'}",
        f"--config.data.source.train_target={place / 'train.de'}",
        f"--config.data.cache_dir={place / 'cache'}",
        *more,
    ]
