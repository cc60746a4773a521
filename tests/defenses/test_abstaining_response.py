from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from splitvfl import SplitModel
from splitvfl.defenses import AbstainingResponse, AsymmetricResponse, AxisGaussian
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Secrets, call_defense, crossing_of
from tests.builders import small_trainer

SecretsFactory = Callable[..., Secrets]
Floats = npt.NDArray[np.float64]


def channel_of(defense: AbstainingResponse) -> Floats:
    """Probability of 0, silence and 1 under either label, ``(2, 3)``, from the two draws that are described."""
    table = np.zeros((2, 3))
    for label, speaks, lies in itertools.product((0, 1), (False, True), (False, True)):
        weight = (defense.speaking if speaks else 1 - defense.speaking) * (defense.flip if lies else 1 - defense.flip)
        table[label, 2 * (label ^ lies) if speaks else 1] += weight
    return table


def auc(channel: Floats) -> float:
    """Every pair of answers; their order is that of the likelihood ratio."""
    answers = range(channel.shape[1])
    return float(sum(channel[1, i] * channel[0, j] * ((i > j) + 0.5 * (i == j)) for i in answers for j in answers))


@given(detection_error=st.floats(0.05, 0.49), epsilon=st.floats(0.1, 20.0))
def test_both_promises_are_met_with_equality(detection_error: float, epsilon: float) -> None:
    if 1 - 2 * detection_error > math.tanh(epsilon / 2):
        with pytest.raises(ArgumentError, match="raise epsilon to at least"):
            AbstainingResponse(detection_error=detection_error, epsilon=epsilon)
        return
    defense = AbstainingResponse(detection_error=detection_error, epsilon=epsilon)
    channel = channel_of(defense)

    assert 0 < defense.speaking <= 1
    # The best guess of an even-odds label errs half of what the two rows have in common.
    assert np.minimum(channel[0], channel[1]).sum() / 2 == pytest.approx(detection_error, rel=1e-9)
    assert np.abs(np.log(channel[1, ::2] / channel[0, ::2])).max() == pytest.approx(epsilon, rel=1e-6)
    assert channel[1, 1] == channel[0, 1]
    assert defense.answers_auc == pytest.approx(auc(channel), rel=1e-12)


def test_the_docstring_tells_share_and_auc() -> None:
    defense = AbstainingResponse(detection_error=0.4, epsilon=3.0)

    assert defense.speaking == pytest.approx(0.22, abs=0.005)
    assert auc(channel_of(defense)) == pytest.approx(0.678, abs=0.0005)
    assert AbstainingResponse(detection_error=0.4, epsilon=None).speaking == pytest.approx(0.2)


@pytest.mark.parametrize("epsilon", [2.0, None])
def test_answers_are_drawn_as_promised(epsilon: float | None, secrets_for_test: SecretsFactory) -> None:
    n = 40_000
    labels = (torch.arange(n) % 2).double()
    defense = AbstainingResponse(detection_error=0.3, epsilon=epsilon)

    targets = call_defense(defense, labels, secrets_for_test(labels, ids=torch.arange(n)))

    for label, row in enumerate(channel_of(defense)):
        for value, share in zip(defense.target_values, row, strict=True):
            error = 5 * math.sqrt(share * (1 - share) / (n / 2))  # five standard errors of a binomial share
            assert (targets[labels == label] == value).double().mean().item() == pytest.approx(share, abs=error)
    assert crossing_of(defense) == "labels"


def test_it_logs_what_it_promises(secrets_for_test: SecretsFactory) -> None:
    logged: dict[str, float] = {}
    ids = torch.arange(4000)
    secrets = secrets_for_test(ids=ids, log=logged.__setitem__)

    call_defense(AbstainingResponse(detection_error=0.4, epsilon=3.0), torch.ones(4000), secrets)

    # Five standard errors of the share.
    assert logged.pop("silent") == pytest.approx(0.779, abs=5 * math.sqrt(0.779 * 0.221 / 4000))
    assert logged == pytest.approx({"epsilon": 3.0, "detection_error_bound": 0.4, "answers_auc": 0.6779041721})


