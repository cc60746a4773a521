"""What plugs in at the cut, and what each plug-in may see.

Three kinds of hook exist. A **defense** changes a message before it leaves; it is called with the message and its own
party's :class:`Secrets`. An **attack** reads what its party holds and received, a :class:`View`, in which there are no
labels. A **penalty** changes no message: it is a number that a passive party computes of its own activation and of what
it holds (:class:`Held`), and whose gradient it adds to the one that it received. All are small callables; a class with
``__init__`` and ``__call__`` is enough.

Optional class attributes refine a hook:

``name``
    Its name in tables and logs. Default: the class's name.
``needs`` (attacks)
    Names of the :class:`View` fields that it reads. Default: ``{"gradient"}``.
``needs`` (penalties)
    Names of the :class:`Held` fields that it cannot do without, of ``"columns"``, ``"categories"`` and
    ``"distribution"``: a party that has none refuses it. Default: ``{"columns"}``.
``most_records`` (penalties)
    Of how many records of a batch it is called at most: they are drawn anew in each step, without replacement, by the
    party's generator, and the activation and all fields of :class:`Held` are theirs alone. What it costs does not grow
    with the batch then. Default, and ``None``: all.
``target`` (attacks)
    ``"labels"`` (default): returns one score per record, higher for "more likely positive".
    ``"features"``: returns an estimate of the other party's columns.
    ``"members"``: returns one score per record, higher for "more likely trained on"; called once, after training.
``seat`` (attacks)
    Which party looks: ``"passive"`` (default of attacks on labels) or ``"active"`` (the only one for attacks on
    features and on membership). An attack on features that needs ``received_activation`` is called with every message
    of the training, and one that needs ``partner_steps`` once, after the last step; others are run once, on
    predictions.
``known_share`` (attacks on features that need ``auxiliary`` or ``known_columns``)
    The share of training records, above 0 and below 1, whose columns it is assumed to know; it is not judged by them.
    Of attacks on membership that need ``known_members`` or ``known_others`` it is the share of either kind.
    A message with fewer than three of them is left out.
``sampled`` (attacks that need ``received_activation``)
    ``True`` where it is enough to call it with some of the messages where these are large, and with about one of n/64
    where they have n records: what it takes of a step does not grow with the batch then. Of those in between it gets
    known records only, as ``earlier_auxiliary``. Default: ``False``, it is called with every message.
``joint`` (attacks on features that need ``received_activation`` and ``auxiliary``)
    ``True`` where it regresses columns on whatever is received of known records: a copy of it is then called with the
    label party's own columns beside each activation, for what both tell together. Default: ``False``.
``most_records`` (attacks on features that need ``received_activation``)
    Of how many records of a message it is asked for estimates at most, where each takes long: they are drawn anew at
    each message from those that are not known, and are all that its view shows of these. Default, and ``None``: all.
``when`` (attacks on labels)
    ``"every-step"`` (default): called with every message of the training.
    ``"after-training"``: called once, when training has ended, with a view of
    :func:`~splitvfl.leakage.after_training.view_after_training`.
``weights_known`` (attacks on features)
    Whether the attacker is assumed to know the partner's weights, for lists of attacks. Default: whether it needs a
    field of the view that follows from them.
``known_rows`` (attacks on features that need ``known_rows``)
    The number of training records whose columns it is assumed to know; it is not judged by them.
``cumulative`` (attacks on labels, at every step)
    ``True`` where a score is of all that the attack has received of the record so far, on a scale that stays: the judge
    then keeps each record's last score in place of a sum. Such an attack needs record ids. Default: ``False``.
``revised`` (attacks on labels, cumulative)
    A method that returns ids ``(m,)`` and the scores, ``(m,)`` or ``(m, k)``, that it gives these records by all that
    has come: the judge asks for them where figures of the run are read, and they take the place of each record's last
    score; NaN where a record is not scored. For attacks whose scores of all records change with every message.
``note`` (attacks)
    One sentence to be read beside its figures when the run is over, as a property: that a fit failed, and what was done
    instead. Default: empty.
``tasks`` (attacks on labels)
    The tasks whose labels it reads, of ``"binary"``, ``"multiclass"`` and ``"regression"``. Default: binary alone. Of k
    classes it returns one score for each, ``(n, k)``, or one score per record that is turned round for each class on
    its own; of numbers one score, higher for larger ones. What it is told is then ``view.classes``, and in place of
    known positives and negatives ``view.known_records`` with ``view.known_values``.
``not_for`` (attacks on labels)
    By the name of a task, why it does not read its labels, for the list of attacks that could not be run.
``clusters`` (attacks on labels)
    ``True`` where its columns of k scores are classes of unknown names: the judge grants which column is which.
``signed`` (attacks on labels)
    ``True`` where the sign of a score is the label that it infers: right signs are counted then. Default: ``False``.
``explanation`` (attacks on labels)
    What it does, in sentences for the reader of a report. Default: empty.
``other_names`` (attacks on labels)
    Names that settings give it in place of ``name``, each with an explanation of its own. Default: none.
``place`` (attacks on labels)
    A number by which tables sort attacks. Default: behind all that have one, as they come.
``crossing`` (defenses)
    Which message it changes: ``"gradient"`` (default), ``"activation"``, ``"scores"`` or ``"labels"``.
``scope`` (defenses)
    On what of a message it has to act where its party is several workers, each with its part of every batch.
    ``"batch"`` (default): on all of it; worker 0 gathers the message, defends it with one generator and one memory, and
    every worker sends its part: the numbers of one process. ``"row"``: what is done to a record's row depends on no
    other row, not on how many there are either, apart from the noise; every worker defends its own part, with a
    generator of its own: the distribution of one process. It is about the class that says so: a class derived from it
    with a ``__call__`` of its own says it anew. Not with ``needs_label_gradients``.
``scope`` (penalties)
    Whether it can be taken apart where its party is several workers. ``"batch"`` (default): no, and such a party
    refuses it. ``"row"``: it is a mean over records of numbers each of which depends on its own record alone; every
    worker computes it of its own part, which counts for its share of the batch: in sum the gradient of one process. It
    is about the class that says so, likewise. Not with ``most_records``.
``needs_binary_labels`` (defenses)
    ``True`` where its mathematics holds for labels in {0, 1} only. Default: ``False``.
``needs_logistic_loss`` (defenses of the gradient)
    ``True`` where its mathematics holds below the mean logistic loss only, and its usual approximations. Default:
    ``False``.
``needs_probabilities`` (defenses of scores)
    ``True`` where it takes scores for probabilities of classes, in [0, 1]. Default: ``False``.
``needs_label_gradients`` (defenses)
    ``True`` where it reads ``secrets.label_gradients``: each record's gradient under every label, which is computed for
    it in every step. Default: ``False``.
``recommended`` (defenses)
    Where it is the one to take, in a few words that go on after "recommended": lists show it first. Default: empty.
``classes`` (defenses)
    Number of classes of the labels that it draws answers from; must be the task's. Default: any.
``record_loss`` (defenses of labels)
    A method that takes the top's outputs ``(n, m)`` and the targets ``(n,)`` that the defense returned, and returns
    each record's loss, ``(n,)``: the label party trains on their mean in place of its task's loss. No label defense may
    follow such a one. Default, and ``None``: the task's loss.
``target_values`` (defenses of labels)
    Every value that a target can take, as a tuple. Default, and ``None``: not known, or infinitely many.
``shifts_scores`` (defenses, penalties)
    Why scores are no probabilities of the labels with it, as a sentence without its name; empty: they are estimates of
    these as without it. Default: empty; a defense of labels or scores that does not say is told of as such.
``notes`` (defenses)
    Sentences that are to stand beside the figures of a run, as a tuple: what it leaves to be read, say. Default: none.
``running_totals`` (defenses)
    Names of what it logs that are totals so far: of these a run's figures have the last one, and of all others the
    mean. Default: none.
``weaknesses`` (defenses)
    By the name of an attack, the sentence that a verdict adds where that attack reads labels behind it. Default: none.
``for_regression`` (defenses with ``classes``)
    What to set where a task has no classes, for the error that says so. Default: empty.
``claims`` (defenses)
    A method that returns what it states of what it returns: a tuple of the types of :mod:`splitvfl.claims`. Default:
    nothing, and behind such a defense no bound on the rows of a message is known. It is asked once, where the defense
    is attached; a message that breaks a claim is not sent.
``per_record_guarantee`` (defenses)
    ``True`` is short for :class:`~splitvfl.claims.PerRecord` among its claims. Default: ``False``.
``comes_first`` (defenses)
    ``True`` where it makes its message anew, or promises something of the message as it was, so that what an earlier
    defense did to it would be lost, or void the promise. Default: ``False``.
``draws_at_output`` (defenses of the gradient)
    ``True`` where its method ``draw(known, secrets)`` draws what stands for the labels of a batch, a
    :class:`~splitvfl.learning.label_gradients.Drawn`: the label party's own top model and all cuts go on with that.
    Default: ``False``.
``one_draw`` (defenses of the gradient)
    ``True`` where what it draws for a record is drawn once for all passive parties that are due the same row: with a
    draw for each, parties that put theirs together would have as many releases. Where rows differ nothing is sent.
    Default: ``False``.
``largest_residue`` (defenses of the gradient)
    A method that is given how many residues a run sends, and returns the size that none of them exceeds, but in one run
    of 10^8: exchanges whose numbers have a limit refuse a run before its first step where that is lower. Default: not
    known, and a number beyond the limit ends the run when it comes.
``soft_classes`` (defenses of labels)
    Number of classes where it answers one number for each, ``(n, k)`` in place of classes ``(n,)``. Default: ``None``.
``awaits_direction`` (defenses of scores)
    ``True`` where its method ``take_direction`` is to be given a direction of noise, ``(k,)`` of length one, before
    each prediction: a passive party sends it. Default: ``False``.
``resolution`` (defenses of scores)
    Of what it returns every score is the nearest multiple of this number to the score that it was given: known to
    whoever reads scores. Default, and ``None``: it changes scores in another way.
``check_top`` (defenses of the gradient)
    A method that is given the label party's top model where the defense is attached, and raises where that will not do.
``take_targets`` (defenses of the gradient)
    A method that is given every value that the loss's target of a record can take behind the label defenses, as a
    tuple, before it is given a gradient; ``None``: not known, or a label moves a row by something else than these.
``plan_run`` (defenses)
    A method that is given a :class:`~splitvfl.claims.RunPlan` before the first step, and raises
    :class:`~splitvfl.errors.ConfigError` where it does not allow what is promised of a run.

A hook with state of its own (running statistics, a reference, weights of its own) has ``state_dict()`` and
``load_state_dict(state)``; what they carry is checkpointed.

A defense draws its noise through its :class:`Secrets`, never from torch: ``secrets.add_normal(message, scale)`` where
the noise has one scale per entry or row, ``secrets.normal`` with ``secrets.rounded`` where it has a shape of its own.

The types prevent mistakes. They do not contain hostile code: a hook runs in its user's process.
"""

