"""Attacks with known records, of k classes and of numbers, against what they are made of."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from splitvfl.attacks import (
    CombinedAttack,
    GradientClassifierAttack,
    MixtureAttack,
    ModelCompletionAttack,
    ReadoutAttack,
)
from splitvfl.config.registry import built_in
from splitvfl.errors import ArgumentError
from splitvfl.hooks import View, tasks_of
from splitvfl.leakage.judging import Leak
from splitvfl.metrics import concordance, macro_auc

K, ROWS = 3, 240


def clustered(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows around a centre for each class, and the classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(K, (ROWS,), generator=generator)
    centres = torch.randn(K, 6, generator=generator)
    return centres[labels] + 0.4 * torch.randn(ROWS, 6, generator=generator), labels


def test_the_classifier_of_k_classes_ranks_as_a_linear_discriminant() -> None:
    rows, labels = clustered()
    known = torch.arange(0, ROWS, 2)
    view = View(
        party="p",
        step=0,
        ids=torch.arange(ROWS),
        gradient=rows,
        classes=K,
        known_records=known,
        known_values=labels[known],
    )

    scores = GradientClassifierAttack(ridge=1e-6, memory=10**9)(view)

    assert scores.shape == (ROWS, K)
    assert scores[known].isnan().all()
    asked = torch.arange(1, ROWS, 2)
    # Length and residual are further features, so ranks are nearly those of the discriminant of the rows.
    oracle = LinearDiscriminantAnalysis(priors=np.full(K, 1 / K)).fit(rows[known], labels[known])
    expected = torch.from_numpy(oracle.predict_proba(rows[asked].numpy()))
    assert macro_auc(scores[asked], labels[asked]) == pytest.approx(macro_auc(expected, labels[asked]), abs=0.03)
    assert (scores[asked].argmax(dim=1) == expected.argmax(dim=1)).double().mean() > 0.9


def test_the_classifier_scores_nothing_before_every_class_was_met() -> None:
    rows, labels = clustered()
    known = torch.arange(ROWS)[labels != 2][:20]
    view = View(
        party="p",
        step=0,
        ids=torch.arange(ROWS),
        gradient=rows,
        classes=K,
        known_records=known,
        known_values=labels[known],
    )
    assert GradientClassifierAttack()(view).isnan().all()


def test_the_completed_model_reads_classes_that_its_outputs_tell() -> None:
    rows, labels = clustered()
    known = torch.cat([torch.arange(ROWS)[labels == label][:8] for label in range(K)])
    given = {"bottom": torch.nn.Linear(6, 5), "columns": rows, "known_records": known.flip(0)}
    view = View(party="p", step=0, ids=torch.arange(ROWS), classes=K, known_values=labels[known.flip(0)], **given)

    scores = ModelCompletionAttack()(view)

    asked = torch.ones(ROWS, dtype=torch.bool)
    asked[known] = False
    assert scores[~asked].isnan().all()
    assert macro_auc(scores[asked], labels[asked]) > 0.9
    few = View(
        party="p",
        step=0,
        ids=torch.arange(ROWS),
        classes=K,
        **{**given, "known_records": known[:8]},
        known_values=labels[known[:8]],
    )
    assert ModelCompletionAttack()(few).isnan().all()
    assert ModelCompletionAttack()(few).shape == (ROWS, K)


def test_the_completed_model_reads_numbers() -> None:
    columns = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0))
    labels = 100.0 + 20.0 * columns[:, 0].double()
    known = torch.arange(30)
    view = View(
        party="p",
        step=0,
        ids=torch.arange(ROWS),
        bottom=torch.nn.Linear(4, 8),
        columns=columns,
        classes=None,
        known_records=known,
        known_values=labels[known],
    )
    scores = ModelCompletionAttack()(view)
    assert concordance(scores[30:], labels[30:]) > 0.85


@pytest.mark.parametrize("attack", [ReadoutAttack(), CombinedAttack()])
def test_what_reads_one_line_says_so_of_k_classes(attack: ReadoutAttack) -> None:
    with pytest.raises(ArgumentError, match=f"attack {attack.name}: .*line"):
        Leak(attack, classes=K)


def test_readout_and_messages_together_read_numbers_better_than_each() -> None:
    """Squared error below a linear top, ten epochs with noise: prediction less residue is the label."""
    generator = torch.Generator().manual_seed(0)
    weight, hidden = torch.randn(6, generator=generator), torch.randn(ROWS, 6, generator=generator)
    predicted = hidden @ weight
    labels = (predicted + 2.0 * torch.randn(ROWS, generator=generator)).double()
    leaks = {attack.name: Leak(attack, classes=None) for attack in (ReadoutAttack(), CombinedAttack())}
    for step in range(10):
        residues = predicted - labels.float() + torch.randn(ROWS, generator=generator)
        gradient = 2.0 * residues[:, None] * weight / ROWS
        view = View(party="p", step=step, ids=torch.arange(ROWS), gradient=gradient, activation=hidden)
        for leak in leaks.values():
            leak.see(view, labels)
    found = {name: leak.summary.worst_accumulated_auc for name, leak in leaks.items()}
    assert found["combined"] > found["readout"] + 0.05
    assert not math.isnan(leaks["combined"].summary.accumulated_correlation)


def messages(step: int, noise: float) -> tuple[View, torch.Tensor]:
    """Messages below a linear top of three classes: all records, in one batch, with a new prediction each time."""
    generator = torch.Generator().manual_seed(100 + step)
    weight = torch.randn(K, 6, generator=torch.Generator().manual_seed(7))
    labels = torch.randint(K, (ROWS,), generator=torch.Generator().manual_seed(8))
    predicted = torch.softmax(0.5 * torch.randn(ROWS, K, generator=generator), dim=1)
    gradient = (predicted - torch.nn.functional.one_hot(labels, K)) @ weight / ROWS
    gradient = gradient + noise * torch.randn(ROWS, 6, generator=generator) / ROWS
    return View(party="p", step=step, ids=torch.arange(ROWS), gradient=gradient, activation=gradient), labels


def test_the_mixture_reads_classes_without_a_label_and_the_judge_names_them() -> None:
    leak, attack = Leak(MixtureAttack(), classes=K), MixtureAttack()
    for step in range(6):
        view, labels = messages(step, noise=1.0)
        leak.see(view, labels)
        if step == 3:
            attack.load_state_dict(leak.attack.state_dict())  # type: ignore[attr-defined]
        elif step > 3:
            last = attack(view.granting(classes=K))
    found = leak.summary
    assert found.worst_accumulated_auc > 0.95
    assert found.accumulated_top1 > 0.85 > found.top1_by_matching + 0.3
    assert found.by_chance < 0.6
    assert last.shape == (ROWS, K)
    kept = leak.attack(view.granting(classes=K)).argmax(dim=1)
    assert (kept == last.argmax(dim=1)).double().mean() > 0.95  # a state that was restored goes on alike


def test_the_mixture_of_noise_reads_what_matching_gives() -> None:
    leak = Leak(MixtureAttack(), classes=K)
    for step in range(4):
        view, labels = messages(step, noise=1.0)
        leak.see(view.granting(gradient=torch.randn(ROWS, 6, generator=torch.Generator().manual_seed(step))), labels)
    found = leak.summary
    assert found.accumulated_top1 == pytest.approx(found.top1_by_matching, abs=0.09)
    assert found.worst_accumulated_auc == pytest.approx(found.by_chance, abs=0.07)


@pytest.mark.parametrize("name", sorted(built_in("attacks")))
def test_an_attack_that_is_not_for_a_task_names_only_attacks_that_are(name: str) -> None:
    attack = built_in("attacks")[name]
    for task, why in getattr(attack, "not_for", {}).items():
        assert task not in tasks_of(attack)
        named = [other for other in built_in("attacks") if re.search(rf"\b{other}\b", why) and other != name]
        assert all(task in tasks_of(built_in("attacks")[other]) for other in named)