def test_a_run_says_what_its_answers_tell() -> None:
    trainer = small_trainer(defenses=[AbstainingResponse(detection_error=0.4), AxisGaussian(ratio=1.0)])
    assert trainer.active.notes == [
        "abstaining-response: 78% of the records say nothing in the whole run; from what the others answer alone "
        "labels are read with an AUC of 0.678."
    ]
    assert trainer.passives["telecom"].notes == []


def test_who_is_silent_does_not_depend_on_the_label(secrets_for_test: SecretsFactory) -> None:
    labels = (torch.arange(500) % 3 == 0).float()

    def silent(given: Tensor) -> Tensor:
        defense = AbstainingResponse(detection_error=0.4)
        secrets = secrets_for_test(ids=torch.arange(500), seed=7)
        return call_defense(defense, given, secrets) == 0.5

    assert 350 < silent(labels).sum() < 420
    assert torch.equal(silent(labels), silent(1 - labels))
    assert torch.equal(silent(labels), silent(torch.zeros(500)))


def test_a_record_answers_once_and_after_a_restart(secrets_for_test: SecretsFactory, tmp_path: Any) -> None:
    defense, restarted = (AbstainingResponse(detection_error=0.3) for _ in range(2))
    ids = 10**12 * torch.arange(300)

    first = call_defense(defense, torch.ones(300), secrets_for_test(ids=ids, seed=1))
    torch.save(defense.state_dict(), tmp_path / "state")
    restarted.load_state_dict(torch.load(tmp_path / "state", weights_only=True))

    assert set(first.tolist()) == set(torch.tensor(defense.target_values).tolist())
    assert torch.equal(call_defense(defense, torch.zeros(300), secrets_for_test(ids=ids, seed=2)), first)
    assert torch.equal(call_defense(restarted, torch.zeros(300), secrets_for_test(ids=ids, seed=3)), first)
    with pytest.raises(ArgumentError, match="expected answers of a share"):
        AbstainingResponse(detection_error=0.2).load_state_dict(defense.state_dict())


@pytest.mark.parametrize("epsilon", [2.0, None])
def test_the_expected_gradient_is_that_of_the_labels(epsilon: float | None) -> None:
    """Exactly, over the three things that a record may say."""
    defense = AbstainingResponse(detection_error=0.35, epsilon=epsilon)
    logits = torch.linspace(-6, 6, 13, dtype=torch.float64)
    for label, row in enumerate(channel_of(defense)):
        expected = torch.zeros_like(logits)
        for value, share in zip(defense.target_values, row, strict=True):
            leaf = logits.clone().requires_grad_()
            defense.record_loss(leaf[:, None], torch.full_like(logits, value)).sum().backward()
            assert leaf.grad is not None
            expected += share * leaf.grad
        torch.testing.assert_close(expected, torch.sigmoid(logits) - label, rtol=0, atol=1e-12)


class _Step:
    """One forward and backward pass of a split model under the defense; what crossed, and the top's gradient."""

    def __init__(self, labels: Tensor, *extra: Any, corrected: Any = "targets") -> None:
        torch.manual_seed(0)
        self.model = SplitModel(nn.Linear(5, 3), nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
        defense = AbstainingResponse(detection_error=0.3, corrected=corrected)
        self.model.defend(defense, noise_seed_for_experiments=5)
        for more in extra:
            self.model.defend(more, noise_seed_for_experiments=6)
        self.seen: list[Tensor] = []
        self.model.cut.audit()
        audit = self.model.cut._audits[0]
        self.responses: list[Tensor] = []
        audit.see = lambda *_, responses, **__: self.responses.append(responses)  # type: ignore[method-assign]
        self.columns = torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(1))
        self.ids = torch.arange(len(labels))
        self.activation = self.model.bottoms["passive"](self.columns).detach()
        self.model.cut.register_full_backward_hook(lambda _, sent, __: self.seen.append(sent[0]))
        output = self.model(self.columns, labels=labels, ids=self.ids)
        self.model.loss(output, labels, ids=self.ids).backward()
        self.sent = self.seen[0]
        self.top = [parameter.grad.clone() for parameter in self.model.top.parameters()]  # type: ignore[union-attr]