from __future__ import annotations

import copy
import math
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, overload

import torch
from torch import Tensor, nn

from splitvfl.errors import ArgumentError, HookError, PrivacyError, SplitVFLError
from splitvfl.learning.discrete_noise import Keystream
from splitvfl.learning.label_gradients import LabelGradients
from splitvfl.learning.precision import widened, without_autocast
from splitvfl.learning.sampled import Distribution
from splitvfl.learning.sampling import (
    Source,
    add_laplace,
    add_normal,
    largest_scale,
    snap,
    standard_laplace,
    standard_normal,
    uniform,
)

Crossing = Literal["activation", "gradient", "scores", "labels"]
Target = Literal["labels", "features", "members"]
Seat = Literal["passive", "active"]
Moment = Literal["every-step", "after-training"]
RecordLoss = Callable[[Tensor, Tensor], Tensor]
Phase = Literal["training", "evaluation", "prediction"]
Scope = Literal["batch", "row"]

CROSSINGS: tuple[Crossing, ...] = ("activation", "gradient", "scores", "labels")
PHASES: tuple[Phase, ...] = ("training", "evaluation", "prediction")
TARGETS: tuple[Target, ...] = ("labels", "features", "members")

OWN: frozenset[str] = frozenset({"activation", "bottom", "columns", "logits", "weights"})
"""View fields that a party has without any message of this step; what is told by them alone leaks in none."""

HELD: frozenset[str] = frozenset({"columns", "categories", "distribution"})
"""Fields of :class:`Held` that a party may be without."""

_T = TypeVar("_T")


class ViewField(Generic[_T]):
    """A field of a :class:`View`; reading one that the party has not seen raises :class:`HookError`."""

    def __init__(self, doc: str) -> None:
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, view: None, owner: type) -> ViewField[_T]: ...

    @overload
    def __get__(self, view: View, owner: type) -> _T: ...

    def __get__(self, view: View | None, owner: type) -> ViewField[_T] | _T:
        if view is None:
            return self
        value: _T = view._read(self._name)
        return value


class Equations(NamedTuple):
    """Linear equations ``A t = b`` in the columns t of a party whose weights are known, one right side per prediction.

    Columns are in the unit box: each entry of t is in [0, 1] where the column is within its known range.

    Attributes:
        A: ``(m, d)``, float64, the same for all predictions.
        b: ``(n, m)``, float64.
        error: ``(n, m)``, float64, >= 0: how far each right side may be off, because scores have few digits; 0 where
            it is known to the precision of float64.
    """

    A: Tensor
    b: Tensor
    error: Tensor


class Alphabet(NamedTuple):
    """All values that some columns can take together: a category's one-hot columns, or one column of whole numbers.

    Attributes:
        places: Which columns, counted from 0.
        values: ``(c, len(places))``, float64, in the unit box: each row is one possibility, and occurs once.
    """

    places: tuple[int, ...]
    values: Tensor


class LogitParts(NamedTuple):
    """A passive party's part of each logit, as who does not know its weights has it: ``W x`` plus what is constant.

    Attributes:
        values: ``(n, m)``, float64; of scores of k classes, differences of neighbouring logits.
        columns: Names of the columns x that vary, of all parties whose parts are in it.
    """

    values: Tensor
    columns: tuple[str, ...]


class KnownRows(NamedTuple):
    """Records whose columns an attacker is assumed to know, N of them, and what predictions of them tell.

    Attributes:
        columns: The other party's columns as points of the unit box, ``(N, d)``, float64.
        b: Right sides of the equations of their predictions, ``(N, m)``, as :class:`Equations` has them.
        error: How far each may be off, ``(N, m)``.
    """

    columns: Tensor
    b: Tensor
    error: Tensor


class KnownColumns(NamedTuple):
    """Columns of some of a view's records, which an attacker is assumed to know, and by which it is not judged.

    Attributes:
        ids: Which records, ``(m,)``, int64; all are among the view's.
        columns: Their numeric columns, as their parties hold them, side by side, ``(m, d)``.
    """

    ids: Tensor
    columns: Tensor


class Auxiliary(NamedTuple):
    """Records whose columns an attacker is assumed to know: of one message, but for evaluations and predictions.

    Attributes:
        activation: What was received of them, ``(m, width)``.
        columns: What is asked for of others, ``(m, d)``: their numeric columns, as their party holds them, and behind
            these a column of zeros and ones for each category of its categorical fields.
        ids: Their record ids, ``(m,)``, int64.
    """

    activation: Tensor
    columns: Tensor
    ids: Tensor


class PartnerStep(NamedTuple):
    """What one step of training showed the label party of a partner whose bottom model is one linear layer.

    Attributes:
        ids: Record ids, ``(n,)``, int64.
        columns: What the partner's parts of the logits were multiplied with before they were opened: the label party's
            own columns and a one, ``(n, k)``, float64; ``(n, 0)``: parts were received as they are.
        received: Their sums, ``(k,)``, float64: ``columnsᵀ · parts``; or the parts themselves, ``(n,)``.
        of_all: The same sums of the parts of all partners, where these are added to ``sent`` under encryption, times
            ``part_weight``; empty where ``sent`` is all that the partner learns from.
        sent: What the label party sent of each record, after its defenses: the partner adds up its columns times that
            to the gradient of its weights, ``(n,)``, float64.
        part_weight: See ``of_all``.
        eta: The partner's learning rate, if its weights take plain gradient steps; else ``None``.
    """

    ids: Tensor
    columns: Tensor
    received: Tensor
    of_all: Tensor
    sent: Tensor
    part_weight: float
    eta: float | None


