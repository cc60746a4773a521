"""The defenses of one kind of message at its sender: in order, each with a generator of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from splitvfl.claims import (
    LABEL_CLAIMS,
    Claim,
    GaussianDP,
    Guarantee,
    RowBound,
    RunPlan,
    broken,
    claims_of,
    guarantee_of,
    in_a_clause,
    promises_of_labels,
    row_bound,
    told,
    unchecked,
)
from splitvfl.errors import ArgumentError, HookError, PrivacyError
from splitvfl.hooks import (
    PHASES,
    Crossing,
    Defense,
    Phase,
    Scope,
    Secrets,
    blaming,
    call_defense,
    call_record_loss,
    checked_phases,
    crossing_of,
    hook_name,
    needs_label_gradients,
    record_loss_of,
    scope_of,
    unused,
)
from splitvfl.leakage.judging import Handle
from splitvfl.learning.discrete_noise import Keystream
from splitvfl.learning.label_gradients import Drawn, LabelGradients
from splitvfl.learning.precision import widened
from splitvfl.learning.randomness import derive_seed, entropic_generator
from splitvfl.learning.sampling import drawing_device
from splitvfl.system.forks import forks
from splitvfl.system.pickling import NotPickled
from splitvfl.team.team import Alone, Team

KEEP_STATE = (
    "what hooks remember is not written to a file that anybody may read: keep state_dict(), load it into a new one, "
    "and attach them there"
)

# Of a defense that is attached without a seed, before it has drawn anything.
_NOTHING_DRAWN: Mapping[str, Any] = MappingProxyType(
    {"_generator": None, "_saved": None, "_keystream": None, "_goes_on_without": False}
)


class _Attached:
    """One defense with its generator and its name in the logs.

    Without a seed, nothing goes on with its noise but itself, and whoever loads its state: a copy, an unpickled one and
    a forked child draw noise of their own. The same on two messages would tell both.
    """

    def __init__(self, defense: Defense, label: str, seed: int | None) -> None:
        self.defense = defense
        self.label = label
        # Asked now: what it answers later, when its settings may have changed, would be another promise.
        self.claims = claims_of(defense)
        self.scope = scope_of(defense)
        self.needs_label_gradients = needs_label_gradients(defense)
        self.hides_labels = any(isinstance(claim, LABEL_CLAIMS) for claim in self.claims)
        self._seed = seed
        self._generator: torch.Generator | None = None
        self._saved: Tensor | None = None
        self._keystream: Keystream | None = None
        self._goes_on_without = False
        self._forks = forks()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy has, and an unpickled one."""
        return {**vars(self), **({} if self._seed is not None else _NOTHING_DRAWN)}

    def _leave_to_the_parent(self) -> None:
        """In a forked child, forget what the parent draws from."""
        if self._seed is None and self._forks != forks():
            vars(self).update(_NOTHING_DRAWN)
        self._forks = forks()

    def keystream(self) -> Keystream | None:
        """Return where the noise comes from unless it has a seed: a stream whose key nobody else has."""
        self._leave_to_the_parent()
        if self._keystream is None and self._seed is None and not self._goes_on_without:
            self._keystream = Keystream()
        return self._keystream

    def generator(self, device: torch.device, worker: int = 0) -> torch.Generator:
        """Return the generator of one worker: of one seed each has another, worker 0 that of one process.

        The same noise on two rows of a step could be subtracted.
        """
        self._leave_to_the_parent()
        device = drawing_device(device)
        if self._generator is None or self._generator.device.type != device.type:
            if self._saved is not None:
                self._generator = torch.Generator(device)
                self._generator.set_state(self._saved)
            elif self._seed is None:
                self._generator = entropic_generator(device)
            else:
                seed = derive_seed(self._seed, "worker", worker) if worker else self._seed
                self._generator = torch.Generator(device).manual_seed(seed)
        return self._generator

    def state_dict(self) -> dict[str, Any]:
        self._leave_to_the_parent()
        state: dict[str, Any] = {
            "seed": self._seed,
            "generator": self._saved if self._generator is None else self._generator.get_state(),
            "keystream": None if self._keystream is None else self._keystream.state(),
        }
        if hasattr(self.defense, "state_dict"):
            state["defense"] = self.defense.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seed, self._saved, self._generator = state["seed"], state["generator"], None
        self._forks = forks()
        stream = state.get("keystream")
        self._keystream = None if stream is None else Keystream.from_state(stream)
        # A state of before there were keystreams: with a new one, each time that a run goes back to it would draw other
        # noise for the same messages, and who breaks links could take the mean.
        self._goes_on_without = stream is None and self._saved is not None
        if "defense" in state and hasattr(self.defense, "load_state_dict"):
            self.defense.load_state_dict(state["defense"])