@pytest.mark.parametrize("corrected", ["targets", "likelihood"])
def test_a_silent_record_moves_nothing_anywhere(corrected: str) -> None:
    labels = (torch.arange(60) % 2).float()
    first = _Step(labels, corrected=corrected)
    silent = first.responses[0] == 0.5

    assert 10 < silent.sum() < 50
    assert not first.sent[silent].any()
    assert first.sent[~silent].any(dim=1).all()
    # Whatever the silent records' labels are, everything that is computed is the same to the bit: there is no mean, and
    # no count, through which they could be seen.
    other = _Step(torch.where(silent, 1 - labels, labels), corrected=corrected)
    for left, right in zip((first.sent, *first.top), (other.sent, *other.top), strict=True):
        assert torch.equal(left.view(torch.int32), right.view(torch.int32))  # the signs of zeros, too


def test_the_step_is_that_of_the_speaking_records_alone() -> None:
    """A slow loop over those that speak, with weights and targets written out."""
    labels = (torch.arange(40) % 2).float()
    step = _Step(labels)
    defense = next(iter(step.model.labels))
    assert isinstance(defense, AbstainingResponse)
    no, _, yes = defense.target_values
    top = step.model.top
    top.zero_grad()
    for row in range(40):
        said = step.responses[0][row].item()
        if said == 0.5:
            continue
        leaf = step.activation[row : row + 1].clone().requires_grad_()
        target = torch.tensor([yes if said == 1 else no])
        loss = functional.binary_cross_entropy_with_logits(top(leaf)[:, 0], target)
        (loss / defense.speaking / 40).backward()
        assert leaf.grad is not None
        # Ten roundings of single precision.
        torch.testing.assert_close(step.sent[row : row + 1], leaf.grad, rtol=1e-5, atol=1e-8)
    for grad, parameter in zip(step.top, top.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(grad, parameter.grad, rtol=1e-4, atol=1e-7)


def test_later_defenses_get_0_for_a_silent_record_and_never_its_label() -> None:
    class Listens:
        name = "listens"

        def __init__(self) -> None:
            self.labels: list[Tensor] = []

        def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
            self.labels.append(secrets.labels)
            return gradient.clone()

    listens = Listens()
    labels = torch.ones(50)
    step = _Step(labels, listens, AxisGaussian(ratio=1.0))
    responses, shown = step.responses[0], listens.labels[0]

    assert set(responses.tolist()) <= {0.0, 0.5, 1.0}
    assert torch.equal(shown, (responses == 1).float())
    assert (shown[responses == 0.5] == 0).all()  # all labels are 1
    # Noise on the axis covers who is silent: every row crosses with noise.
    assert step.sent.any(dim=1).all()


def test_the_auditor_reads_what_the_answers_tell_and_no_more() -> None:
    """Labels that nothing else tells, over four epochs; whoever reads all answers has an AUC of .678."""
    random = torch.Generator().manual_seed(0)
    labels, columns = (torch.rand(1024, generator=random) < 0.5).float(), torch.randn(1024, 16, generator=random)
    torch.manual_seed(0)
    model = SplitModel(nn.Identity(), nn.Sequential(nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 1)))
    columns.requires_grad_()
    model.defend(AbstainingResponse(detection_error=0.4, epsilon=3.0), noise_seed_for_experiments=0)
    with model.cut.audit() as audit:
        for _ in range(4):
            for rows in torch.randperm(1024, generator=random).split(128):
                truth = labels[rows]
                output = model(columns[rows], labels=truth, ids=rows)
                model.loss(output, truth, ids=rows).backward()

    # Over 512 of each class an AUC has a standard error of .017, or less where many are tied.
    assert audit.worst < 0.678 + 3 * 0.017
    assert audit.linear.summary().accumulated_auc > 0.678 - 3 * 0.017


