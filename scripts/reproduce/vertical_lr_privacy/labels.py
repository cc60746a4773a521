"""The label attack: which share of labels the signs of the residues give away, step by step, and until when provably.

Source: *Is Vertical Logistic Regression Privacy-Preserving?*, figures 3 (above) and 4, section 5.2.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from scripts.reproduce.shared.claims import UNIT, Claim, Verdict, markdown_table, mean, shown, with_interval
from scripts.reproduce.shared.jobs import Job, Result, run_jobs
from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from scripts.reproduce.vertical_lr_privacy.drawing import Chart, Curve, draw_charts
from scripts.reproduce.vertical_lr_privacy.study import (
    INITS,
    PASSIVE,
    RATE,
    Init,
    Problem,
    build_trainer,
    data_of,
    deviation,
    first_weights,
    has_short_rows,
    joined,
    problems,
)
from splitvfl.attacks import OwnPredictionAttack, solve_residues
from splitvfl.attacks.packed_equations import (
    packed_selections,
    slot_bits_needed,
    slots_available,
    unpack_equations,
)
from splitvfl.errors import ProtocolError
from splitvfl.exchange.prediction import predict
from splitvfl.hooks import View
from splitvfl.learning.losses import Approximation
from splitvfl.learning.sigmoid_coefficients import APPROXIMATIONS, gradient_scale
from splitvfl.messaging.messages import Message
from splitvfl.metrics import leak_auc
from splitvfl.privacy import initial_margin, sign_attack_horizon
from splitvfl.report.drawing import PALETTE
from splitvfl.run.trainer import Trainer

FAILURE = 0.05
"""Probability that the attacker's own bound on the first logits does not hold."""

WHOLE = 0.9995
"""From here on a share is "100 %" on a figure."""

# The attack on ciphertexts of the residue exchange: 2048 bits, residues with 32 fraction bits and up to 1024.
_MODULUS = (1 << 2048) - 1
_FRACTION_BITS, _LARGEST = 32, 1024.0
# All steps of the first epoch are attacked, then every tenth, then fewer.
_DENSE, _EVERY, _LATER = 300, 10, 25


class LabelWatch:
    """Solves a batch's residues in the passive party's seat, honestly and by packing, and counts right signs.

    It is the harness: the labels that it counts with are nobody's view.

    Args:
        batches: Steps in an epoch, all of which are attacked in the first.
        approximation: Whose residues cross.
        ciphertexts: How many sums the passive party has decrypted: one per column.
    """

    needs = frozenset({"columns", "aggregated_gradient"})

    def __init__(self, batches: int, approximation: Approximation, ciphertexts: int) -> None:
        self._batches, self._scale, self._ciphertexts = batches, gradient_scale(approximation), ciphertexts
        self._labels = torch.empty(0)
        self._residues = torch.empty(0)
        self.steps: list[int] = []
        self.shares: dict[str, list[float]] = {"honest": [], "packed": []}
        self.counts: list[int] = []

    def learn_labels(self, labels: Tensor) -> None:
        """Take note of the true labels of the batch under way, 0 and 1."""
        self._labels = labels

    def record(self, message: Message) -> None:
        """Keep the residues that the label party sends, which the residue exchange would encrypt.

        Raises:
            ProtocolError: If one is too large for that, as in the exchange.
        """
        if message.kind == "gradient":
            self._residues = message.payload[:, 0].double() * message.payload.shape[0] * self._scale
            if self._residues.abs().max() > _LARGEST:
                raise ProtocolError(f"a residue exceeds {_LARGEST:g} at step {message.step}, and cannot be encrypted")

    def attacks(self, step: int) -> bool:
        """Return whether a step is attacked."""
        return step < self._batches or step % (_EVERY if step < _DENSE else _LATER) == 0

    def __call__(self, view: View, /) -> None:
        """Attack one step."""
        if not self.attacks(view.step):
            return
        scores = {
            "honest": -solve_residues(view.columns, view.aggregated_gradient[:, 0], underdetermined=True),
            "packed": -unpacked(self._residues, self._ciphertexts),
        }
        self.steps.append(view.step)
        self.counts.append(len(view.ids))
        for kind, found in scores.items():
            self.shares[kind].append(right_share(found, self._labels))