class View:
    """What one party holds and received on one crossing: everything that its attacks may use.

    Every field is copied when it is first read, for the attack that this view was lent to and for nobody else, so that
    nothing that is done to it, through numpy or ``.data`` either, reaches what is sent, what is trained or what another
    attack sees. Fields that are not read cost nothing. Tensors are detached; what crossed in half precision is shown as
    float32. ``bottom`` is no copy of the view's but the one that was made for it: the attack's own, to train and to
    change as it likes; so are ``partner_bottom``, ``partner_architecture``, ``top`` and ``whole_model``. Labels are
    never here, but those of a few records that an attacker is assumed to know.

    Args:
        party: Name of the party that looks.
        step: Number of the training step, or of the prediction batch, from 0.
        ids: Record ids of the batch, shape ``(n,)``, int64.
        seen: The fields below that this party can see now.
    """

    gradient = ViewField[Tensor]("Cut gradient as received, ``(n, width)``: of the batch's mean loss.")
    activation = ViewField[Tensor]("What the party's own bottom model put out, ``(n, width)``.")
    logits = ViewField[Tensor](
        "The model's logits, ``(n, width)``, where the party has them: nobody adds to what its bottom model put out."
    )
    columns = ViewField[Any]("The party's own columns: ``(n, d)``, or ``Columns`` where there are categorical fields.")
    weights = ViewField[Mapping[str, Tensor]]("Copies of the party's own weights, by parameter name.")
    bottom = ViewField[nn.Module](
        "A copy of the party's own bottom model, after training only; the attack may change it."
    )
    aggregated_gradient = ViewField[Tensor](
        "Gradient of a linear bottom's weight, ``(d, width)``: columnsᵀ · gradient."
    )
    known_positives = ViewField[Tensor]("Ids of the positive records that the attacker is assumed to know, ``(k,)``.")
    known_negatives = ViewField[Tensor]("Ids of the negative records that the attacker is assumed to know, ``(k,)``.")
    classes = ViewField[int | None]("Number of classes, where it is not two; ``None`` of a regression.")
    known_records = ViewField[Tensor]("Ids of the records whose labels the attacker is assumed to know, ``(j,)``.")
    known_values = ViewField[Tensor]("Their labels: classes 0 … k−1, or numbers, ``(j,)``.")
    scores = ViewField[Tensor]("Predictions as published: ``(n,)`` sigmoid or ``(n, k)`` softmax.")
    active_logits = ViewField[Tensor]("The active party's own part of the logits, ``(n,)`` or ``(n, k)``.")
    passive_weight = ViewField[Tensor]("The other party's linear weights, if assumed known: ``(d,)`` or ``(k, d)``.")
    equations = ViewField[Equations]("What a prediction tells of the other party's columns, in the unit box.")
    alphabets = ViewField[tuple[Alphabet, ...]](
        "Values of columns that have few, if assumed known; others have a range."
    )
    logit_parts = ViewField[LogitParts]("The other party's part of the logits, without its weights.")
    received_activation = ViewField[Tensor](
        "What a passive party sent of its bottom model's output, as it was received, ``(n, width)``."
    )
    auxiliary = ViewField[Auxiliary](
        "Records of the same message whose columns the attacker is assumed to know; none of them is judged. Of an "
        "evaluation or a prediction: those of training that came last, where its own records are others."
    )
    earlier_auxiliary = ViewField[Auxiliary](
        "Likewise of messages since it was called last, the latest first; none where it is called with every one."
    )
    partner_bottom = ViewField[nn.Module](
        "A copy of the other party's bottom model at this step, if assumed known; the attack may change it."
    )
    whole_model = ViewField[nn.Module](
        "A copy of the whole trained model, if assumed known: called with the view's ``columns`` and with the numeric "
        "columns of all passive parties side by side, ``(n, d)``, it returns the outputs that scores are made of, "
        "``(n, k)``; the attack may change it."
    )
    known_columns = ViewField[KnownColumns](
        "Columns of some of these records, if assumed known; the attacker is not judged by them."
    )
    losses = ViewField[Tensor]("The finished model's loss of each record with its label, ``(n,)``, float64.")
    known_members = ViewField[Tensor]("Ids of records that the attacker is assumed to know were trained on, ``(k,)``.")
    known_others = ViewField[Tensor]("Ids of records that it is assumed to know were not trained on, ``(k,)``.")
    partner_architecture = ViewField[nn.Module](
        "The same model with weights drawn anew, if its architecture alone is assumed known; the attack may change it."
    )
    top = ViewField[nn.Module](
        "A copy of the label party's own top model at this step, of the auxiliary records: takes activations of them, "
        "``(m, width)``, and returns their mean loss, ``()``, with the label party's columns and labels that they have."
    )
    packed_values = ViewField[Tensor](
        "Encrypted values that a deviating party has unpacked, ``(n,)``, NaN where it has none."
    )
    partner_steps = ViewField[tuple[PartnerStep, ...]](
        "Every step of the training as the label party saw it, of a partner with one column and a linear model."
    )
    known_rows = ViewField[KnownRows]("Records whose columns the attacker is assumed to know; none of them is judged.")

    __slots__ = ("_copies", "_ids", "_seen", "_versions", "party", "step")

    def __init__(self, *, party: str, step: int, ids: Tensor, **seen: Any) -> None:
        unknown = [name for name in seen if not isinstance(getattr(type(self), name, None), ViewField)]
        if unknown:
            raise TypeError(f"a view has no field {', '.join(sorted(unknown))}")
        self.party = party
        self.step = step
        self._ids = ids
        self._seen = seen
        self._copies: dict[str, Any] = {}
        self._versions: list[tuple[Tensor, int]] = []

    @property
    def ids(self) -> Tensor:
        """Record ids of the batch, ``(n,)``, int64."""
        ids: Tensor = self._copied("ids", self._ids)
        return ids

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that this view shows."""
        return tuple(sorted(self._seen))

    @property
    def device(self) -> torch.device:
        """Where the records of this view are."""
        return self._ids.device

    def granting(self, **known: Any) -> View:
        """Return this view with side knowledge added that the attacker is assumed to have."""
        return type(self)(party=self.party, step=self.step, ids=self._ids, **{**self._seen, **known})

    def lent(self) -> View:
        """Return the same view with copies of its own, for one attack."""
        return self.granting()

    def tensors(self) -> list[Tensor]:
        """Return the copies of all tensors that this view shows."""
        for name in ("ids", *self.fields):
            getattr(self, name)
        return [tensor for tensor, _ in self._versions]

    @property
    def written(self) -> bool:
        """Whether a copy was written to, as far as torch counts it: it counts no write through numpy or ``.data``."""
        return any(_version(tensor) != before for tensor, before in self._versions)

    def _read(self, name: str) -> Any:
        if name in self._copies:
            return self._copies[name]
        if name not in self._seen:
            raise HookError(
                f"this view has no {name}: it shows {', '.join(self.fields) or 'nothing'}; "
                f"an attack that reads {name} lists it in its `needs`"
            )
        return self._copied(name, self._seen[name])

    def _copied(self, name: str, value: Any) -> Any:
        if name not in self._copies:
            self._copies[name] = self._copy(value)
        return self._copies[name]

    def _copy(self, value: Any) -> Any:
        """Return a copy that shares no memory, all the way down; a module was copied by who made this view."""
        if isinstance(value, Tensor):
            own = value.detach().clone()
            self._versions.append((own, _version(own)))
            return own
        if isinstance(value, Mapping):
            return {key: self._copy(part) for key, part in value.items()}
        if isinstance(value, tuple):
            parts = [self._copy(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, nn.Module):
            return value
        return copy.deepcopy(value)


_FIELDS_IN_WORDS: Mapping[str, str] = {
    "gradient": "the gradient of each record",
    "aggregated_gradient": "the gradient of its own weights",
    "activation": "its own activations",
    "columns": "its own columns",
    "logits": "the model's logits, which a party has where nobody adds to its own part of them",
    "weights": "its own weights",
    "bottom": "its own half of the model",
    "known_positives": "which of a few records are positive",
    "known_negatives": "which of a few records are negative",
    "classes": "how many classes there are",
    "known_records": "of which few records it knows the labels",
    "known_values": "the labels of a few records",
    "scores": "published scores",
    "active_logits": "its own part of the logits",
    "passive_weight": "the passive party's weights",
    "equations": "what predictions tell of the partner's columns, given its weights",
    "alphabets": "which values the partner's columns can take",
    "logit_parts": "the partner's part of the logits, without its weights",
    "received_activation": "the partner's activations as they were received",
    "auxiliary": "the partner's columns of a few records of each message",
    "earlier_auxiliary": "the partner's columns of a few records of earlier messages",
    "partner_bottom": "the partner's half of the model",
    "whole_model": "the whole trained model",
    "known_columns": "the partner's columns of a few of the records that are scored",
    "losses": "the finished model's loss of each record",
    "known_members": "of a few records that they were trained on",
    "known_others": "of a few records that they were not trained on",
    "partner_architecture": "the architecture of the partner's half of the model",
    "top": "the label party's own half of the model, with the labels of a few records",
    "packed_values": "values that a party unpacks which deviates (malicious: {PARTY: packing})",
    "partner_steps": "every step of the training of a partner with one column",
    "known_rows": "the partner's columns of a few records",
}


def fields_in_words(fields: Iterable[str]) -> list[str]:
    """Return what fields of a view are, for people who have never seen one, in the order of their names.

    A field that nobody knows is called by its name.

    >>> fields_in_words({"scores", "columns"})
    ['its own columns', 'published scores']
    """
    return [_FIELDS_IN_WORDS.get(field, field) for field in sorted(fields)]


class Secrets:
    """What a sender knows while it defends a message. It stays with the sender.

    ``labels`` and ``ids`` are copied when they are first read: a defense that changes them changes neither the loss nor
    what leaks are judged by.

    Args:
        party: Name of the sender.
        step: Number of the training step, from 0.
        generator: Random generator of this hook at this cut, on the message's device. Seeded from the operating
            system's entropy unless an experiment asked for a fixed seed. A Mersenne or Philox generator is not
            cryptographic, however it is seeded. Hooks draw through the methods below: noise that is drawn from it in
            float32 can be taken off again by whoever knows what may have been sent (:mod:`splitvfl.learning.sampling`).
        keystream: Where these methods draw from if it is given, as it is unless an experiment asked for a fixed seed: a
            cipher's stream under a key from the operating system, on the CPU.
        ids: Record ids of the batch, ``(n,)``, or ``None`` when the caller gave none.
        labels: Labels of the batch, ``(n,)``, or ``None`` where the sender has none.
        label_gradients: What the message would be under every label, at the cut; ``None`` where that is not known.
        log: Receives named measurements (noise power, bounds) for the monitor.
        show: Receives the rows that a defense is about to add noise to.
        withheld: Why labels, and gradients under other labels, are not handed out; empty: they are, where known.
        run_void: Whether something voids what is promised of the whole run, so that no such figure is logged.
    """

    __slots__ = (
        "_ids",
        "_keystream",
        "_label_gradients",
        "_labels",
        "_log",
        "_own_ids",
        "_own_labels",
        "_run_void",
        "_show",
        "_withheld",
        "generator",
        "party",
        "step",
    )

    def __init__(
        self,
        *,
        party: str,
        step: int,
        generator: torch.Generator,
        keystream: Keystream | None = None,
        ids: Tensor | None = None,
        labels: Tensor | None = None,
        label_gradients: LabelGradients | None = None,
        log: Callable[[str, float], None] | None = None,
        show: Callable[[Tensor], None] | None = None,
        withheld: str = "",
        run_void: bool = False,
    ) -> None:
        self.party = party
        self.step = step
        self.generator = generator
        self._run_void = run_void
        self._keystream = keystream
        self._ids = ids
        self._labels = labels
        self._label_gradients = label_gradients
        self._own_ids: Tensor | None = None
        self._own_labels: Tensor | None = None
        self._log = log
        self._show = show
        self._withheld = withheld

    @property
    def labels(self) -> Tensor:
        """Labels of the batch, ``(n,)``.

        Raises:
            PrivacyError: If the sender has none, or a defense before this one promises something of labels that would
                not hold for a message made with them; the message must then not be sent.
        """
        if self._withheld:
            raise PrivacyError(self._withheld)
        if self._own_labels is None:
            self._own_labels = _own("labels", self._labels)
        return self._own_labels

    @property
    def has_labels(self) -> bool:
        """Whether the sender has labels that a defense may look at here."""
        return self._labels is not None and not self._withheld

    @property
    def has_ids(self) -> bool:
        """Whether the caller gave record ids."""
        return self._ids is not None

    @property
    def ids(self) -> Tensor:
        """Record ids of the batch, ``(n,)``, int64.

        Raises:
            PrivacyError: If the caller gave none.
        """
        if self._own_ids is None:
            self._own_ids = _own("record ids", self._ids)
        return self._own_ids

    @property
    def label_gradients(self) -> LabelGradients:
        """Each record's prediction, and its cut gradient under every label, before any defense of the gradient.

        For defenses with the class attribute ``needs_label_gradients = True``.

        Raises:
            PrivacyError: If it is not known, or withheld as labels are; the message must then not be sent.
        """
        if self._withheld:
            raise PrivacyError(self._withheld)
        if self._label_gradients is None:
            raise PrivacyError(
                "a defense needs what this gradient would be under other labels, and that is not known, so nothing was "
                "sent: it has to say so with the class attribute needs_label_gradients = True and to act on the "
                "gradient of a `split` exchange or a SplitModel, and labels have to be passed along: "
                "model(x, labels=y, ids=ids)"
            )
        return self._label_gradients

    def add_normal(self, message: Tensor, scale: float | Tensor) -> Tensor:
        """Return ``message + scale · N(0, 1)``, independent in every entry: how a defense adds Gaussian noise.

        Drawn and added in float64 and rounded once, to the message's dtype, so that what is sent tells of the message
        what Gaussian noise lets through, and nothing of how it was drawn. Without a fixed seed, and with one scale, it
        is discrete noise from a keystream (:mod:`splitvfl.learning.discrete_noise`).

        Args:
            message: Floating point, ``(n, …)``.
            scale: Standard deviation, at least 0: one number, or a tensor that can be expanded to the message's shape,
                ``(n, 1)`` say.

        Returns:
            A new tensor like the message.

        Raises:
            ArgumentError: If the scale is negative or not finite.

        >>> own = Secrets(party="bank", step=0, generator=torch.Generator().manual_seed(0))
        >>> own.add_normal(torch.zeros(2, 3), 0.5).dtype
        torch.float32
        """
        return add_normal(message, scale, self._source)

    def add_laplace(self, message: Tensor, scale: float) -> Tensor:
        """Return ``message + scale · Laplace(0, 1)``, independent in every entry, as :meth:`add_normal` does it.

        >>> own = Secrets(party="bank", step=0, generator=torch.Generator().manual_seed(0))
        >>> own.add_laplace(torch.zeros(2, 3), 0.5).dtype
        torch.float32
        """
        return add_laplace(message, scale, self._source)

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers in float64, for noise with a shape of its own; see :meth:`rounded`.

        >>> own = Secrets(party="bank", step=0, generator=torch.Generator().manual_seed(0))
        >>> own.normal(2, 1).dtype
        torch.float64
        """
        return standard_normal(shape, self._source).to(self.generator.device)

    def laplace(self, *shape: int) -> Tensor:
        """Return Laplace numbers of scale 1 in float64, for noise with a shape of its own; see :meth:`rounded`.

        >>> own = Secrets(party="bank", step=0, generator=torch.Generator().manual_seed(0))
        >>> own.laplace(2, 1).dtype
        torch.float64
        """
        return standard_laplace(shape, self._source).to(self.generator.device)

    def uniform(self, *shape: int) -> Tensor:
        """Return numbers uniform in [0, 1) in float64, multiples of 2^-53: ``uniform(n) < p`` tosses n coins."""
        return uniform(shape, self._source).to(self.generator.device)

    @property
    def _source(self) -> Source:
        return self.generator if self._keystream is None else self._keystream

    def rounded(self, total: Tensor, *, scale: float, like: Tensor) -> Tensor:
        """Return a sum of message and noise, computed in float64, as what is sent instead of the message.

        It is rounded, once, on a grid that no single row decides. Noise that is the same number times a vector in all
        entries of a row (noise on an axis) needs more: rounding of the *clean* row then tells which row it was, unless
        that is covered by noise of its size in every entry, or the row lies on the axis.

        Args:
            total: Message plus noise, float64; may be overwritten.
            scale: The largest standard deviation of the noise in it.
            like: The message.

        Raises:
            ArgumentError: If the total is not float64 and of the message's shape, or the scale is not finite and at
                least 0.

        >>> own = Secrets(party="bank", step=0, generator=torch.Generator().manual_seed(0))
        >>> message, axis = torch.zeros(4, 2), torch.tensor([0.6, 0.8], dtype=torch.float64)
        >>> own.rounded(message + 0.5 * own.normal(4, 1) * axis, scale=0.5, like=message).dtype
        torch.float32
        """
        if total.dtype != torch.float64 or total.shape != like.shape:
            raise ArgumentError(
                f"expected a sum in float64 of shape {tuple(like.shape)}, got {total.dtype} of shape "
                f"{tuple(total.shape)}; add `secrets.normal(...)`, which is float64, to the message"
            )
        return snap(total, largest_scale(scale)).to(like.dtype)

    def log(self, name: str, value: float, *, per: Literal["message", "run"] = "message") -> None:
        """Record one measurement of this step, such as the noise power, for the monitor.

        Args:
            name: Its name.
            value: Its value.
            per: What it is of: this message, or the whole run. Figures of a guarantee for the whole run are of the run:
                they are not recorded where something voids that.
        """
        if self._log is not None and not (self._run_void and per == "run"):
            self._log(name, value)

    def before_noise(self, rows: Tensor) -> Tensor:
        """Return rows as they are, after they have been shown to whoever compares them with what the defense claims.

        A defense that claims :class:`~splitvfl.claims.Gaussian` with a bound calls it once, with the rows that it adds
        the noise to.
        """
        if self._show is not None:
            self._show(rows.detach().clone())  # noise may be added to them in place
        return rows