def test_two_ids_for_one_person_void_the_promise() -> None:
    """Both answers together: what the docstring says of the same person under two ids."""
    channel = channel_of(AbstainingResponse(detection_error=0.4, epsilon=3.0))
    both = np.einsum("yi,yj->yij", channel, channel).reshape(2, -1)

    assert np.minimum(both[0], both[1]).sum() / 2 < 0.35
    assert np.log(both[1] / both[0]).max() == pytest.approx(6.0)


def test_it_says_more_of_fewer_than_the_asymmetric_response() -> None:
    """At the same detection error the reader's AUC is larger; merging silence and 0 would give the other's."""
    abstaining = channel_of(AbstainingResponse(detection_error=0.4, epsilon=None))
    merged = np.stack([abstaining[:, 0] + abstaining[:, 1], abstaining[:, 2]], axis=1)
    asymmetric = AsymmetricResponse(detection_error=0.4, epsilon=None).flips

    assert merged == pytest.approx(np.array([[1, 0], [asymmetric.positive, 1 - asymmetric.positive]]))
    assert (auc(abstaining), auc(merged)) == (pytest.approx(0.68), pytest.approx(0.6))


def test_equality_in_the_condition_is_randomised_response_of_all() -> None:
    epsilon = 1.5
    error = (1 - math.tanh(epsilon / 2)) / 2
    assert AbstainingResponse(detection_error=error + 1e-12, epsilon=epsilon).speaking == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"detection_error": 0.5}, "strictly between 0 and 0.5, got 0.5"),
        ({"detection_error": 0.4, "epsilon": 0.0}, "positive and finite, or None"),
        ({"detection_error": 0.4, "epsilon": math.inf}, "positive and finite, or None"),
        ({"detection_error": 0.4, "epsilon": 1000.0}, "epsilon 1000 is too large"),
        ({"detection_error": 0.4, "corrected": "loss"}, "must be 'targets' or 'likelihood', got 'loss'"),
        ({"detection_error": 0.1, "epsilon": 1.0}, "raise epsilon to at least 2.1973, or the detection error to 0.269"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        AbstainingResponse(**settings)


def test_labels_of_another_kind_are_refused(secrets_for_test: SecretsFactory) -> None:
    defense, secrets = AbstainingResponse(detection_error=0.4), secrets_for_test(ids=torch.arange(2))
    with pytest.raises(ArgumentError, match="floating-point dtype"):
        defense(torch.tensor([0, 1]), secrets)
    with pytest.raises(ArgumentError, match="must be 0 or 1"):
        defense(torch.tensor([0.0, 2.0]), secrets)
    with pytest.raises(ArgumentError, match="one logit for each record"):
        defense.record_loss(torch.zeros(2, 3), torch.zeros(2))


def test_a_batch_in_which_all_are_silent_is_a_step_like_any_other() -> None:
    class Silent(AbstainingResponse):
        def claims(self) -> tuple[()]:
            return ()

        def __call__(self, labels: Tensor, secrets: Secrets, /) -> Tensor:
            super().__call__(labels, secrets)
            return torch.full_like(labels, 0.5)

    model = SplitModel(nn.Linear(5, 3), nn.Linear(3, 1))
    model.defend(Silent(detection_error=0.3))
    model.cut.defend(AxisGaussian(ratio=1.0))
    audit = model.cut.audit()
    labels, ids = (torch.arange(8) % 2).float(), torch.arange(8)

    loss = model.loss(model(torch.randn(8, 5), labels=labels, ids=ids), labels, ids=ids)
    loss.backward()

    assert loss.item() == 0.0
    assert all(not parameter.grad.any() for parameter in model.parameters())  # type: ignore[union-attr]
    assert not audit.worst > 0.5  # nothing to be judged, or nothing found
