"""The workers of one party as Ray Train starts them: ``python ray_train.py run.yaml shop runs/shop``."""

import sys
from pathlib import Path

from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from splitvfl.app.deployment import run_party
from splitvfl.app.workers import team_of
from splitvfl.config.sections import load_config


def train(settings: dict[str, str]) -> None:
    """Train as one worker, in the process group that Ray has made."""
    config, party = load_config(settings["file"]), settings["party"]
    with team_of(config, party) as team:
        run_party(config, party, Path(settings["out"]), notify=print, team=team)


def main(file: str, party: str, out: str) -> None:
    """Train as one party with as many workers as its file says."""
    # Workers run in folders of their own.
    settings = {"file": str(Path(file).resolve()), "party": party, "out": str(Path(out).resolve())}
    workers = ScalingConfig(num_workers=load_config(file).team.workers, resources_per_worker={"CPU": 1})
    TorchTrainer(
        train, train_loop_config=settings, torch_config=TorchConfig(backend="gloo"), scaling_config=workers
    ).fit()


if __name__ == "__main__":
    main(*sys.argv[1:])