def _own(what: str, known: Tensor | None) -> Tensor:
    if known is None:
        raise PrivacyError(
            f"a defense needs the {what} of this batch and has none, so nothing was sent; "
            "pass them along: model(x, labels=y, ids=ids)"
        )
    return known.detach().clone()


class Attack(Protocol):
    """Reads a :class:`View` and returns what it inferred."""

    def __call__(self, view: View, /) -> Tensor:
        """Return scores ``(n,)``, higher for "more likely positive", or an estimate of features ``(n, d)``.

        Of a partner's activations features are the columns that ``auxiliary`` has; of the columns of a categorical
        field the one with the largest estimate is the category that is answered.

        NaN means "this record is not scored" (an attack's own reference, say): it counts as a tie, in the middle. An
        attack that means "negative" returns a number. Infinite values are an error.
        """
        ...


class Defense(Protocol):
    """Changes a message before it leaves."""

    def __call__(self, message: Tensor, secrets: Secrets, /) -> Tensor:
        """Return what is sent instead: a new tensor of the message's shape, dtype and device, all finite."""
        ...


class Held:
    """What a passive party holds of one batch: all that its penalties may use besides the activation.

    Every reading of a tensor makes a copy. There are no labels, and nothing that the party received.

    Args:
        party: Name of the party.
        step: Number of the training step, from 0.
        ids: Record ids of the batch, ``(n,)``, int64.
        columns: The numeric columns as the bottom model takes them: encoded, standardised if the data are, after the
            party's transform, ``(n, d)``, float32; d may be 0.
        categories: Codes of the categorical fields, ``(n, f)``, int64 or int32; f may be 0.
        generator: The party's own, on the CPU, for what a penalty draws. A checkpoint has its state.
        distribution: What the activation was drawn from; ``None`` where the bottom draws nothing.
    """

    __slots__ = ("_categories", "_columns", "_distribution", "_ids", "generator", "party", "step")

    def __init__(
        self,
        *,
        party: str,
        step: int,
        ids: Tensor,
        columns: Tensor,
        categories: Tensor,
        generator: torch.Generator,
        distribution: Distribution | None = None,
    ) -> None:
        self.party = party
        self.step = step
        self.generator = generator
        self._distribution = distribution
        self._ids, self._columns, self._categories = ids, columns, categories

    def __getattr__(self, name: str) -> Any:
        """Say what there is, to who asks for something else."""
        raise AttributeError(
            f"a penalty has no {name}: a passive party holds its columns, categories and ids, and no labels"
        )

    @property
    def ids(self) -> Tensor:
        """Record ids of the batch, ``(n,)``, int64."""
        return self._ids.detach().clone()

    @property
    def columns(self) -> Tensor:
        """Numeric columns, ``(n, d)``, float32."""
        return self._columns.detach().clone()

    @property
    def categories(self) -> Tensor:
        """Codes of categorical fields, ``(n, f)``, int64 or int32."""
        return self._categories.detach().clone()

    @property
    def distribution(self) -> Distribution:
        """Mean and logarithm of variance of the normal draws that the activation is, ``(n, width)`` each.

        A gradient with respect to them goes back through the bottom, beside that of the activation.

        Raises:
            HookError: If the bottom draws nothing.
        """
        if self._distribution is None:
            raise HookError(f"the activation of {self.party} is no draw of a sampled layer; say so in needs")
        return self._distribution

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """The tensors of the distribution; empty where there is none."""
        return self._distribution or ()

    def with_leaves(self) -> Held:
        """Return the same, with a copy of the distribution of which gradients can be taken."""
        found = self._distribution
        leaves = found and Distribution(*(widened(part.detach()).clone().requires_grad_() for part in found))
        return self._with(self._ids, self._columns, self._categories, leaves)

    def _with(self, ids: Tensor, columns: Tensor, categories: Tensor, distribution: Distribution | None) -> Held:
        return Held(
            party=self.party,
            step=self.step,
            ids=ids,
            columns=columns,
            categories=categories,
            generator=self.generator,
            distribution=distribution,
        )

    def of(self, places: Tensor) -> Held:
        """Return the same of some records alone.

        Args:
            places: Their places in the batch, ``(m,)``, int64, on the device of the columns.
        """
        found = self._distribution
        return self._with(
            self._ids[places.to(self._ids.device)],
            self._columns.index_select(0, places),
            self._categories.index_select(0, places),
            found and Distribution(*(part.detach().index_select(0, places) for part in found)),
        )

    def some(self, count: int) -> Tensor:
        """Return the places of so many records of the batch, drawn without replacement; of all where it has no more.

        Args:
            count: How many, at least 1.

        Returns:
            ``(min(n, count),)``, int64, on the device of the columns.
        """
        records = len(self._ids)
        places = (
            torch.arange(records) if count >= records else torch.randperm(records, generator=self.generator)[:count]
        )
        return places.to(self._columns.device)


