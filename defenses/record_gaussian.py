"""Gaussian noise in the unit of a record: as large as what its own label changes in its own gradient."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from splitvfl.claims import GaussianDP, RunPlan
from splitvfl.defenses.claim_words import (
    GENERATOR,
    NO_OTHER_RELEASE,
    ONE_RECORD,
    PREDICTION,
    RECORDS_APART,
    ROUNDED_NOISE,
)
from splitvfl.defenses.promised_epochs import PromisedEpochs
from splitvfl.defenses.row_norms import log_change
from splitvfl.errors import ArgumentError, ConfigError, HookError, PrivacyError
from splitvfl.hooks import Crossing, Secrets, batch_mixing_layer
from splitvfl.learning.label_gradients import Drawn, LabelGradients, is_second
from splitvfl.learning.sampling import blocks
from splitvfl.privacy.gaussian_dp import gaussian_mu, least_detection_error

Per = Literal["message", "run"]

_SAFE_SQUARES = (1e-20, 1e24)
# A loss's gradient under a label within the range may lie beyond those at its ends by rounding: so much of their
# distance.
_BEYOND = 1e-3
# A target is one of the values that targets can take, but for rounding.
_SAME = 1e-3


class RecordGaussian:
    """Send every record's row with Gaussian noise in proportion to the change that its label can make in it.

    With ``a_0 … a_(k−1)`` the rows that the record has under each of its k labels, and ``e_y`` the indicator of its own
    (``y`` of two), it sends ``Σ_c t_c a_c`` with

    - two labels: ``t_1 = y + N(0, 1/μ²)`` and ``t_0 = 1 − t_1``, so the row plus noise of standard deviation
      ``‖a_1 − a_0‖ / μ`` along ``a_1 − a_0``;
    - k labels: ``t = e_y + (√2/μ) (ζ − mean ζ)`` with ζ ~ N(0, I_k), so the row plus noise of covariance
      ``(2/μ²) Σ_c (a_c − ā)(a_c − ā)ᵀ``;
    - a label range (regression): as two labels, with y the place of the row between those at the range's ends, in
      [0, 1]; labels outside are taken for the nearer end.

    The mean is the clean row. Below a linear top the two rows of a record differ by ``‖w‖ / n``, whatever the model
    predicts; the axis defenses' noise is that times the gap of the batch's classes, which shrinks.

    **Each message is μ-Gaussian differentially private in the label of every record**, given columns, weights and all
    other labels: nobody's ½(FPR + FNR) on two labels of a record is below ``Φ(−μ/2)``, or AUC above ``Φ(μ/√2)``. No
    assumption is made of distributions, of predictions or of the width and depth of the top.

    Proof. The rows ``a_c`` are functions of weights, columns and dropout, computed for every label alike; the label
    enters through t alone, and what is sent is a function of t and of what does not know the label. So is its rounding,
    to whatever precision. It is enough that t is μ-private. For two labels t_1 is N(0, 1/μ²) shifted by 0 or 1. For k,
    ``e_y − e_y'`` has norm √2 and sums to zero, and the noise is isotropic, of standard deviation √2/μ, within the
    vectors that do; that it has no other component takes nothing from it, since nothing else differs. A place in
    [0, 1] is a shift of at most 1. That the partner knows every ``a_c``, or makes them by the activations he sends,
    changes nothing: they are what is given.

    Noise along the record's own line is enough at any depth for two labels, because that line is the same under both.
    For k labels no noise that is isotropic among the directions of ``a_c − ā`` (standard deviation: the largest
    ``‖a_c − a_d‖`` over μ) is of less power, where these are k − 1: this one's is ``2/(kμ²) Σ_(c<d) ‖a_c − a_d‖²``, an
    average where that takes the largest. In a cut of fewer than k − 1 columns it can be larger than needed.

    Nothing is added off the line to cover rounding, as the axis defenses do: what is sent is computed from t, and not
    from the row that autograd rounded.

    ``per="run"``: μ is of all messages to all partners together, over E epochs, and each has μ/√E. For that the top
    model, too, has to learn from what was sent, as one true label in its own update would move all later messages. So
    one t is drawn for a record and step, and the loss gradient at the top's output is replaced by the one that belongs
    to t: the top's own update and the rows of every cut follow from it. With cross entropy or squared error it is what
    :class:`~splitvfl.defenses.gaussian_targets.GaussianTargets` with fresh noise is. It is for a top of one linear
    layer, or one that learns nothing; below deeper ones take that class. A record is sent E times and not once more.

    With ``per="message"`` messages of different epochs add up: by ``√E·μ`` as far as the noise goes, and a top that
    learns from true labels moves later messages besides, which no μ here covers. Measured at L = .4 (μ = .507) over 40
    epochs of breast cancer, three seeds: .407 from one late message; .99 AUC from the sum of a record's messages, by an
    observer who knows p and w (``Φ(√(E/2) μ) = .988``). An attacker who has to guess these read .73 and .93.

    What voids it: early stopping, best weights or a verdict that partners see, on true labels; class weights, or
    batches, made from labels; a person under two ids; a top that mixes records (refused). Rows of one id in one batch
    get one draw, and must have one label. Behind a label defense it hides the change between that one's answers, and
    so the labels' as well (a mixture over answers is no easier to tell apart); where these are unbounded it is refused.
    The model's own prediction of a record is not hidden. It rests on the secrecy of the keystream; a fixed seed is for
    experiments.

    Logs ``mu`` of a message, ``detection_error_bound`` (over the run with ``per="run"``), ``power``,
    ``noise_to_signal``.

    Cost: on digits a test AUC of .973 for .997 undefended (private top: .978). Time: in each step, every record's
    gradient under each label.

    In a file: ``defenses: [{name: record-gaussian, detection_error: 0.4}]``

    Source: this project's; the mechanism and its composition: Dong, Roth and Su, *Gaussian Differential Privacy*,
    JRSS B 84 (2022), arXiv:1905.02383, theorem 2.7, corollary 3.3, proposition 2.8 (functions of it).

    Args:
        detection_error: L, in (0, ½): nobody's ½(FPR + FNR) on a label is to be below it; ``μ = 2 Φ⁻¹(1 − L)``. Exactly
            one of the three is given.
        mu: μ, > 0.
        epsilon: ε in nats, > 0, with ``delta``: the largest μ that is (ε, δ)-differentially private.
        delta: δ, in (0, 1).
        per: What μ is of: ``"message"`` or ``"run"``.
        classes: Number of classes; must be the task's. Default: any.
        label_range: For regression: the least and the largest label, chosen without a look at the labels.
        epochs: E, for ``per="run"``. Default: what the trainer is told; a loop of one's own says it here.

    Raises:
        ArgumentError: If a setting is out of range, or they contradict each other.
    """

    name: ClassVar[str] = "record-gaussian"
    shifts_scores: ClassVar[str] = ""
    for_regression: ClassVar[str] = "label_range: [low, high]"
    crossing: ClassVar[Crossing] = "gradient"
    needs_label_gradients: ClassVar[bool] = True
    comes_first: ClassVar[bool] = True

    def __init__(
        self,
        *,
        detection_error: float | None = None,
        mu: float | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        per: Per = "message",
        classes: int | None = None,
        label_range: tuple[float, float] | None = None,
        epochs: int | None = None,
    ) -> None:
        if per not in get_args(Per):
            raise ArgumentError(f"per must be 'message' or 'run', got {per!r}")
        if epochs is not None and (per != "run" or isinstance(epochs, bool) or epochs < 1):
            raise ArgumentError(f"epochs, at least 1, go with per='run'; got {epochs!r} with per={per!r}")
        if classes is not None and (isinstance(classes, bool) or classes < 2 or label_range is not None):
            raise ArgumentError(f"classes must be at least 2, and go without a label_range; got {classes!r}")
        self.mu = gaussian_mu(mu=mu, epsilon=epsilon, delta=delta, detection_error=detection_error)
        self.per = per
        self.classes = classes
        self.label_range = None if label_range is None else checked_range(label_range)
        self._promised = PromisedEpochs(self.name, epochs)

    def claims(self) -> tuple[GaussianDP, ...]:
        """Return that what is sent is μ-private, per message or per run."""
        many = (
            "Anything over many steps: at a detection error of .4, messages of 40 epochs read .73 and .93 by AUC, "
            "prediction included.",
        )
        return (
            GaussianDP(
                self.mu,
                per=self.per,
                mechanism="Gaussian noise on each row in proportion to the change that a label can make in it",
                conditions=(RECORDS_APART, NO_OTHER_RELEASE, ONE_RECORD),
                not_covered=(*(many if self.per == "message" else ()), PREDICTION, ROUNDED_NOISE, GENERATOR),
            ),
        )

    @property
    def draws_at_output(self) -> bool:
        """True where μ is the run's: the top model then learns from what is drawn here."""
        return self.per == "run"

    @property
    def step_mu(self) -> float:
        """μ of one message.

        Raises:
            PrivacyError: If μ is the run's, and it is not known how many epochs that has.
        """
        if self.per == "message":
            return self.mu
        return self.mu / math.sqrt(self._promised.known("per='run'"))

    def check_top(self, top: nn.Module) -> None:
        """Raise :class:`PrivacyError` if nothing is promised below this top model."""
        layer = batch_mixing_layer(top)
        if layer is not None:
            raise PrivacyError(
                f"{self.name}: {layer} of the top model mixes the records of a batch, so that a label changes the rows "
                "of others; replace it (GroupNorm or LayerNorm keep records apart)"
            )
        learns = any(weight.requires_grad for weight in top.parameters())
        if self.per == "run" and learns and not is_linear_top(top):
            raise PrivacyError(
                f"{self.name}: per='run' is for a top model that learns from what was sent: one linear layer, or "
                "one that does not learn. Under this one, gaussian-targets with remembered: false is the same "
                "mechanism, for the whole run, and with remembered: true costs less"
            )

    def plan_run(self, plan: RunPlan) -> None:
        """Take the number of epochs, and refuse a run that would void the promise."""
        if plan.values is None and self.label_range is None:
            raise ConfigError(
                f"{self.name}: it is not known which values a label can take: for regression say label_range: "
                "[low, high]; behind a label defense, its answers must be finitely many (gaussian-targets has none, "
                "and needs no noise after it)"
            )
        if plan.values is not None and self.label_range is not None:
            raise ConfigError(f"{self.name}: label_range is for regression; the labels of this task are classes")
        if self.per == "message":
            return
        self._promised.plan(plan.epochs)

    def draw(self, known: LabelGradients, secrets: Secrets, /) -> Drawn:
        """Return what stands for the labels of a batch, for the top model and all cuts.

        Args:
            known: What the label party knows of the step.
            secrets: The label party's; ids, generator and log are used.

        Returns:
            Weights of the values that a target can take.

        Raises:
            PrivacyError: If a record was sent as often as was promised, or ids are not known.
        """
        mu = self.step_mu
        self._promised.spend(secrets.ids)
        return self._drawn(known, secrets, mu)

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        """Return the rows that belong to noisy labels.

        Args:
            gradient: Clean cut gradient, ``(n, width)``, float32 or wider. Only its form is used, and its size for the
                log.
            secrets: The label party's; ``label_gradients``, the generator, the log and, if known, the ids are used.

        Returns:
            New tensor like ``gradient``.

        Raises:
            PrivacyError: If gradients under other labels or the values of labels are not known, rows of one id have two
                labels, or another cut's noise is promised per message where this one's is per run.
            HookError: If the gradient under a label is not finite, or a label is none of those that it can be.
        """
        known = secrets.label_gradients
        if (known.drawn is None) == (self.per == "run"):
            raise PrivacyError(
                f"{self.name}: all cuts have to be defended alike, per run or per message; "
                "one cut's messages per message would void what is promised of the run"
            )
        drawn = self._drawn(known, secrets, self.step_mu) if known.drawn is None else known.drawn
        most, parts = known.mixed_blocks(*drawn)
        if not math.isfinite(most):
            raise HookError(
                f"{self.name}: the gradient of a record under one of its labels is not finite, and no noise covers "
                "that; take a loss and a top model whose gradients are finite for every label"
            )
        sent = torch.empty_like(gradient, memory_format=torch.contiguous_format)
        for block, rows in parts:
            # Label or not, the last bits of what noise was added to are nobody's business.
            sent[block] = secrets.rounded(rows.view_as(sent[block]), scale=most, like=sent[block])
        secrets.log("mu", self.step_mu)
        secrets.log("detection_error_bound", least_detection_error(self.mu), per=self.per)
        clean = gradient if known.drawn is None else known.rows.to(gradient.dtype).reshape(gradient.shape)
        _log_sizes(secrets, clean, sent)
        return sent

    def _drawn(self, known: LabelGradients, secrets: Secrets, mu: float) -> Drawn:
        values = self._values(known)
        if len(values) == 2:
            truth = self._place(known, values)[:, None]
            scale = 1.0 / mu
        else:
            truth = torch.nn.functional.one_hot(_which(known.targets, values), len(values)).double()
            scale = math.sqrt(2.0) / mu
        drawn = one_for_each_id(secrets.add_normal(truth, scale), known.targets, secrets, who=self.name)
        if len(values) > 2:  # indicators add up to 1, and so does what is drawn for them
            centred = drawn - (drawn.mean(dim=1, keepdim=True) - 1.0 / len(values))
            drawn = secrets.rounded(centred, scale=scale, like=truth)
        return Drawn(torch.cat([1.0 - drawn, drawn], dim=1) if len(values) == 2 else drawn, values)

    def _values(self, known: LabelGradients) -> tuple[float, ...]:
        if self.classes is not None and self.classes != known.classes:
            raise PrivacyError(f"{self.name} was made for {self.classes} classes, and the labels have {known.classes}")
        values = known.values if self.label_range is None else self.label_range
        if values is None or (self.label_range is not None and known.values is not None):
            raise PrivacyError(
                f"{self.name}: expected labels of finitely many values, or a label_range for others, "
                f"got {'neither' if values is None else 'both'}; nothing was sent"
            )
        return values

    def _place(self, known: LabelGradients, values: tuple[float, ...]) -> Tensor:
        """Return which of two values each target is, or its place between them, ``(n,)`` float64 in [0, 1]."""
        if self.label_range is None:
            return _which(known.targets, values).double()
        low, high = values
        place = known.place(known.targets.clamp(low, high), low, high)
        if bool(((place < -_BEYOND) | (place > 1.0 + _BEYOND)).any()):
            raise HookError(
                f"{self.name}: under a label within the range [{low:g}, {high:g}] the loss's gradient lies beyond "
                "those at its ends, so that these do not bound what a label changes"
            )
        return place.clamp(0.0, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Return how often each record was sent, and of how many times."""
        return {"mu": self.mu, **self._promised.state_dict()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ArgumentError: If another μ was promised, or over another number of epochs.
        """
        if state["mu"] != self.mu:
            raise ArgumentError(f"expected a run that was promised mu {self.mu}, got {state['mu']}")
        self._promised.load_state_dict(state)


def _log_sizes(secrets: Secrets, clean: Tensor, sent: Tensor) -> None:
    """Log what :func:`~splitvfl.defenses.row_norms.log_change` logs, in one pass."""
    noise = signal = 0.0
    for block in blocks(clean):
        change = torch.sub(sent[block], clean[block]).reshape(-1)
        message = clean[block].reshape(-1)
        noise, signal = noise + torch.dot(change, change).item(), signal + torch.dot(message, message).item()
    if not _SAFE_SQUARES[0] < noise / max(clean.numel(), 1) < _SAFE_SQUARES[1]:
        log_change(secrets, clean, sent)  # squares of such numbers vanish or overflow in float32
        return
    secrets.log("power", noise / len(clean))
    if signal > 0:
        secrets.log("noise_to_signal", noise / signal)


def is_linear_top(top: nn.Module) -> bool:
    """Return whether a top model puts out sums of what it is given times its weights: one layer, no activation."""
    if getattr(top, "is_linear", False):
        return True
    leaves = [layer for layer in top.modules() if not any(layer.children())]
    weighing = [layer for layer in leaves if not isinstance(layer, nn.Identity | nn.Flatten)]
    return len(weighing) == 1 and isinstance(weighing[0], nn.Linear)


def checked_range(label_range: tuple[float, float]) -> tuple[float, float]:
    """Return a label range as two floats.

    Raises:
        ArgumentError: If it is none.
    """
    if len(label_range) != 2 or not -math.inf < label_range[0] < label_range[1] < math.inf:
        raise ArgumentError(f"label_range must be two finite numbers, the lower first, got {label_range!r}")
    return float(label_range[0]), float(label_range[1])


def one_for_each_id(drawn: Tensor, labels: Tensor, secrets: Secrets, *, who: str) -> Tensor:
    """Return what was drawn, where rows of one record have one draw, the first one's: two would tell more of its label.

    Args:
        drawn: ``(n, j)``.
        labels: ``(n,)``.
        secrets: Those of the sender; without ids rows are taken for different records.
        who: The defense.

    Raises:
        PrivacyError: If rows of one id have different labels: their difference would be sent without noise.
    """
    if not secrets.has_ids:
        return drawn
    ids = secrets.ids.to(drawn.device)
    in_order = ids.sort().values
    if not bool((in_order[1:] == in_order[:-1]).any()):
        return drawn
    found, record = torch.unique(ids, return_inverse=True)
    first = torch.full((len(found),), len(ids), device=ids.device).scatter_reduce_(
        0, record, torch.arange(len(ids), device=ids.device), "amin"
    )
    first = first[record]
    if not torch.equal(labels, labels[first]):
        raise PrivacyError(
            f"{who}: rows of one id in a batch have different labels, and nothing was sent; an id is one record's, "
            "and noise is drawn once for it"
        )
    return drawn[first]


def _which(targets: Tensor, values: tuple[float, ...]) -> Tensor:
    """Return which of the values each target is, ``(n,)`` int64."""
    if targets.dim() != 1:
        raise HookError(f"expected one target for each record, (n,), got {tuple(targets.shape)}")
    if len(values) == 2 and (second := is_second(targets, values)) is not None:
        return second.long()
    apart = (targets.double()[:, None] - torch.tensor(values, dtype=torch.float64, device=targets.device)).abs()
    least, which = apart.min(dim=1)
    spacing = min(abs(a - b) for number, a in enumerate(values) for b in values[:number])
    if not bool((least <= _SAME * spacing).all()):
        raise HookError(f"a target is none of the values that targets can take, {', '.join(f'{v:g}' for v in values)}")
    return which
