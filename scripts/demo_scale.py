"""Two companies of two workers each on this machine: train on clicks, kill a worker and start its party again, compare.

Nothing is simulated: every worker is a process that ``torchrun`` starts, and worker i of one company talks with worker
i of the other over mutual TLS on loopback. In the end one process takes the same steps, and the weights are compared.
``make demo-scale`` runs it: ``python -m scripts.demo_scale [--out FOLDER]``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file

from scripts.bench.processes import free_ports
from splitvfl.run import checkpoint
from splitvfl.run.shared_state import whole_party

PARTIES: Final = ("shop", "ads")
WORKERS: Final = 2
EXPERIMENT: Final = """\
# Two companies of two workers each. Alike at both: team, train, exchange.
data: {{name: clicks}}
parties:
  shop: {{role: active, columns: ["I*", "C[1-5]"], address: "127.0.0.1:{port}+"}}
  ads: {{role: passive, columns: rest}}
model: {{name: wide-deep, bottom: [32, 16], embedding_dim: 8, sparse: true}}
exchange: {{name: split, in_flight: 1}}
team: {{workers: {workers}}}
train:
  epochs: 3
  batch_size: 256
  seed: 1
  private_seed_for_experiments: 1
  checkpoint_every_steps: 20
network: {{listen: "127.0.0.1:{port}+", certificates: certs}}
audit: false
"""
KILL_AFTER: Final = 60
_MARK, _LIMIT_S = "made-by-demo-scale", 300.0
# Sums of float32 numbers in another order, over some three hundred steps.
TOLERANCE: Final = 1e-4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; return 1 if the weights are not those of one process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo-scale"), help="folder; an earlier one is replaced")
    folder: Path = parser.parse_args(arguments).out
    if folder.exists() and not (folder / _MARK).exists():
        print(f"{folder} was not made by this demonstration; name another folder with --out", file=sys.stderr)
        return 2
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / _MARK).touch()
    begun = time.monotonic()
    _say("Two companies, one file, certificates")
    (folder / "clicks.yaml").write_text(EXPERIMENT.format(port=free_ports(WORKERS), workers=WORKERS))
    _run(folder, ["splitvfl", "certs", *PARTIES, "--out", "certs"])
    _say(f"Train with {WORKERS} workers at each company; one of ads is killed after step {KILL_AFTER}")
    _train(folder)
    _say("Train in one process, which takes the same steps")
    _run(folder, ["splitvfl", "train", "clicks.yaml", "--out", "runs/whole"])
    apart = _compare(folder)
    _say(f"Done in {time.monotonic() - begun:.0f} s")
    print(f"next: splitvfl report {folder / 'runs' / PARTIES[0]}")
    print("      docs/scaling.md: the same by hand, on several machines")
    return 0 if apart <= TOLERANCE else 1


def _train(folder: Path) -> None:
    with _company(folder, "shop") as shop:
        with _company(folder, "ads") as ads:
            _wait_for(folder / "runs" / "ads" / "worker-1", KILL_AFTER, [shop, ads])
            os.kill(_workers_of(ads)[-1], signal.SIGKILL)
            print("  -- kill -9: a worker of ads is gone; torchrun ends the other one, and shop waits", flush=True)
        with _company(folder, "ads") as ads:
            for one in (ads, shop):
                if one.wait(_LIMIT_S):
                    raise SystemExit("training failed; what was said stands above")


@contextmanager
def _company(folder: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start a company's workers; whoever still runs at the end is ended."""
    words = ["--nproc-per-node", str(WORKERS), "--master-port", str(free_ports(1)), "--no-python"]
    command = ["splitvfl", "party", "clicks.yaml", "--as", name, "--out", f"runs/{name}"]
    print(f"  {name}$ torchrun {' '.join([*words, *command])}", flush=True)
    # Where this environment's commands are, whether it is on the path or not.
    found = Path(sys.executable).parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{found}{os.pathsep}{os.environ.get('PATH', '')}"}
    process = subprocess.Popen([found / "torchrun", *words, *command], cwd=folder, env=environment)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(_LIMIT_S)


def _wait_for(run: Path, step: int, companies: Sequence[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _LIMIT_S
    while max(checkpoint.steps(run / "checkpoints"), default=0) < step:
        if time.monotonic() > deadline or any(one.poll() is not None for one in companies):
            raise SystemExit(f"training did not get to step {step}; what was said stands above")
        time.sleep(0.05)


def _workers_of(launcher: subprocess.Popen[bytes]) -> list[int]:
    """Return the processes that a launcher has started."""
    found = subprocess.run(["pgrep", "-P", str(launcher.pid)], capture_output=True, text=True, check=True)
    return [int(line) for line in found.stdout.split()]


def _compare(folder: Path) -> float:
    """Print whether workers are equal, and how far their trained half is from that of one process; return that."""
    furthest = 0.0
    for name in PARTIES:
        run = folder / "runs" / name
        first, second = (_newest(one)["module"] for one in (run, run / "worker-1"))
        # Of a table that is divided between workers each has rows of its own.
        equal = all(torch.equal(first[key], second[key]) for key in first if not key.endswith(".rows"))
        own, known = (
            load_file(one / "weights.safetensors")
            for one in (run / "model", folder / "runs" / "whole" / "model" / name)
        )
        apart = max((own[key] - known[key]).abs().max().item() for key in known)
        print(
            f"  {name}: workers {'equal to the bit' if equal else 'DIFFER'}; from one process at most {apart:.1e} away"
        )
        furthest = max(furthest, apart if equal else float("inf"))
    return furthest


def _newest(run: Path) -> dict[str, Any]:
    newest = checkpoint.latest(run / "checkpoints")
    if newest is None:
        raise SystemExit(f"{run} holds no checkpoint; what was said stands above")
    return whole_party(newest)


def _run(folder: Path, words: Sequence[str]) -> None:
    print(f"  $ {' '.join(words)}", flush=True)
    command = [sys.executable, "-c", "import sys; from splitvfl.cli import main; sys.exit(main())", *words[1:]]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def _say(title: str) -> None:
    print(f"\n{title}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