class Penalty(Protocol):
    """Says how much is wrong with an activation, as a number that falls when the bottom model does better."""

    def __call__(self, activation: Tensor, held: Held, /) -> Tensor:
        """Return the penalty, a finite number ``()``, with a graph from the activation behind it.

        It stands beside the batch's *mean* loss: it must not grow with the number of records, as a sum over them would.

        Args:
            activation: What the bottom model put out in training, before defenses, ``(n, width)``, float32 or wider.
            held: What the party holds of these records.
        """
        ...


class Weighed:
    """A penalty with its weight, for ``PassiveParty(penalties=[...])``; one that is not wrapped has weight 1.

    Args:
        penalty: The penalty.
        weight: What its gradient is multiplied by, in units of the loss per unit of the penalty, at least 0.
        warm_up_steps: In how many steps the weight rises to that, in a straight line from weight / warm_up_steps in the
            first one; 0: it is the same in all.

    Raises:
        ArgumentError: If the weight is below 0 or not finite, or the number of steps below 0.

    >>> class Size:
    ...     def __call__(self, activation, held, /):
    ...         return activation.square().mean()
    >>> rising = Weighed(Size(), 2.0, warm_up_steps=4)
    >>> [rising.at(step) for step in (0, 1, 3, 100)]
    [0.5, 1.0, 2.0, 2.0]
    """

    def __init__(self, penalty: Penalty, weight: float = 1.0, *, warm_up_steps: int = 0) -> None:
        if not 0.0 <= weight < math.inf:
            raise ArgumentError(f"weight must be finite and at least 0, got {weight}")
        if warm_up_steps < 0:
            raise ArgumentError(f"warm_up_steps must be at least 0, got {warm_up_steps}")
        self.penalty, self.weight, self.warm_up_steps = penalty, weight, warm_up_steps

    def at(self, step: int) -> float:
        """Return the weight of a step, counted from 0."""
        return self.weight * min(1.0, (step + 1) / max(1, self.warm_up_steps))


def weighed(penalty: Penalty | Weighed) -> Weighed:
    """Return a penalty with its weight."""
    return penalty if isinstance(penalty, Weighed) else Weighed(penalty)


class At:
    """A defense of the activation with the phases in which it acts, for ``Trainer(defenses=[...])``.

    A passive party sends activations in training, for evaluations and for predictions. A defense that is not wrapped
    acts in all three, each time as a copy of its own.

    Args:
        defense: A defense of the activation.
        phases: One or more of ``"training"``, ``"evaluation"`` and ``"prediction"``.

    Raises:
        ArgumentError: If the defense is made for another message, or no phase or another one is named.

    >>> class Halve:
    ...     crossing = "activation"
    ...
    ...     def __call__(self, message, secrets, /):
    ...         return message / 2
    >>> At(Halve(), "evaluation", "prediction").phases
    ('evaluation', 'prediction')
    """

    def __init__(self, defense: Defense, *phases: Phase) -> None:
        if crossing_of(defense) != "activation":
            raise ArgumentError(
                f"{hook_name(defense)} defends {crossing_of(defense)}; phases are for defenses of the activation"
            )
        self.defense = defense
        self.phases = checked_phases(phases)


def placed(defense: Defense | At) -> tuple[Defense, tuple[Phase, ...]]:
    """Return a defense, and the phases in which it acts."""
    return (defense.defense, defense.phases) if isinstance(defense, At) else (defense, PHASES)


def checked_phases(phases: Iterable[str]) -> tuple[Phase, ...]:
    """Return phases in the order of :data:`PHASES`, each once.

    Raises:
        ArgumentError: If there is none, or one is unknown.
    """
    named = tuple(phases)
    unknown = [phase for phase in named if phase not in PHASES]
    if unknown or not named:
        shown = repr(unknown[0]) if unknown else "none"
        raise ArgumentError(f"expected one or more of {', '.join(PHASES)}, got {shown}")
    return tuple(phase for phase in PHASES if phase in named)