class OneDraw:
    """What defenses that draw once for all passive parties have sent in one step, to whom it was due first."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[tuple[Claim, ...], Tensor, Tensor, dict[str, float]]] = {}

    def of(
        self, attached: _Attached, message: Tensor, draw: Callable[[], Tensor], measurements: dict[str, float]
    ) -> Tensor:
        """Return what a defense sends for a message: as it was drawn for the first party.

        Args:
            attached: The defense.
            message: What it is given.
            draw: Lets it draw.
            measurements: What was logged at this cut. It gets what the defense logged where it drew: what was spent
                there was spent here.

        Raises:
            PrivacyError: If the first party's message was another, or its defense claims something else.
        """
        label = attached.label
        if label not in self._first:
            sent = draw()
            logged = {name: value for name, value in measurements.items() if name.startswith(f"{label}/")}
            self._first[label] = attached.claims, message.detach().clone(), sent, logged
            return sent.clone()
        claims, first, sent, logged = self._first[label]
        if claims != attached.claims:
            raise PrivacyError(
                f"{label} draws its noise once for all passive parties, and claims different things for them, so that "
                "one of the claims would be false; nothing was sent. Give every cut the same"
            )
        if first.shape != message.shape or not torch.equal(first, message):
            raise PrivacyError(
                f"{label} draws its noise once for all passive parties, and they are not due the same rows, so that "
                "parties that put theirs together would have several releases of a record; nothing was sent. Take "
                "model logistic-regression, and no noise of one party's own before it"
            )
        measurements.update(logged)
        return sent.clone()


class DefenseChain(NotPickled):
    """Defenses of one crossing, applied in the order in which they were attached.

    Args:
        crossing: Which message they change.
        party: The sender.

    Attributes:
        team: The workers of the sender, each with a part of every message.
        run_void: Whether something voids what its defenses promise of the whole run: they log no figure of it then.
    """

    def __init__(self, crossing: Crossing, party: str) -> None:
        self.crossing: Crossing = crossing
        self.party = party
        self.team: Team = Alone()
        self.measurements: dict[str, float] = {}
        self.run_void = False
        self._attached: list[_Attached] = []
        self._agreed: float | None = None

    def why_not_pickled(self) -> str:
        """Return why a chain with defenses is not."""
        return (
            f"defenses are attached to the {self.crossing} of {self.party}, and {KEEP_STATE}" if self._attached else ""
        )

    def __len__(self) -> int:
        return len(self._attached)

    def __iter__(self) -> Iterator[Defense]:
        return (attached.defense for attached in self._attached)

    def attach(self, defense: Defense, *, noise_seed_for_experiments: int | None = None) -> Handle:
        """Attach a defense after those already there.

        Args:
            defense: The defense; its ``crossing`` must be this chain's.
            noise_seed_for_experiments: Fixed seed of its generator. Default: its whole state comes from the operating
                system's entropy, and copies of the chain and forked children draw noise of their own. With a fixed
                seed the noise can be regenerated by anyone who knows the seed, and removed.

        Returns:
            A handle that detaches it.

        Raises:
            ArgumentError: If the defense belongs to another crossing, or the last one of labels computes its own loss.
            HookError: If it does not say as it should what it claims.
        """
        if crossing_of(defense) != self.crossing:
            raise ArgumentError(
                f"{hook_name(defense)} defends {crossing_of(defense)}; it cannot be attached to {self.crossing}"
            )
        own = self.with_own_loss
        if own is not None:
            raise ArgumentError(
                f"{hook_name(own)} computes the loss of what it answers, so that nothing can answer for labels after "
                f"it: take {hook_name(defense)} out, or attach it before"
            )
        record_loss_of(defense)  # what is no loss is refused here
        if getattr(defense, "comes_first", False) and self._attached:
            raise ArgumentError(
                f"{hook_name(defense)} is for the message as it was: what {self._attached[0].label} did to it before "
                "would be lost, or void its promise; put it first: those after it change what it sends, without labels,"
                " and take nothing from its promise"
            )
        label = unused(hook_name(defense), {attached.label: attached for attached in self._attached})
        attached = _Attached(defense, label, noise_seed_for_experiments)
        self._attached.append(attached)
        return Handle(lambda: self._attached.remove(attached))

    @property
    def scope(self) -> Scope:
        """On what they act together: on rows if each of them does, or none is there; else on whole messages."""
        return "row" if all(attached.scope == "row" for attached in self._attached) else "batch"

    @property
    def with_own_loss(self) -> Defense | None:
        """The label defense that computes the loss in place of the task, if there is one: the last."""
        last = self._attached[-1].defense if self._attached else None
        return None if last is None or record_loss_of(last) is None else last

    def loss(self, usual: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the loss of outputs and targets behind these defenses of labels.

        Args:
            usual: The task's, where none of them computes one of its own.
        """
        own = self.with_own_loss
        return usual if own is None else partial(call_record_loss, own)

    def draw_generators(self, device: torch.device) -> None:
        """Draw the generators that are drawn at first use otherwise, so that :meth:`state_dict` holds them."""
        for attached in self._attached:
            attached.generator(device, self.team.rank)
            attached.keystream()

    def promises(self, epochs: int, *, void: str = "") -> list[str]:
        """Return what the defenses promise of labels over so many epochs, in sentences, each once.

        Args:
            epochs: How often each record is used.
            void: Said in place of what is promised of a whole run; empty: that applies.
        """
        # Asked now: what a defense promises of a run it may know only since it was told how long that is.
        said = [
            f"{attached.label}: {void if void and claim.per == 'run' else claim.said(epochs)}."
            for attached in self._attached
            for claim in promises_of_labels(claims_of(attached.defense))
        ]
        return list(dict.fromkeys(said))

    def guarantees(self, *, void: tuple[str, ...] = ()) -> list[Guarantee]:
        """Return what the defenses guarantee of a record's label, each claim by itself.

        Args:
            void: What voids what they claim of a whole run, by name.
        """
        return [
            guarantee_of(claim, attached.label, void=(*void, *unchecked(attached.defense)))
            for attached in self._attached
            for claim in promises_of_labels(claims_of(attached.defense))
        ]

    def claims_in_words(self, *, void: str = "") -> list[str]:
        """Return of each defense what it claims, what that rests on and what it does not cover, as one text.

        Args:
            void: Said first of a defense that promises something of a whole run; empty: that applies.
        """
        found = [(attached.label, claims_of(attached.defense)) for attached in self._attached]
        said = [
            (label, told(claims), f"{void}. Without that: " if _voided(claims, void) else "") for label, claims in found
        ]
        return [f"{label}: {first}{one.in_full}" for label, one, first in said if one.promised]

    def claimed(self) -> str:
        """Return the names of its defenses and all that each claims, as one text: another wherever these differ."""
        return repr([(hook_name(attached.defense), repr(claims_of(attached.defense))) for attached in self._attached])

    def promised_in_short(self, *, void: str = "") -> list[str]:
        """Return of each defense in a clause what it promises: that it is nothing, too, or that it says nothing.

        Args:
            void: Said in place of what is promised of a whole run; empty: that applies.
        """
        said = []
        for attached in self._attached:
            claims = claims_of(attached.defense)
            gone = _voided(claims, void)
            left = tuple(claim for claim in claims if claim not in gone)
            clauses = [in_a_clause(left)] if left or not gone else []
            said.append(f"{attached.label}: {'; '.join([*clauses, *([void] if gone else [])])}")
        return said

    def plan_run(self, plan: RunPlan) -> None:
        """Tell the defenses of the run that begins; one that cannot keep what it promises of a run raises."""
        self.run_void = bool(plan.releases)
        for attached in self._attached:
            if hasattr(attached.defense, "plan_run"):
                attached.defense.plan_run(plan)

    def take_targets(self, values: tuple[float, ...] | None) -> None:
        """Tell the defenses which values the loss's targets can take; ``None``: that is not known."""
        for attached in self._attached:
            if hasattr(attached.defense, "take_targets"):
                attached.defense.take_targets(values)

    def target_values(self, classes: int | None) -> tuple[float, ...] | None:
        """Return the values that a target can take behind these defenses of labels; ``None`` if that is not known.

        A label defense says so with the attribute ``target_values``.

        Args:
            classes: Number of classes of the labels, which are 0, 1, and so on; ``None`` where they are none.
        """
        if self._attached:
            stated: tuple[float, ...] | None = getattr(self._attached[-1].defense, "target_values", None)
            return stated
        return None if classes is None else tuple(map(float, range(classes)))

    def row_bound(self) -> RowBound:
        """Return what is known of the rows of a message after the defenses, from what these claim."""
        return row_bound([(attached.label, attached.claims) for attached in self._attached])

    def keep_to(self, agreed: float | None) -> None:
        """Send no message from now on unless it is known that its rows are not longer, before noise that comes after.

        Args:
            agreed: Largest Euclidean norm of a row; ``None``: any.

        Raises:
            PrivacyError: If that is not known. It is asked again before every message.
        """
        self._agreed = agreed
        self._check_agreed()

    def _check_agreed(self) -> None:
        if self._agreed is None:
            return
        known = self.row_bound()
        if known.norm is None or known.norm > self._agreed:
            raise PrivacyError(
                f"expected defenses that bound each row of the {self.crossing} of {self.party} to {self._agreed:g}: "
                f"{known.why}, and nothing was sent"
            )

    def apply_together(self, part: Tensor, *, step: int, ids: Tensor, labels: Tensor | None) -> Tensor:
        """Return this worker's part of what is sent instead of the parts of all workers; of one process, :meth:`apply`.

        Worker 0 defends what all have, one behind the other, with one generator and one memory. Where all defenses act
        on rows, nothing is gathered: each worker defends its own part, with generators of its own.

        Args:
            part: This worker's part of the message, ``(n, …)``; of some workers without a row.
            step: Number of the step.
            ids: Record ids, ``(n,)``.
            labels: Labels, ``(n,)``, if the sender has any.

        Raises:
            HookError: If a defense breaks its contract, or what it claims.
            PrivacyError: If a defense lacks labels or ids, or rows are not bounded as agreed.
            TeamError: If a worker could not go on, or is gone.
        """
        team = self.team
        if team.size == 1 or self.scope == "row":
            return self.apply(part, step=step, ids=ids, labels=labels)
        self._check_agreed()
        parts, every_id = team.gather(part), team.whole(ids)
        every_label = None if labels is None else team.whole(labels)
        sent: Sequence[Tensor] | None = None
        if parts is not None:
            whole = self.apply(torch.cat(parts), step=step, ids=every_id, labels=every_label)
            sent = whole.split([len(one) for one in parts])
        return team.scatter(sent, len(part)).to(part.device)

    def apply(
        self,
        message: Tensor,
        *,
        step: int,
        ids: Tensor | None,
        labels: Tensor | None,
        label_gradients: LabelGradients | None = None,
        once: OneDraw | None = None,
    ) -> Tensor:
        """Return what is sent instead of ``message``; the message itself when no defense is attached, or it has no row.

        Half-precision messages are defended in float32 and cast back after the noise; those on a device without
        float64 are defended on the CPU. Claims are about what defenses return in float32: a row at its bound may be
        longer by a half's rounding, 1/256 of it in bfloat16, when it is cast, here or on its way (``wire``).

        Raises:
            HookError: If a defense breaks its contract, or what it claims.
            PrivacyError: If a defense lacks labels or ids, or rows are not bounded as agreed.
        """
        self._check_agreed()
        if not self._attached or not len(message):
            return message
        device = drawing_device(message.device)
        sent = widened(message).to(device)
        if device != message.device:
            ids, labels = (None if known is None else known.to(device) for known in (ids, labels))
        # Where a defense has drawn what stands for the labels, that is what all others get.
        drawn = label_gradients is not None and label_gradients.drawn is not None
        withheld = ""
        for attached in self._attached:
            known = label_gradients if attached.needs_label_gradients else None
            defended = partial(
                self._defended,
                attached,
                sent,
                step=step,
                ids=ids,
                labels=labels,
                label_gradients=known,
                withheld=withheld and f"{attached.label} {withheld}",
            )
            shared = once if getattr(attached.defense, "one_draw", False) else None
            sent = defended() if shared is None else shared.of(attached, sent, defended, self.measurements)
            if attached.hides_labels and self.crossing == "gradient" and not drawn:
                withheld = (
                    f"asks for labels behind {attached.label}, whose promise of labels would not hold for what is made "
                    "with them, so nothing was sent; take one of the two out"
                )
        if message.is_floating_point():
            sent = sent.to(message.dtype)
        return sent.to(message.device)

    def _defended(self, attached: _Attached, message: Tensor, **known: Any) -> Tensor:
        shown: list[Tensor] = []
        secrets = self._secrets(attached, message.device, show=shown.append, **known)
        before = self._attached[: self._attached.index(attached)]
        try:
            sent = call_defense(attached.defense, message, secrets)
        except ArgumentError as error:
            if self.crossing != "labels" or not before:
                raise
            raise HookError(
                f"defense {attached.label} cannot answer for what {before[-1].label} answered in place of the labels: "
                f"{error}; one of the two is enough, take the other out"
            ) from error
        complaint = broken(attached.claims, message=message, shown=shown, sent=sent)
        if complaint:
            raise HookError(
                f"defense {hook_name(attached.defense)} at step {secrets.step} {complaint}; nothing was sent"
            )
        return sent

    def _secrets(self, attached: _Attached, device: torch.device, **known: Any) -> Secrets:
        log = partial(self._log, attached.label)
        generator, keystream = attached.generator(device, self.team.rank), attached.keystream()
        return Secrets(
            party=self.party, generator=generator, keystream=keystream, log=log, run_void=self.run_void, **known
        )

    def _log(self, label: str, name: str, value: float) -> None:
        self.measurements[f"{label}/{name}"] = float(value)

    def state_dict(self) -> dict[str, Any]:
        """Return generators and running statistics. Noise can be regenerated from it: keep it to its owner."""
        return {attached.label: attached.state_dict() for attached in self._attached}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Take back what :meth:`state_dict` returned for the same defenses in the same order.

        Raises:
            ArgumentError: If the defenses differ.
        """
        labels = [attached.label for attached in self._attached]
        if list(state) != labels:
            raise ArgumentError(f"expected the state of defenses {labels}, got {list(state)}")
        for attached in self._attached:
            attached.load_state_dict(state[attached.label])


class GradientDefenses(DefenseChain):
    """Defenses of the gradient at one cut, of which one may draw what the top model and all cuts learn from.

    Args:
        party: The sender, which has the labels.
    """

    def __init__(self, party: str) -> None:
        super().__init__("gradient", party)

    @property
    def needs_label_gradients(self) -> bool:
        """Whether a defense here reads what the message would be under every label."""
        return any(attached.needs_label_gradients for attached in self._attached)

    @property
    def draws_at_output(self) -> bool:
        """Whether a defense here draws what the top model learns from."""
        return any(getattr(attached.defense, "draws_at_output", False) for attached in self._attached)

    @property
    def label_claims(self) -> tuple[GaussianDP, ...]:
        """The claims of these defenses about labels."""
        return tuple(claim for one in self._attached for claim in one.claims if isinstance(claim, GaussianDP))

    def draw(self, known: LabelGradients, *, step: int, ids: Tensor | None) -> Drawn:
        """Return what the top model and all cuts learn from in place of the labels, as a defense here draws it."""
        attached = next(one for one in self._attached if getattr(one.defense, "draws_at_output", False))
        device = known.targets.device
        ids = None if ids is None else ids.to(device)
        secrets = self._secrets(attached, device, step=step, ids=ids, label_gradients=known)
        with blaming(attached.defense, f"defense {hook_name(attached.defense)} at step {step}"):
            drawn: Drawn = attached.defense.draw(known, secrets)  # type: ignore[attr-defined]
        return drawn


class ActivationDefenses:
    """Defenses of a passive party's activation: a chain for each phase in which it sends one.

    Args:
        party: The sender.
    """

    def __init__(self, party: str) -> None:
        self._chains: dict[Phase, DefenseChain] = {phase: DefenseChain("activation", party) for phase in PHASES}

    def __getitem__(self, phase: Phase) -> DefenseChain:
        """Return the defenses of one phase."""
        return self._chains[phase]

    def attach(
        self, defense: Defense, *, at: Sequence[Phase] = PHASES, noise_seed_for_experiments: int | None = None
    ) -> Handle:
        """Attach a defense after those already there, in every phase unless some are named.

        Each phase gets a copy with a state and a generator of its own, the first one the defense itself: how often a
        run evaluates changes nothing of the noise in training.

        Args:
            defense: A defense of the activation.
            at: The phases in which it acts.
            noise_seed_for_experiments: See :meth:`DefenseChain.attach`; seeds of the other phases follow from it.

        Returns:
            A handle that detaches it everywhere.

        Raises:
            ArgumentError: If the defense belongs to another crossing, or a phase is unknown.
        """
        handles: list[Handle] = []
        for phase in checked_phases(at):
            seed = noise_seed_for_experiments
            if seed is not None and phase != "training":
                seed = derive_seed(seed, phase)
            own = copy.deepcopy(defense) if handles else defense
            handles.append(self._chains[phase].attach(own, noise_seed_for_experiments=seed))

        def detach() -> None:
            for handle in handles:
                handle.remove()

        return Handle(detach)

    def chains(self) -> dict[str, DefenseChain]:
        """Return the chains by names for a checkpoint."""
        return {f"activation/{phase}": chain for phase, chain in self._chains.items()}


def _voided(claims: Sequence[Claim], void: str) -> list[Claim]:
    """Return what is promised of labels over a whole run, where something voids it."""
    return [claim for claim in promises_of_labels(claims) if void and claim.per == "run"]