def right_share(scores: Tensor, labels: Tensor) -> float:
    """Return the share of records whose label, 0 or 1, is the sign of the score; 0 is no sign."""
    return float((scores * (2 * labels - 1) > 0).double().mean())


def unpacked(residues: Tensor, ciphertexts: int) -> Tensor:
    """Return what a passive party reads of encrypted residues that packs single records into its request.

    What the label party decrypts are sums of weight times residue modulo N; they are computed here on the integers, as
    nothing else of the cipher matters. Where slots do not suffice, the last records are zero.

    Source: *Is Vertical Logistic Regression Privacy-Preserving?*, section 5.2.

    Args:
        residues: ``(s,)``.
        ciphertexts: How many sums it may have decrypted.

    Returns:
        ``(s,)``, float64: the residues to 2^-33.
    """
    slot_bits = slot_bits_needed(
        1, value_bits=_FRACTION_BITS, weight_bits=0, largest_value=_LARGEST, largest_weight=1.0
    )
    slots = slots_available(_MODULUS.bit_length(), slot_bits)
    count = len(residues)
    values = [round(value * (1 << _FRACTION_BITS)) for value in residues.tolist()]
    weights = packed_selections(
        count,
        ciphertexts=min(ciphertexts, -(-count // slots)),
        slot_bits=slot_bits,
        value_bound=int(_LARGEST) << _FRACTION_BITS,
        modulus=_MODULUS,
    )
    sums = [sum(weight * value for weight, value in zip(row, values, strict=True)) % _MODULUS for row in weights]
    read = unpack_equations(sums, slot_bits=slot_bits, count=slots, modulus=_MODULUS)[:count]
    return torch.tensor(read + [0] * (count - len(read)), dtype=torch.float64) / (1 << _FRACTION_BITS)


def attack_run(problem: Mapping[str, Any], seed: int, init: Init, approximation: Approximation) -> Result:
    """Train once, and return how many labels were right in every attacked step, beside horizons and baseline.

    Args:
        problem: What :meth:`Problem.as_settings` returned.
        seed: Of everything.
        init: How the first weights are drawn.
        approximation: Of the sigmoid.
    """
    given = Problem(**problem)
    steps_in_epoch = -(-data_of(given, seed).active.train.count // given.batch_size)
    watch = LabelWatch(steps_in_epoch, approximation, data_of(given, seed)[PASSIVE].width)
    trainer = build_trainer(
        given,
        seed,
        init=init,
        approximation=approximation,
        attacks=[OwnPredictionAttack()],
        record=watch.record,
    )
    passive = trainer.passives[PASSIVE]

    class _Seat:
        needs = watch.needs

        def __call__(self, view: View, /) -> None:
            watch.learn_labels(trainer.labels_of(view.ids))
            watch(view)

    passive.observers.append(_Seat())
    finished = _trained(trainer, given.epochs)
    return {
        "steps": watch.steps,
        "counts": watch.counts,
        **watch.shares,
        "epoch": steps_in_epoch,
        "test_accuracy": _accuracy(trainer) if finished else math.nan,
        **own_signs(trainer),
        **horizons(given, seed, init, approximation),
    }


def _trained(trainer: Trainer, epochs: int) -> bool:
    """Train, and return whether that came to its end: with the minimax sigmoid, logits beyond 7 grow without bound."""
    with warnings.catch_warnings():
        # That is among what is measured here.
        warnings.filterwarnings("ignore", message="logits lie outside", category=UserWarning)
        try:
            trainer.fit(epochs)
        except ProtocolError:
            return False
    return True


def own_signs(trainer: Trainer) -> dict[str, float]:
    """Return which share of training labels the sign of the passive party's trained output is, and its AUC."""
    passive, train = trainer.passives[PASSIVE], trainer.active.data.train
    view = View(
        party=PASSIVE,
        step=trainer.step,
        ids=train.ids,
        bottom=passive.bottom,
        columns=passive.data.train.columns.module_input(),
    )
    scores = OwnPredictionAttack()(view)
    assert train.labels is not None
    return {"own": right_share(scores, train.labels), "own_auc": leak_auc(scores, train.labels)}


def _accuracy(trainer: Trainer) -> float:
    labels = trainer.active.data.test.labels
    assert labels is not None
    return right_share(predict(trainer.active, trainer.passives).outputs[:, 0], labels)


def horizons(problem: Problem, seed: int, init: Init, approximation: Approximation) -> dict[str, float]:
    """Return until which step signs are provably labels: to an auditor who sees all, and to the attacker himself.

    The auditor has the largest norm of a row and the largest first logit. The attacker has the norm that was agreed
    upon, which here is the same, and bounds the first logit by the initialisation scheme.
    """
    data = data_of(problem, seed)
    rows, _, active = joined(data, "train", intercept=problem.intercept)
    norms = rows.double().norm(dim=1)
    features = norms if not problem.intercept else (norms.square() - 1).clamp(min=0).sqrt()
    own, other = first_weights(data, init, seed)
    first = rows[:, : own.shape[1]].double() @ own[0].double() + rows[:, active:].double() @ other[0].double()
    radius, margin = float(norms.max()), float(first.abs().max())
    tau = max(deviation(init, own.shape[1]), deviation(init, other.shape[1]))
    guessed = initial_margin(tau, float(features.max()), len(rows), FAILURE)
    return {
        "radius": radius,
        "margin": margin,
        "horizon": float(sign_attack_horizon(RATE, margin, approximation=approximation, radius=radius)),
        "attackers_horizon": float(sign_attack_horizon(RATE, guessed, approximation=approximation, radius=radius)),
    }


# --- figures


Runs = dict[tuple[str, Init, Approximation], list[Result]]


def run_all(chosen: Sequence[Problem], settings: Settings) -> Runs:
    """Return results by data set, initialisation and approximation, one per seed."""
    wanted = [
        (problem, init, approximation)
        for problem in chosen
        for init in INITS
        for approximation in APPROXIMATIONS
        if approximation == "taylor" or (init in ("zero", "Xavier") and problem in (chosen[0], _table_of(chosen)))
    ]
    jobs = [
        Job(
            attack_run,
            {"problem": problem.as_settings(), "seed": seed, "init": init, "approximation": approximation},
        )
        for problem, init, approximation in wanted
        for seed in range(settings.seeds)
    ]
    results = run_jobs(jobs, settings.jobs, workers=settings.workers, say=settings.say)
    return {
        (problem.key, init, approximation): results[number * settings.seeds : (number + 1) * settings.seeds]
        for number, (problem, init, approximation) in enumerate(wanted)
    }


def _of_all(values: Iterable[float]) -> str:
    """Return mean and standard error, or a dash where a seed has no figure."""
    known = list(values)
    return shown(None) if any(math.isnan(value) for value in known) else with_interval(known, limits=UNIT)


def _table_of(chosen: Sequence[Problem]) -> Problem:
    """Return the first of the tables, which is attacked with all approximations beside the first of the images."""
    return next((problem for problem in chosen if not problem.images), chosen[-1])


def sections(settings: Settings) -> list[Section]:
    """Return the section on the label attack."""
    chosen = problems(settings)
    if not chosen:
        return []
    settings.say(f"label attack: {len(chosen)} data sets")
    runs = run_all(chosen, settings)
    return [_section(chosen, runs)]


def share(result: Result, kind: str, first: int, last: int) -> float:
    """Return the share of labels that were right in the attacked steps from ``first`` to before ``last``."""
    picked = [
        (value, count)
        for step, value, count in zip(result["steps"], result[kind], result["counts"], strict=True)
        if first <= step < last
    ]
    total = sum(count for _, count in picked)
    return sum(value * count for value, count in picked) / total if total else math.nan


def _epoch_share(result: Result, kind: str, *, last: bool = False) -> float:
    steps = result["steps"][-1] + 1
    return share(result, kind, steps - result["epoch"], steps) if last else share(result, kind, 0, result["epoch"])


def _section(chosen: Sequence[Problem], runs: Runs) -> Section:
    body = f"""
The passive party receives the sum of residue times row, and takes minus the sign of every residue for the label. It
solves for residues in two ways. *Honest*: least squares on the one sum per column that it is due, exact where the batch
has no more records than its columns have rank. *Packed*: the active attack, one record in each of the
{slots_available(2048, _slot_bits())} slots of a ciphertext (2048 bits), so that a column pays for that many records. A
slot has {_slot_bits()} bits here, for residues up to {_LARGEST:g}; for residues up to 32, as
[elsewhere](../logistic-regression.md), it has 39 bits, and there are 52. It works where whole plaintexts come back;
here the low bits do that the agreed sums take, which is room for about two.
"last epoch" is that of the epoch that ends the run.

T is the validity horizon: in so many first steps every sign is provably right. The auditor's has the largest row and
the largest first logit of the run; the attacker's bounds the latter by what was agreed on initialisation (wrong with
probability .05), and has no more than that. "own output" is the baseline: the sign of the party's own part of the
trained logit, for which no message needs to be attacked; its AUC stands beside it, as zero is not its best threshold.

{_table(chosen, runs)}

The other approximations, where they were run. Exact and piecewise residues never change sign; a piecewise one of zero
carries no label and counts as not right. Where there is no test accuracy, a run of some seed ended in residues that
are too large to be encrypted: beyond logits of 7, the minimax sigmoid pushes them further out.

{_approximation_table(chosen, runs)}
"""
    return Section(
        title="Labels from the signs of residues (figures 3, above, and 4)",
        body=body,
        figures={"vertical-lr-labels": _figure(chosen, runs)},
        captions={
            "vertical-lr-labels": "Share of labels that are minus the sign of the residue, by training step, mean over "
            "seeds. Solid: packed; dashed: honest least squares. Dotted: the auditor's horizon T of that "
            "initialisation (none where it is 0)."
        },
        claims=_claims(chosen, runs),
    )


def _slot_bits() -> int:
    return slot_bits_needed(1, value_bits=_FRACTION_BITS, weight_bits=0, largest_value=_LARGEST, largest_weight=1.0)


def _table(chosen: Sequence[Problem], runs: Runs) -> str:
    headings = (
        "data",
        "first weights",
        "packed, first epoch",
        "packed, last epoch",
        "honest, first epoch",
        "honest, last epoch",
        "T, auditor's",
        "T, attacker's",
        "own output",
        "its AUC",
    )
    rows = []
    for problem in chosen:
        for init in INITS:
            results = runs[problem.key, init, "taylor"]
            shares = [
                with_interval((_epoch_share(result, kind, last=last) for result in results), limits=UNIT)
                for kind in ("packed", "honest")
                for last in (False, True)
            ]
            rows.append(
                (
                    problem.title,
                    init,
                    *shares,
                    span(result["horizon"] for result in results),
                    span(result["attackers_horizon"] for result in results),
                    with_interval((result["own"] for result in results), limits=UNIT),
                    with_interval((result["own_auc"] for result in results), limits=UNIT),
                )
            )
    return markdown_table(headings, rows, left=2)


def span(values: Iterable[float]) -> str:
    """Return the least and the largest of whole numbers, infinite ones included."""
    known = [math.inf if math.isnan(value) else value for value in values]  # JSON has no infinity
    ends = ["∞" if math.isinf(end) else f"{end:.0f}" for end in (min(known), max(known))]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]}–{ends[1]}"


def _approximation_table(chosen: Sequence[Problem], runs: Runs) -> str:
    headings = ("data", "first weights", "sigmoid", "first epoch", "last epoch", "T, auditor's", "test accuracy")
    rows = []
    for problem in chosen:
        for init in INITS:
            found = [kind for kind in APPROXIMATIONS if (problem.key, init, kind) in runs]
            if len(found) < 2:
                continue
            for kind in found:
                results = runs[problem.key, init, kind]
                shares = [
                    with_interval((_epoch_share(result, "packed", last=last) for result in results), limits=UNIT)
                    for last in (False, True)
                ]
                accuracy = _of_all(result["test_accuracy"] for result in results)
                rows.append(
                    (problem.title, init, kind, *shares, span(result["horizon"] for result in results), accuracy)
                )
    return markdown_table(headings, rows, left=3)


_COLOURS: Mapping[Init, str] = dict(zip(INITS, (PALETTE[0], PALETTE[2], PALETTE[4], PALETTE[1]), strict=True))


def _figure(chosen: Sequence[Problem], runs: Runs) -> str:
    charts = []
    for problem in chosen:
        curves, marks = [], []
        for init in INITS:
            results = runs[problem.key, init, "taylor"]
            steps = [step + 1 for step in results[0]["steps"]]
            for kind in ("honest", "packed"):
                up = [mean(values) for values in zip(*(result[kind] for result in results), strict=True)]
                label = init if kind == "packed" else ""
                curves.append(Curve(across=steps, up=up, colour=_COLOURS[init], dashed=kind == "honest", label=label))
            horizon = mean(result["horizon"] for result in results)
            if horizon >= 1:
                marks.append((horizon, _COLOURS[init]))
        charts.append(
            Chart(
                title=problem.title,
                x_label="training step",
                curves=curves,
                marks=marks,
                levels={"blind": 0.5},
                log_x=True,
                limits=(0.4, 1.03),
            )
        )
    return draw_charts("vertical-lr-labels", charts, columns=min(3, len(charts)))


def _claims(chosen: Sequence[Problem], runs: Runs) -> list[Claim]:
    found = [_horizon_claim(problem, runs) for problem in chosen]
    for problem in chosen:
        inits: tuple[Init, ...] = ("zero", "Xavier") if problem.scaling == "rows / largest norm" else ("zero",)
        if problem.scaling == "rows / largest norm" or not problem.images:
            found += [_share_claim(problem, init, runs) for init in inits]
    return found


def _horizon_claim(problem: Problem, runs: Runs) -> Claim:
    """Return whether all labels of all steps within the auditor's horizon were right, over all initialisations."""
    shares = [
        share(result, "packed", 0, int(result["horizon"]))
        for init in INITS
        for result in runs[problem.key, init, "taylor"]
        if result["horizon"] >= 1
    ]
    least = min(shares)
    right: Verdict = "reproduces" if has_short_rows(problem) else "only with a variant"
    rows = "rows have a norm of at most 1" if has_short_rows(problem) else "with the largest row's norm in place of 1"
    return Claim(
        claim=f"{problem.title}: every sign within the auditor's horizon is the label (worst run)",
        published=None,
        ours=least,
        interval=None,
        seeds=len(runs[problem.key, "zero", "taylor"]),
        verdict=right if least == 1.0 else "does not",
        why=f"a theorem, {rows}; {len(shares)} of {len(INITS) * len(runs[problem.key, 'zero', 'taylor'])} runs have a "
        "horizon of at least one step",
    )


def _share_claim(problem: Problem, init: Init, runs: Runs) -> Claim:
    """Return whether every label of the first epoch was right, to what a figure shows as 100 %, with every seed."""
    results = runs[problem.key, init, "taylor"]
    packed, honest = ([_epoch_share(result, kind) for result in results] for kind in ("packed", "honest"))
    # What the paper prints is of Xavier's weights on images and of zero weights on the table.
    printed = init == ("Xavier" if problem.images else "zero")
    claim = Claim.of_shares(
        packed,
        claim=f"{problem.title}, first weights {init}: every label of the first epoch",
        published=1.0 if printed else None,
        holds=min(packed) >= WHOLE,
        why=f"packed; honest least squares gets {shown(mean(honest))} of a batch of {problem.batch_size}",
    )
    active_only = claim.verdict == "reproduces" and min(honest) < WHOLE
    return replace(claim, verdict="only with a variant") if active_only else claim