def hook_name(hook: object) -> str:
    """Return a hook's name for messages, tables and logs."""
    return str(getattr(hook, "name", type(hook).__name__))


def unused(name: str, taken: Mapping[str, object]) -> str:
    """Return a name that is not taken: itself, or with a number.

    >>> unused("norm", {"norm": 0, "norm-2": 0})
    'norm-3'
    """
    label, number = name, 2
    while label in taken:
        label, number = f"{name}-{number}", number + 1
    return label


def needs_of(attack: object) -> frozenset[str]:
    """Return the names of the view fields that an attack reads."""
    return frozenset(getattr(attack, "needs", ("gradient",)))


def reads_messages(attack: object) -> bool:
    """Return whether an attack reads anything that its party received; if not, it is a baseline, and no leak."""
    return not needs_of(attack) <= OWN


def held_by(penalty: object) -> frozenset[str]:
    """Return the names of what a party has to hold for a penalty.

    Raises:
        HookError: If it needs anything else than a passive party can hold.
    """
    needs = frozenset(getattr(penalty, "needs", ("columns",)))
    if needs <= HELD:
        return needs
    raise HookError(
        f"penalty {hook_name(penalty)} needs {', '.join(sorted(needs - HELD))}, which its party does not hold: needs "
        f"may name {', '.join(sorted(HELD))}; activation and ids are always there, labels never"
    )


def target_of(attack: object) -> Target:
    """Return what an attack infers: ``"labels"``, ``"features"`` or ``"members"``."""
    target = getattr(attack, "target", "labels")
    for known in TARGETS:
        if target == known:
            return known
    raise HookError(f"{hook_name(attack)}: target must be 'labels', 'features' or 'members', got {target!r}")


def needs_label_gradients(defense: object) -> bool:
    """Return whether a defense reads what a message would be under every label."""
    return _truth(defense, "needs_label_gradients")


def scope_of(hook: object) -> Scope:
    """Return on what of a message a hook has to act: ``"batch"`` unless it says ``"row"`` of its own ``__call__``.

    Raises:
        HookError: If it says anything else; or ``"row"`` where it needs gradients under every label, which are known of
            a whole batch, or looks at some records of a batch, which each worker would draw of its part.
    """
    said = getattr(hook, "scope", "batch") if _says_itself(hook, "scope") else "batch"
    if said == "batch":
        return "batch"
    if said != "row":
        raise HookError(f"{hook_name(hook)}: scope must be 'batch' or 'row', got {said!r}")
    if needs_label_gradients(hook):
        raise HookError(
            f"{hook_name(hook)}: scope is 'row', and it needs gradients under every label, which are known of a "
            "whole batch: leave scope out"
        )
    if most_records_of(hook) is not None:
        raise HookError(
            f"{hook_name(hook)}: scope is 'row', and most_records has it look at some records, of which each of "
            "several workers would take as many: leave one of the two out"
        )
    return "row"


def _says_itself(hook: object, attribute: str) -> bool:
    """Return whether an attribute is about a hook's own ``__call__``, not one of a class above or of what it wraps."""
    if attribute in getattr(hook, "__dict__", {}):
        return True
    author = next((base for base in type(hook).__mro__ if {attribute, "__call__"} & vars(base).keys()), object)
    return attribute in vars(author)


def soft_classes_of(defense: object) -> int | None:
    """Return for how many classes a label defense answers one number each; ``None`` where it answers one in all."""
    return getattr(defense, "soft_classes", None) if crossing_of(defense) == "labels" else None


def resolution_of(defense: object) -> float | None:
    """Return the number whose multiples a score defense publishes; ``None`` where it does something else."""
    return getattr(defense, "resolution", None) if crossing_of(defense) == "scores" else None


def most_records_of(hook: object) -> int | None:
    """Return of how many records a reader of activations is asked for estimates at most, or a penalty looks at.

    Returns:
        The number; ``None``: all of a message.

    Raises:
        HookError: If it says anything but a whole number of at least 1.
    """
    most = getattr(hook, "most_records", None)
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise HookError(f"{hook_name(hook)}: most_records must be a whole number of at least 1, got {most!r}")
    return most


def known_rows_of(attack: object) -> int:
    """Return of how many records a feature attack is assumed to know the columns.

    Raises:
        HookError: If it needs some, and says of no whole number of at least 1.
    """
    if "known_rows" not in needs_of(attack):
        return 0
    count = getattr(attack, "known_rows", None)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise HookError(f"{hook_name(attack)}: known_rows must be a whole number of at least 1, got {count!r}")
    return count


def seat_of(attack: object) -> Seat:
    """Return which party looks.

    Raises:
        HookError: If there is no such seat, or it is not one for what the attack seeks.
    """
    fitting: Seat = "passive" if target_of(attack) == "labels" else "active"
    seat = getattr(attack, "seat", fitting)
    if seat != fitting:
        raise HookError(
            f"{hook_name(attack)}: seat must be {fitting!r} where target is {target_of(attack)!r}, got {seat!r}"
        )
    return fitting


def knows_weights(attack: object) -> bool:
    """Return whether an attack on features assumes the partner's weights to be known.

    Raises:
        HookError: If it says something else than whether it does.
    """
    if not hasattr(attack, "weights_known"):
        return bool(needs_of(attack) & {"equations", "passive_weight", "partner_bottom", "whole_model"})
    return _truth(attack, "weights_known")


def reads_activations(attack: object) -> bool:
    """Return whether an attack on features is called with every activation that the label party receives."""
    return target_of(attack) == "features" and "received_activation" in needs_of(attack)


def reads_whole_model(attack: object) -> bool:
    """Return whether an attack on features is run on scores of predictions by who knows the whole trained model."""
    return target_of(attack) == "features" and "whole_model" in needs_of(attack)


def reads_steps(attack: object) -> bool:
    """Return whether an attack on features is run, after training, on all its steps as the label party saw them."""
    return target_of(attack) == "features" and "partner_steps" in needs_of(attack)


def known_share_of(attack: object) -> float:
    """Return of which share of the training records an attack is assumed to know the columns.

    Raises:
        HookError: If it needs some, and says of no share between 0 and 1.
    """
    share = getattr(attack, "known_share", None)
    if not isinstance(share, float) or not 0.0 < share < 1.0:
        raise HookError(f"{hook_name(attack)}: known_share must be above 0 and below 1, got {share!r}")
    return share


def is_sampled(attack: object) -> bool:
    """Return whether it is enough to call an attack with some of the messages, where these are large."""
    return _truth(attack, "sampled")


def reads_jointly(attack: object) -> bool:
    """Return whether columns of the label party may stand beside each activation that an attack reads.

    It regresses a partner's columns on whatever is received of known records.
    """
    return _truth(attack, "joint")


def tasks_of(attack: object) -> frozenset[str]:
    """Return the tasks whose labels an attack reads."""
    return frozenset(getattr(attack, "tasks", ("binary",)))


def refusal_of(attack: object, task: str) -> str:
    """Return why a label attack does not read the labels of a task; empty if it does."""
    if task in tasks_of(attack):
        return ""
    reason = getattr(attack, "not_for", {}).get(task)
    return str(reason or f"reads {' or '.join(sorted(tasks_of(attack)))} labels, the task is {task}")


def is_clustering(attack: object) -> bool:
    """Return whether an attack's columns of scores are classes of unknown names."""
    return _truth(attack, "clusters")


def classes_of(view: View) -> int | None:
    """Return the number of classes that a view is of; ``None`` of a regression."""
    return view.classes if "classes" in view.fields else 2


def known_labels_of(view: View) -> tuple[Tensor, Tensor]:
    """Return the records whose labels an attacker knows, ids ``(j,)`` int64, and these labels, ``(j,)``.

    Of two classes they are put together from the known positives and negatives.
    """
    if "known_records" in view.fields:
        return view.known_records, view.known_values
    positives, negatives = view.known_positives, view.known_negatives
    labels = torch.cat([torch.ones_like(positives), torch.zeros_like(negatives)])
    return torch.cat([positives, negatives]), labels


def is_signed(attack: object) -> bool:
    """Return whether the sign of a score is the label that an attack infers (0 or NaN: none), not its rank alone."""
    return _truth(attack, "signed")


def is_cumulative(attack: object) -> bool:
    """Return whether a score is of all messages of its record so far, so that its last one is that of the run."""
    return _truth(attack, "cumulative")


def _truth(hook: object, attribute: str) -> bool:
    """Return what a hook says of itself with an attribute; :class:`HookError` if that is no truth value."""
    said = getattr(hook, attribute, False)
    if not isinstance(said, bool):
        raise HookError(f"{hook_name(hook)}: {attribute} must be true or false, got {said!r}")
    return said


