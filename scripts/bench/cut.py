"""The cost of the cut, of watching it and of defending it, against a training step of Wide & Deep.

The model is 26 categorical fields of 50 000 rows by 12, 13 numeric columns and four layers of 128; embeddings are
updated by sparse SGD, the rest by fused Adam. Run ``python -m scripts.bench.cut [--quick] [--json OUT]``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional

from scripts.bench.measuring import Result, interleaved, main, ratio
from splitvfl.attacks import NormAttack
from splitvfl.cut.chain import DefenseChain
from splitvfl.data.columns import Columns, PartyData, Records
from splitvfl.defenses import AxisGaussian, Isotropic, RecordGaussian, SumKL, solve_sumkl
from splitvfl.exchange.split_step import active_step, passive_step
from splitvfl.hooks import Defense, View
from splitvfl.leakage.judging import Leak
from splitvfl.learning.optimizers import PerParameter, sparse_sgd
from splitvfl.messaging.conversation import converse
from splitvfl.models import WideDeepBottom, WideDeepTop
from splitvfl.party.party import ActiveParty, PassiveParty

# Batch sizes, and how many paired runs each is measured with.
BATCHES = ((512, 61), (4096, 31), (65_536, 11))
QUICK_BATCHES = ((512, 5), (4096, 3), (65_536, 1))
FIELDS, ROWS, DIM, NUMERIC, WIDTH = 26, 50_000, 12, 13, 128


optimizer_for = PerParameter(embeddings=sparse_sgd)


class Bench:
    """One batch size: data, the whole model, and the two parties."""

    def __init__(self, batch: int, fields: int, rows: int) -> None:
        torch.manual_seed(0)
        numeric = torch.randn(batch, NUMERIC)
        self.columns = Columns(numeric, torch.randint(rows, (batch, fields)))
        self.labels = (torch.rand(batch) < 0.25).float()
        self.ids = torch.arange(batch)
        self._sizes = (rows,) * fields
        self._build_whole()
        self._build_parties()
        self._number = 0

    def _modules(self) -> tuple[nn.Module, nn.Module]:
        torch.manual_seed(1)
        bottom = WideDeepBottom(NUMERIC, self._sizes, embedding_dim=DIM, widths=(WIDTH,) * 4, sparse=True)
        return bottom, WideDeepTop(WIDTH, NUMERIC)

    def _build_whole(self) -> None:
        self.whole = nn.ModuleList(self._modules())
        self.optimizer = optimizer_for(self.whole)
        self.halves = self._modules()
        self.optimizers = tuple(optimizer_for(half) for half in self.halves)

    def _build_parties(self) -> None:
        bottom, top = self._modules()
        own = Columns.of(self.columns.numeric)
        self.active_records = Records(self.ids, own, self.labels)
        self.passive_records = Records(self.ids, self.columns)
        names = tuple(map(str, range(NUMERIC)))
        active = PartyData("active", names, names, (), self.active_records, self.active_records)
        passive = PartyData("passive", names, names, self._sizes, self.passive_records, self.passive_records)
        self.active = ActiveParty(active, top, optimizer=optimizer_for)
        self.passive = PassiveParty(passive, bottom, optimizer=optimizer_for)
        self.active.connect("passive")

    def whole_step(self) -> None:
        """Take a training step of the model that is not split."""
        self.optimizer.zero_grad()
        bottom, top = self.whole
        logits = top(bottom(self.columns), self.columns.numeric).squeeze(1)
        functional.binary_cross_entropy_with_logits(logits, self.labels).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def two_optimiser_step(self) -> None:
        """Take the same step as two parties must at the least: with two backward calls and two optimisers, by hand."""
        (bottom, top), (of_bottom, of_top) = self.halves, self.optimizers
        activation = bottom(self.columns)
        arrived = activation.detach().requires_grad_()
        logits = top(arrived, self.columns.numeric).squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(logits, self.labels)
        of_top.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        of_top.step()
        of_bottom.zero_grad()
        activation.backward(arrived.grad)
        of_bottom.step()

    def split_step(self) -> None:
        """Take a training step of the two parties."""
        halves = {
            "passive": passive_step(self.passive, self.passive_records, self._number, active="active"),
            "active": active_step(self.active, self.active_records, self._number),
        }
        converse(halves, turns={"active": self.active.random, "passive": self.passive.random})
        self._number += 1

    def defend(self, defense: Defense) -> None:
        """Let the label party defend the gradient that it sends."""
        self.active.cuts["passive"].defend(defense, noise_seed_for_experiments=0)

    def gradient(self) -> Tensor:
        """Return a cut gradient as it is during training."""
        bottom, top = self.whole
        activation = bottom(self.columns).detach().requires_grad_()
        logits = top(activation, self.columns.numeric).squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(logits, self.labels)
        (gradient,) = torch.autograd.grad(loss, activation)
        return gradient

    def watching(self, gradient: Tensor) -> Callable[[], object]:
        """Return the work of an attack that looks at a gradient, and of its judge."""
        leak = Leak(NormAttack())
        return lambda: leak.see(View(party="passive", step=0, ids=self.ids, gradient=gradient), self.labels)

    def defending(self, gradient: Tensor, defense: Defense) -> Callable[[], object]:
        """Return the work of a defense of a gradient."""
        chain = DefenseChain("gradient", "active")
        chain.attach(defense, noise_seed_for_experiments=0)
        return partial(chain.apply, gradient, step=0, ids=self.ids, labels=self.labels)


def measure(quick: bool) -> list[Result]:
    """Return every row; ``quick`` takes smaller tables and fewer runs."""
    fields, rows = (2, ROWS + 1) if quick else (FIELDS, ROWS + 1)
    results: list[Result] = []
    for batch, runs in QUICK_BATCHES if quick else BATCHES:
        results += _batch_results(batch, runs, Bench(batch, fields, rows), Bench(batch, fields, rows))
    return results + _solver_results(quick)


def _batch_results(batch: int, runs: int, bench: Bench, defended: Bench) -> list[Result]:
    # Of whole steps: what would be sent under the other label is computed where the step is. The top is linear.
    defended.defend(RecordGaussian(detection_error=0.4))
    steps = [bench.whole_step, bench.two_optimiser_step, bench.split_step, defended.split_step]
    whole, two, split, noisy = interleaved(steps, runs=runs)
    results = []
    for name, taken, beside, target in (
        (f"split / unsplit step, batch {batch}", split, whole, 1.05),
        (f"two optimisers and two backward calls / unsplit step, batch {batch}", two, whole, None),
        (f"split step / two optimisers and two backward calls, batch {batch}", split, two, None),
        (f"split step with record-gaussian / without, batch {batch}", noisy, split, 1.12),
    ):
        value, note = ratio(taken, beside)
        note = f"{note}; {median(taken) * 1e6:.0f} and {median(beside) * 1e6:.0f} us"
        results.append(Result(name, value, "ratio", target, note=note))
    gradient = bench.gradient()
    hooks: list[tuple[str, Callable[[], object], float]] = [
        ("norm attack, leak AUC", bench.watching(gradient), 0.01),
        # Noise of full rank is drawn and added in float64; on an axis, one number for a row.
        ("isotropic", bench.defending(gradient, Isotropic()), 0.12),
        ("sumKL, ratio", bench.defending(gradient, SumKL(ratio=1.0)), 0.14),
        ("sumKL, detection error", bench.defending(gradient, SumKL(detection_error=0.4)), 0.14),
        ("axis-Gaussian", bench.defending(gradient, AxisGaussian(detection_error=0.4)), 0.1),
    ]
    often = max(1, 8192 // batch)
    works = [bench.whole_step, *(work for _, work, _ in hooks)]
    times = interleaved(works, runs=runs, repeats=[1, *[often] * len(hooks)])
    for (name, _, target), taken in zip(hooks, times[1:], strict=True):
        value, note = ratio(taken, times[0])
        results.append(Result(f"{name}, batch {batch}", value, "of a step", target, note=note))
    return results


def _solver_results(quick: bool) -> list[Result]:
    count, runs = (2_000, 3) if quick else (20_000, 11)
    generator = torch.Generator().manual_seed(0)
    u, v, gap = (torch.rand(3, count, generator=generator, dtype=torch.float64) + 0.01).unbind()
    share = torch.rand(count, generator=generator, dtype=torch.float64) * 0.5 + 0.01
    singles = list(zip(u[:200].tolist(), v[:200].tolist(), gap[:200].tolist(), share[:200].tolist(), strict=True))

    def one_by_one() -> None:
        for low, high, distance, positive in singles:
            solve_sumkl(low, high, distance, WIDTH, positive, distance)

    def together() -> None:
        solve_sumkl(u, v, gap, WIDTH, share, gap)

    scalar, batched = interleaved([one_by_one, together], runs=runs)
    return [
        Result("solve_sumkl, one call", median(scalar) / len(singles) * 1e3, "ms", 0.1, note=f"{runs} runs of 200"),
        Result(
            "solve_sumkl, per problem in a batch",
            median(batched) / count * 1e6,
            "us",
            20.0,
            note=f"{runs} runs of {count}",
        ),
    ]


if __name__ == "__main__":
    raise SystemExit(main("The cut: cost of splitting, watching and defending", measure))
