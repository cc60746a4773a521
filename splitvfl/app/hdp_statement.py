"""What is said of HDP-VFL's noise in a training: what is protected, from whom, by what, and what is not covered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from splitvfl.app.batching import Batching
from splitvfl.app.hdp_noise import HdpNoise
from splitvfl.app.noise_basis import void_for_labels
from splitvfl.app.noise_stream import cut_tail, success, void_at
from splitvfl.data.columns import PartyData
from splitvfl.data.learned_columns import learned_columns
from splitvfl.report.rows import counted


def statement(noise: HdpNoise, parties: Mapping[str, PartyData]) -> list[str]:
    """Return what is promised of a training with this noise, and what is not, in sentences.

    Args:
        noise: The noise, and on what it rests.
        parties: The data of the parties that this process has, by name.
    """
    return [
        _what(noise),
        _for_passive(noise),
        _for_active(noise),
        joint_privacy(noise.settings.epsilon, max(noise.passive.delta, noise.active.delta)),
        *_generator(noise),
        *_not_covered(noise, parties),
        *_warnings(noise),
    ]


def joint_privacy(epsilon: float, delta: float) -> str:
    """Return what a training with this noise guarantees to all parties at once, in a sentence.

    Each party's messages are private in its own record towards all others together, whatever these hold: so is what
    they compute from them and from what is their own.

    Source: *Hybrid Differentially Private Federated Learning on Vertically Partitioned Data*, theorem 2.

    Args:
        epsilon: ε of all messages of one party.
        delta: The largest δ of any party.
    """
    if void := void_at(epsilon, delta):
        return f"Joint differential privacy (theorem 2 of HDP-VFL): {void}."
    return (
        f"The training is ({epsilon:g}, {delta:.3g})-joint differentially private (theorem 2 of HDP-VFL): take any one "
        "party; what all others together receive and compute in the training is that private in one record at this "
        "party."
    )


def unprotected_evaluations(shape: Batching) -> str:
    """Return what evaluations without noise give away, in a sentence without a capital."""
    when = (
        "the evaluation after the last epoch"
        if shape.evaluated == 1
        else f"{shape.evaluated} evaluations, {shape.evaluated - 1} of them before the end "
        "(train.evaluate_every_epochs)"
    )
    return (
        f"{when}, for which test records cross without this noise; the label party solves them for a "
        "passive party's weights, which depend on its training records."
    )


def _what(noise: HdpNoise) -> str:
    agreed, shape = noise.settings, noise.training
    return (
        f"HDP-VFL noise ({noise.kind}) for ε {agreed.epsilon:g} and δ {agreed.delta:g} over {_length(noise)} of "
        f"{shape.described}: σ "
        f"{noise.passive.sigma:.3g} on each passive party's part of the logits, clipped to "
        f"{noise.clips.activation:g} (sensitivity {noise.passive.sensitivity:.4g}), σ {noise.active.sigma:.3g} on the "
        f"label party's derivatives, clipped to {noise.clips.coefficient:g} (sensitivity "
        f"{noise.active.sensitivity:.4g}). Receivers clip what they use to the same; each party's weights stay in a "
        f"ball of radius {noise.radius:g}."
    )


def _length(noise: HdpNoise) -> str:
    shape = noise.training
    if noise.ends == shape.steps:
        return f"{counted(shape.epochs, 'epoch')}, {counted(shape.steps, 'step')}"
    return f"{counted(noise.ends, 'step')}, where all parties end, of {shape.steps:,} in {shape.epochs:,} epochs,"


def _for_passive(noise: HdpNoise) -> str:
    active, *passives = noise.names
    others = "the others" if len(passives) > 1 else active
    if void := void_at(noise.settings.epsilon, noise.passive.delta):
        return f"One record's row at {_either(passives)}: {void}."
    return (
        f"One record's row at {_either(passives)}, changed in any way: all that the party sends in the training is "
        f"({noise.settings.epsilon:g}, {noise.passive.delta:.3g})-differentially private, towards {others}"
        f"{', all of them together' if len(passives) > 1 else ''}."
    )


def _for_active(noise: HdpNoise) -> str:
    active, *passives = noise.names
    if void := void_at(noise.settings.epsilon, noise.active.delta):
        return f"One record's row and label at {active}: {void}."
    together = f"{_all(passives)} together, who are sent one draw of the noise" if len(passives) > 1 else passives[0]
    outsider = math.hypot(noise.active.mu, *(noise.passive.mu for _ in passives))
    label = success(noise.label.mu, noise.label.missing)
    shown = noise.active.missing + len(passives) * noise.passive.missing
    return (
        f"One record's row and label at {active}, changed in any way: all that {active} sends is "
        f"({noise.settings.epsilon:g}, {noise.active.delta:.3g})-differentially private, towards {together}; what it "
        f"learns from {'exact derivatives' if noise.own_part == 'exact' else 'what it sent'} is counted. A label "
        f"alone, all else known, is told right at most {label:.1%} of the time, if neither is commoner. An "
        f"outsider who reads every message, and doubts between two rows of a record at every party, is right at "
        f"most {success(outsider, shown):.1%} of the time."
    )


def _not_covered(noise: HdpNoise, parties: Mapping[str, PartyData]) -> list[str]:
    found = [line for name, data in parties.items() if (line := _columns_of(name, data))]
    if void := void_for_labels(parties.values(), noise.task):
        found.append(f"Not covered: one record's label. {void}.")
    found += [_evaluations(noise), *_predictions(noise)]
    found.append(
        "Not covered: the trained weights, predictions and scores, if they are shown to anyone"
        f"{'' if noise.reserve is None else ' beyond those that noise is put by for'}; settings that were "
        "chosen by results; who is in the aligned records; several records of one person, which cost as many times "
        "as much; other runs over the same records, such as one that is started anew; that sums and products are "
        "rounded, in floating point; and parties that do not keep to the protocol, but for what receivers clip."
    )
    if noise.fixed:
        found.append("Not covered: anything, from whoever knows the fixed seed that the noise was drawn from.")
    else:
        found.append(
            "Not covered: anything, from whoever reads the folder of a party's run: the key of its noise is there."
        )
    return found


def _evaluations(noise: HdpNoise) -> str:
    shown, shape = noise.passive.evaluations, noise.training
    if shown is None:
        return f"Not covered: {unprotected_evaluations(shape)}"
    return (
        f"Not covered: rows of test records. In {counted(shape.evaluated, 'evaluation')} their parts of the logits "
        f"have noise of σ {shown.sigma:.3g}, which hides what one training row does to a passive party's weights, "
        f"and is counted ({noise.settings.evaluation_share:.3g} of μ²); figures on test records are of noisy parts."
    )


def _predictions(noise: HdpNoise) -> Iterator[str]:
    if (put_by := noise.reserve) is not None:
        yield (
            f"Not covered: rows of records that are scored after training. Of up to {put_by.records:,} of them, "
            f"counted each time, parts of the logits have noise of σ {put_by.sigma:.3g}, which hides what one "
            "training row does to a passive party's weights, and is counted "
            f"({noise.settings.prediction_share:.3g} of μ², used or not); splitvfl predict refuses more. Scores, if "
            "they are published, are not covered."
        )


def _generator(noise: HdpNoise) -> list[str]:
    if noise.fixed:
        return []
    rounding = max(noise.passive.rounding, noise.active.rounding)
    missing = max(stream.missing for stream in (noise.passive, noise.active))
    return [
        "Noise is discrete Gaussian, from AES-256 in counter mode under keys of the operating system. In ε and δ "
        f"is counted that numbers are rounded to its grid before (up to {rounding:.2g} of μ), and that none beyond "
        f"13 σ is drawn {cut_tail(missing)}."
    ]


def _warnings(noise: HdpNoise) -> list[str]:
    agreed, found = noise.settings, []
    for what, stream in (("a passive party", noise.passive), ("the label party", noise.active)):
        if void_at(agreed.epsilon, stream.delta):
            found.append(
                f"Not covered as asked: at ε {agreed.epsilon:g} the noise of {what} guarantees nothing, and δ "
                f"{agreed.delta:g} was asked for; calibration: tight has it."
            )
        elif stream.delta > agreed.delta * (1 + 1e-6):
            found.append(
                f"Not covered as asked: at ε {agreed.epsilon:g} the textbook's noise of {what} has a δ of "
                f"{stream.delta:.3g}, not {agreed.delta:g}; calibration: tight has it."
            )
    if agreed.epsilon < agreed.delta:
        found.append("ε is below δ: what is promised is decided by δ alone, and could be had without any ε.")
    if agreed.delta >= 1 / noise.training.records:
        found.append(
            f"δ {agreed.delta:g} is not below one over the {noise.training.records:,} training records: a mechanism "
            "that publishes one of them whole would keep such a promise."
        )
    if agreed.epsilon > 10:
        found.append(f"ε {agreed.epsilon:g} is above 10: it promises next to nothing.")
    return found


def _either(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _all(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _columns_of(name: str, data: PartyData) -> str:
    learned = learned_columns(data)
    if learned is None:
        return (
            f"Not covered: how {name}'s columns became numbers, which is not known here; if it depends on statistics "
            "of the records, every row depends on all of them."
        )
    if not learned:
        return ""
    shown = ", ".join(learned[:5]) + (f" and {len(learned) - 5} more" if len(learned) > 5 else "")
    return (
        f"Not covered: statistics of training records, by which columns of {name} were encoded ({shown}), so that "
        "every row depends on all records; give their public bounds (data.ranges), and categories as numbers."
    )