def note_of(attack: object) -> str:
    """Return what is to be known beside an attack's figures, in a sentence; empty for nothing."""
    return str(getattr(attack, "note", ""))


def explanations_of(attack: object) -> dict[str, str]:
    """Return what an attack says that it does, by its name and by those that settings give it."""
    return {hook_name(attack): str(getattr(attack, "explanation", "")), **getattr(attack, "other_names", {})}


def weaknesses_of(defense: object) -> Mapping[str, str]:
    """Return what is to be said where an attack reads labels behind a defense, by the attack's name."""
    weaknesses: Mapping[str, str] = getattr(defense, "weaknesses", {})
    return weaknesses


def moment_of(attack: object) -> Moment:
    """Return when a label attack is called: at ``"every-step"``, or ``"after-training"``."""
    moment = getattr(attack, "when", "every-step")
    if moment not in ("every-step", "after-training"):
        raise HookError(f"{hook_name(attack)}: when must be 'every-step' or 'after-training', got {moment!r}")
    return "after-training" if moment == "after-training" else "every-step"


def crossing_of(defense: object) -> Crossing:
    """Return which message a defense changes."""
    crossing = getattr(defense, "crossing", "gradient")
    for known in CROSSINGS:
        if crossing == known:
            return known
    raise HookError(f"{hook_name(defense)}: crossing must be one of {', '.join(CROSSINGS)}, got {crossing!r}")


def record_loss_of(defense: object) -> RecordLoss | None:
    """Return what a label defense computes each record's loss with; ``None``: the task's loss.

    Raises:
        HookError: If it cannot be called, or the defense is not one of labels.
    """
    own: RecordLoss | None = getattr(defense, "record_loss", None)
    if own is None:
        return None
    if crossing_of(defense) != "labels":
        raise HookError(f"{hook_name(defense)}: record_loss is for defenses of labels, not of {crossing_of(defense)}")
    if not callable(own):
        raise HookError(f"{hook_name(defense)}: record_loss must be a method of outputs and targets, got {own!r}")
    return own


def notes_of(defense: object) -> tuple[str, ...]:
    """Return what a defense wants said beside the figures of a run.

    Raises:
        HookError: If that is no tuple of sentences.
    """
    notes = getattr(defense, "notes", ())
    if not isinstance(notes, tuple) or not all(isinstance(note, str) for note in notes):
        raise HookError(f"{hook_name(defense)}: notes must be a tuple of sentences, got {notes!r}")
    return notes


def shifts_scores_of(hook: object) -> str:
    """Return in a sentence why scores are no probabilities of the labels with a hook, or nothing.

    Raises:
        HookError: If what it says is no text.
    """
    said = getattr(hook, "shifts_scores", None)
    if said is None:
        unsaid = crossing_of(hook) in ("labels", "scores")
        return f"{hook_name(hook)}: does not say whether scores are still probabilities" if unsaid else ""
    if not isinstance(said, str):
        raise HookError(f"{hook_name(hook)}: shifts_scores must be a sentence, or empty, got {said!r}")
    return f"{hook_name(hook)}: {said}" if said else ""


def running_totals_of(defense: object) -> frozenset[str]:
    """Return the names of what a defense logs that are totals so far."""
    return frozenset(getattr(defense, "running_totals", ()))


@contextmanager
def blaming(hook: object, where: str) -> Iterator[None]:
    """Name a hook in what it raises within a block.

    Args:
        hook: The hook.
        where: What to call it, and what it was doing.

    Raises:
        HookError: In place of any exception, but splitvfl's own and want of memory on a GPU: these keep their type, and
            get a note.
    """
    try:
        yield
    except (SplitVFLError, torch.OutOfMemoryError) as error:
        error.add_note(f"raised in {where}")
        raise
    except Exception as error:  # a user's class may fail in any way
        said = f": {error}" if str(error) else ""
        raise HookError(f"{where} raised {type(error).__name__}{said}{_line_of(hook, error)}") from error


def _line_of(hook: object, error: Exception) -> str:
    """Return where in the hook's own file an exception came from."""
    file = getattr(sys.modules.get(type(hook).__module__), "__file__", None)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" ({Path(file).name}, line {lines[-1]})" if file and lines else ""


def call_record_loss(defense: object, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of the losses that a label defense computes, with a graph behind it.

    Args:
        defense: A label defense with a ``record_loss``.
        outputs: What the top model put out, ``(n, m)``.
        targets: What the defense returned in place of the labels, ``(n,)``.

    Raises:
        HookError: If it raised, or returned anything but one loss per record.
    """
    own = record_loss_of(defense)
    assert own is not None, "asked of a defense that leaves the loss to the task"
    with blaming(defense, f"record_loss of defense {hook_name(defense)}"):
        losses = own(outputs, targets)
    rows = len(outputs)
    if not isinstance(losses, Tensor) or losses.shape != (rows,):
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise HookError(f"{hook_name(defense)}: record_loss must return a loss for each record, ({rows},), got {shape}")
    return losses.mean()


def call_attack(attack: Attack, view: View) -> Tensor:
    """Run an attack on copies of its own, and check what it returned.

    Whatever the attack does to what it reads, nobody else sees it: not the party, not the attacks after it. A write
    that torch counts is an error all the same, as the attack would go on with changed numbers; one through numpy or
    ``.data`` is not noticed.

    Returns:
        Scores ``(n,)`` of a label attack, or ``(n, k)`` of k classes, NaN where a record is not scored; the estimate of
        a feature attack.

    Raises:
        HookError: If the attack raised, torch has counted a write to a tensor of the view, or it returned anything but
            a dense tensor of ``n`` rows of real numbers, none of them infinite. The message names the attack.
    """
    name = hook_name(attack)
    lent = view.lent()
    with torch.no_grad(), without_autocast(view.device), blaming(attack, f"attack {name} at step {view.step}"):
        scores = attack(lent)
    if lent.written:
        raise HookError(f"attack {name} changed a tensor of its view in place; observers only look: clone it first")
    rows = view._ids.shape[0]
    if not isinstance(scores, Tensor):
        raise HookError(f"attack {name}: expected a tensor of {rows} scores, got {type(scores).__name__}")
    if unfit := _no_real_numbers(scores):
        raise HookError(f"attack {name}: {unfit}")
    wrong, wanted = False, f"({rows}, d)"
    if target_of(attack) == "labels":
        classes = view._seen.get("classes")
        wrong = scores.dim() != 1 and (classes is None or scores.shape[1:] != (classes,))
        wanted = f"({rows},)" if classes is None else f"({rows},) or ({rows}, {classes})"
    if scores.shape[:1] != (rows,) or wrong:
        raise HookError(f"attack {name}: expected shape {wanted}, got {tuple(scores.shape)}")
    if not all_finite(scores) and torch.isinf(scores).any():
        raise HookError(f"attack {name} returned an infinite value at step {view.step}")
    return scores


def revises(attack: object) -> bool:
    """Return whether an attack gives all records new scores when figures of the run are read.

    Raises:
        HookError: If it does, and its scores are not of all that came of a record.
    """
    if getattr(attack, "revised", None) is None:
        return False
    if not is_cumulative(attack):
        raise HookError(f"{hook_name(attack)}: revised() is for attacks with cumulative = True, and this one has not")
    return True


def call_revised(attack: Any, classes: int | None) -> tuple[Tensor, Tensor]:
    """Ask an attack what it makes of each record by all that has come, and check what it returned.

    Args:
        attack: One that :func:`revises` its scores.
        classes: Number of classes of the labels; ``None`` for numbers.

    Returns:
        Ids ``(m,)``, and scores ``(m,)`` or, of k classes, ``(m, k)``; NaN where a record is not scored.

    Raises:
        HookError: If it raised, or returned anything else. The message names the attack.
    """
    where = f"revised() of attack {hook_name(attack)}"
    with torch.no_grad(), blaming(attack, where):
        found = attack.revised()
    if not isinstance(found, tuple) or len(found) != 2 or not all(isinstance(part, Tensor) for part in found):
        raise HookError(f"{where}: expected a pair of tensors, ids and scores, got {type(found).__name__}")
    ids, scores = found
    if unfit := _no_real_numbers(scores):
        raise HookError(f"{where}: {unfit}")
    shapes = [(ids.numel(),)] if classes in (2, None) else [(ids.numel(),), (ids.numel(), classes)]
    if ids.dim() != 1 or ids.dtype != torch.int64 or tuple(scores.shape) not in shapes:
        wanted = " or ".join(f"scores {shape}" for shape in shapes)
        raise HookError(
            f"{where}: expected ids (m,), int64, and {wanted}, got {ids.dtype} {tuple(ids.shape)} and "
            f"{tuple(scores.shape)}"
        )
    if torch.isinf(scores).any():
        raise HookError(f"{where}: a score is infinite; expected finite numbers, and NaN where there is none")
    return ids, scores


def _not_dense(found: Tensor) -> str:
    """Return why a tensor has not one number in each place; empty where it has."""
    if found.is_nested:
        return "expected a tensor with rows of one length, got a nested one"
    if found.layout != torch.strided:
        return f"expected a dense tensor, got {str(found.layout).removeprefix('torch.')}; return it with to_dense()"
    return ""


def _no_real_numbers(found: Tensor) -> str:
    """Return why a tensor cannot be taken as one real number in each place; empty where it can."""
    if unfit := _not_dense(found):
        return unfit
    if found.device.type == "meta":
        return "expected numbers, got a tensor on torch's meta device, which has a shape alone"
    if found.is_complex():
        return f"expected real numbers, got {found.dtype}; return the part or the size that is meant"
    return ""


def call_defense(defense: Defense, message: Tensor, secrets: Secrets) -> Tensor:
    """Run a defense on a copy of the message, and check what it wants to send.

    The message itself, which the sender's own model and the auditor go on with, stays as it was whatever the defense
    does to its copy.

    Raises:
        HookError: If the defense raised, torch has counted a write to the message that it was given, or it returned
            another shape, dtype, device or a value that is not finite. The message names the defense.
    """
    own = message.detach().clone()
    before = _version(own)
    where = f"defense {hook_name(defense)} at step {secrets.step}"
    with torch.no_grad(), without_autocast(message.device), blaming(defense, where):
        sent = defense(own, secrets)
    if _version(own) != before:
        raise HookError(f"{where} changed the message in place; return a new tensor")
    if not isinstance(sent, Tensor):
        raise HookError(f"{where}: expected a tensor, got {type(sent).__name__}")
    if unfit := _not_dense(sent):
        raise HookError(f"{where}: {unfit}")
    soft = soft_classes_of(defense)
    shape = message.shape if soft is None else (*message.shape, soft)
    if sent.shape != shape:
        raise HookError(f"{where}: expected shape {tuple(shape)}, got {tuple(sent.shape)}")
    if sent.dtype != message.dtype and (soft is None or not sent.is_floating_point()):
        raise HookError(f"{where}: expected dtype {message.dtype}, got {sent.dtype}")
    if sent.device != message.device:
        raise HookError(f"{where}: expected device {message.device}, got {sent.device}")
    if not all_finite(sent):
        raise HookError(f"{where} wants to send NaN or infinite values; nothing was sent")
    return sent


class Penalised(NamedTuple):
    """What a penalty says of a batch.

    Attributes:
        value: The number.
        places: Places in the batch of the records that it looked at, ``(m,)``, each once; ``None``: of all of them.
        gradient: Its gradient with respect to their activations, ``(m, width)``.
        by_distribution: Its gradients with respect to mean and logarithm of variance of what the activations were drawn
            from, likewise; empty where they are no draws.
    """

    value: float
    places: Tensor | None
    gradient: Tensor
    by_distribution: tuple[Tensor, ...] = ()

    def added_to(self, total: Tensor, weight: float = 1.0) -> Tensor:
        """Return a gradient of the whole batch, ``(n, width)``, with so many times this one on top: a new tensor."""
        return self._added(total, self.gradient, weight)

    def added_to_distribution(self, totals: Sequence[Tensor], weight: float) -> list[Tensor]:
        """Return the same of the gradients with respect to mean and logarithm of variance."""
        return [self._added(total, own, weight) for total, own in zip(totals, self.by_distribution, strict=True)]

    def _added(self, total: Tensor, gradient: Tensor, weight: float) -> Tensor:
        if self.places is None:
            return torch.add(total, gradient, alpha=weight)
        return total.index_add(0, self.places, gradient, alpha=weight)


def call_penalty(penalty: Penalty, activation: Tensor, held: Held) -> tuple[float, Tensor]:
    """Return a penalty, and its gradient with respect to the activation alone: :func:`penalise`, for a whole batch.

    Args:
        penalty: The penalty.
        activation: What the bottom put out, ``(n, width)``; of half precision, the penalty is given float32.
        held: What the party holds.

    Returns:
        The number, and ``(n, width)`` in the dtype that the penalty was given; 0 for records that it did not look at.

    Raises:
        HookError: As :func:`penalise`.
    """
    found = penalise(penalty, activation, held)
    return found.value, found.added_to(torch.zeros_like(activation, dtype=found.gradient.dtype))


def penalise(penalty: Penalty, activation: Tensor, held: Held) -> Penalised:
    """Return a penalty, and its gradient with respect to the activations of the records that it looks at.

    It gets a copy of the activation, and of what that was drawn from: whatever it does, neither what was sent nor the
    bottom's graph changes. Weights of its own are its own to train; the gradient here is of these alone.

    Args:
        penalty: The penalty.
        activation: What the bottom put out, ``(n, width)``; of half precision, the penalty is given float32.
        held: What the party holds.

    Returns:
        The number, and its gradient in the dtype that the penalty was given.

    Raises:
        HookError: If it raised, returned anything but one finite number, or one that does not follow from the
            activation, or its gradient is not finite. The message names the penalty.
    """
    own, held, places = _looked_at(penalty, activation.detach(), held)
    where = f"penalty {hook_name(penalty)} at step {held.step}"
    with torch.enable_grad(), without_autocast(own.device), blaming(penalty, where):
        value = penalty(own, held)
    _check_number(value, where)
    leaves = (own, *held.leaves)
    with blaming(penalty, f"{where}, in its backward pass,"):
        found = torch.autograd.grad(value, leaves, allow_unused=True)
    if all(gradient is None for gradient in found):
        raise HookError(f"{where}: {_NO_GRADIENT}")
    gradients = [
        torch.zeros_like(leaf) if gradient is None else gradient for leaf, gradient in zip(leaves, found, strict=True)
    ]
    if not all_finite_together(gradients):
        raise HookError(
            f"{where}: its gradient with respect to the activation holds NaN or infinite values, and nothing was "
            "learned from it: a square root or a norm of zero, perhaps; add a small number below the root"
        )
    return Penalised(value.item(), places, gradients[0], tuple(gradients[1:]))


def _looked_at(penalty: Penalty, activation: Tensor, held: Held) -> tuple[Tensor, Held, Tensor | None]:
    """Return the activation that a penalty is given, what goes with it, and the places of its records."""
    most = most_records_of(penalty)
    if most is None or most >= len(activation):
        return widened(activation).clone().requires_grad_(), held.with_leaves(), None
    # Nothing is done with all records: a few passes over a large batch would cost as much as the penalty.
    places = held.some(most)
    return widened(activation.index_select(0, places)).requires_grad_(), held.of(places).with_leaves(), places


_NO_GRADIENT = (
    "it does not follow from the activation, so that it would change nothing: compute it from the activation that it "
    "is given, without detach(), numpy or no_grad()"
)


def _check_number(value: object, where: str) -> None:
    if not isinstance(value, Tensor):
        raise HookError(f"{where}: expected one number as a tensor (), got {type(value).__name__}")
    if value.shape != () or not value.is_floating_point():
        raise HookError(
            f"{where}: expected one floating-point number, a tensor of shape (), got {value.dtype} of shape "
            f"{tuple(value.shape)}; of a number for each record return the mean"
        )
    if not value.requires_grad:
        raise HookError(f"{where}: {_NO_GRADIENT}")
    if not all_finite(value):
        raise HookError(f"{where} is {value.item()}, and nothing was learned from it; expected a finite number")


def _version(tensor: Tensor) -> int:
    """Return a count that every write raises which torch sees; it keeps none for tensors made in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


def all_finite(tensor: Tensor) -> bool:
    """Return whether every entry is finite; a sum decides unless it overflows."""
    if tensor.numel() == 0 or not tensor.is_floating_point():
        return True
    return math.isfinite(tensor.sum().item()) or bool(torch.isfinite(tensor).all())


def all_finite_together(tensors: Iterable[Tensor]) -> bool:
    """Return whether every entry of several tensors on one device is finite; of sparse ones, those that they hold."""
    held = [tensor._values() if tensor.is_sparse else tensor for tensor in tensors]
    # One number is read, not one for each tensor: on a GPU every reading waits for all work before it.
    sums = [values.sum() for values in held if values.is_floating_point()]
    return not sums or math.isfinite(torch.stack(sums).sum().item()) or all(map(all_finite, held))


BATCH_MIXING = (nn.modules.batchnorm._BatchNorm,)


def batch_mixing_layer(module: nn.Module) -> str | None:
    """Return the name of a layer through which one record changes another's activation, if there is one."""
    for name, layer in module.named_modules():
        if isinstance(layer, BATCH_MIXING):
            return f"{name or 'the model'} ({type(layer).__name__})"
    return None
