"""Attach a defense at a party: to the message that it is for, with a generator of its own, if it is allowed there."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, assert_never

from splitvfl.claims import (
    ROW_CLAIMS,
    Guarantee,
    PureDP,
    auc_of_mu,
    claims_of,
    guarantee_of,
    not_applying,
    tightest,
    unchecked,
)
from splitvfl.cut.chain import DefenseChain
from splitvfl.cut.layer import check_top, refuse_batch_mixing
from splitvfl.errors import ConfigError, PrivacyError
from splitvfl.hooks import PHASES, Defense, Phase, crossing_of, hook_name, record_loss_of
from splitvfl.learning.losses import link_of, loss_name
from splitvfl.learning.randomness import derive_seed
from splitvfl.learning.sampled import sampled_layers
from splitvfl.party.own_part import OwnPart
from splitvfl.party.party import ActiveParty, Party, PassiveParty
from splitvfl.party.scorer import Scorer

if TYPE_CHECKING:
    from splitvfl.privacy.accounting import PrivacyBudget


def attach_defense(
    party: Party, defense: Defense, *, number: int, noise_seed: int | None, phases: Sequence[Phase] = PHASES
) -> bool:
    """Attach a defense to the messages of a party that it is for, and return whether there are any.

    Where it acts on several messages (at several cuts), each gets a copy of its own.

    Args:
        party: The sender.
        defense: The defense.
        number: Its place among the defenses of the run, for its seed.
        noise_seed: Fixed seed of all generators, for experiments; ``None``: from entropy.
        phases: Of a defense of the activation: when it acts.

    Raises:
        ConfigError: If it was made for other labels than the task's.
        PrivacyError: If it guarantees something per record, and the party's model mixes records; or promises nothing
            below the party's top model.
    """
    crossing = crossing_of(defense)
    refuse_batch_mixing((party.module,), defense)

    def seed(where: str) -> int | None:
        return None if noise_seed is None else derive_seed(noise_seed, crossing, where, number)

    if isinstance(party, PassiveParty):
        if crossing != "activation":
            return False
        party.activation.attach(defense, at=phases, noise_seed_for_experiments=seed(party.name))
        return True
    assert isinstance(party, ActiveParty)
    if crossing == "activation":
        return False
    check_labels(party, defense)
    check_loss(party, defense)
    check_top(party.top, defense)
    chains: Mapping[str, DefenseChain]
    match crossing:
        case "gradient":
            chains = {name: cut.gradient for name, cut in party.cuts.items()}
        case "labels":
            chains = {party.name: party.labels}
        case "scores":
            chains = {party.name: party.scores}
        case _:
            assert_never(crossing)
    for name, chain in chains.items():
        own = defense if len(chains) == 1 else copy.deepcopy(defense)
        chain.attach(own, noise_seed_for_experiments=seed(name))
    return bool(chains)


def attach_score_defense(scorer: Scorer, defense: Defense, *, number: int, noise_seed: int | None) -> None:
    """Attach a defense of scores where another party than the active one computes them.

    Args:
        scorer: Who computes them.
        defense: The defense.
        number: Its place among the defenses of the run, for its seed.
        noise_seed: As for :func:`attach_defense`.

    Raises:
        ConfigError: If it was made for other labels than the task's.
    """
    check_labels(scorer, defense)
    check_loss(scorer, defense)
    seed = None if noise_seed is None else derive_seed(noise_seed, "scores", scorer.name, number)
    scorer.scores.attach(defense, noise_seed_for_experiments=seed)


def check_clips(
    party: Party, *, activation: float | None, gradient: float | None, phases: Sequence[Phase] = PHASES
) -> None:
    """Hold a party to bounding what it sends as the parties have agreed; asked again before every message.

    What bounds a row is what its defenses claim (:mod:`splitvfl.claims`), in their order. A passive party's activations
    are bounded in every phase in which it sends some.

    Args:
        party: The sender, with its defenses.
        activation: Largest norm of a row of an activation before noise; ``None``: none was agreed.
        gradient: Largest norm of a row of a gradient, likewise.
        phases: Those in which the activation is sent.

    Raises:
        PrivacyError: If the defenses of a message do not claim that.
    """
    if isinstance(party, PassiveParty):
        agreed, what = activation, "activation"
        chains = {f"{party.name} sends in {phase}": party.activation[phase] for phase in phases}
    else:
        assert isinstance(party, ActiveParty)
        agreed, what = gradient, "gradient"
        chains = {f"{party.name} sends to {name}": cut.gradient for name, cut in party.cuts.items()}
    for where, chain in chains.items():
        try:
            chain.keep_to(agreed)
        except PrivacyError as error:
            raise PrivacyError(
                f"exchange.{what}_clip, of what {where}: {error}; add one that does (gaussian-ir with clip, "
                "clip-gradient with bound, or your own that claims RowNorm), behind all that do not, or agree on "
                "another bound"
            ) from error


def check_answers(party: PassiveParty) -> None:
    """Refuse defenses that cannot act on one record alone, the same each time.

    One that keeps a state answers otherwise the second time. One that claims nothing may look at what else is in the
    batch, and in a batch of one record do nothing at all.

    A model that draws what it sends would be averaged by who asks again.

    Raises:
        PrivacyError: If there is such a defense, which is named, or such a model.
    """
    if sampled_layers(party.bottom):
        raise PrivacyError(
            f"{party.name} cannot answer for single records: its model (model: sampled) draws what it sends, anew each "
            "time that a record is asked for, so that a partner could average. Score files together with `splitvfl "
            "predict`, or train a model that is not sampled"
        )
    for defense in party.activation["prediction"]:
        reason = _why_not(defense)
        if reason:
            raise PrivacyError(
                f"{party.name} cannot answer for single records behind the defense {hook_name(defense)}: {reason}. "
                "Score files together with `splitvfl predict`, or take another defense"
            )


def _why_not(defense: Defense) -> str:
    if hasattr(defense, "state_dict"):
        return "it has a state of its own, so that it would answer otherwise when a record is asked for again"
    if not any(isinstance(claim, ROW_CLAIMS) for claim in claims_of(defense)):
        return (
            "it claims nothing for a row by itself (RowNorm, Gaussian or PerRecord of splitvfl.claims), and may do "
            "nothing in a batch of one record"
        )
    return ""


def check_labels(party: ActiveParty | Scorer, defense: Defense) -> None:
    """Check that a defense is for labels such as the task's.

    Raises:
        ConfigError: If it is for others.
    """
    task, assumed = party.task, getattr(defense, "classes", None)
    if getattr(defense, "needs_binary_labels", False) and task.name != "binary":
        raise ConfigError(f"defense {hook_name(defense)} needs binary labels, the task is {task.name}")
    if assumed is not None and assumed != task.classes:
        found, advice = f"{task.classes} classes", f"classes: {task.classes}"
        if task.classes is None:
            found, advice = "no classes", getattr(defense, "for_regression", "")
        found = f"{found}; say {advice}" if advice else found
        raise ConfigError(
            f"defense {hook_name(defense)} was made for {assumed} classes, and a {task.name} task here has {found}"
        )


def check_loss(party: ActiveParty | Scorer, defense: Defense) -> None:
    """Check that a defense is for what the task's loss takes, puts out and leaves in rows.

    Under another loss a label moves a row by more, weights of a class among them, or moves the rows of others; targets
    that are right on average train something else; and scores are no probabilities.

    Raises:
        ConfigError: If it answers with other targets than labels, in which the loss is not linear; or is for
            probabilities, and scores are none.
        PrivacyError: If it is for the logistic loss, and this is another; one derived from it counts as another.
    """
    task, loss = party.task, party.task.loss
    name = loss_name(loss)
    values = getattr(defense, "target_values", None)
    answers_labels = values is not None and task.classes is not None and set(values) <= set(range(task.classes))
    if (
        crossing_of(defense) == "labels"
        and record_loss_of(defense) is None
        and not (loss.linear_in_targets or answers_labels)
    ):
        raise ConfigError(
            f"defense {hook_name(defense)} answers with targets that are right on average, and the gradient of the "
            f"{name} loss is not linear in them (nor in labels that are clipped, target_clip): training would learn "
            "something else; take another loss, or a defense of the gradient"
        )
    if getattr(defense, "needs_probabilities", False) and (task.classes is None or link_of(loss) == "identity"):
        raise ConfigError(
            f"defense {hook_name(defense)} is for scores that are probabilities of classes, and those of the {name} "
            "loss are none; take it out (rounding is for scores of all kinds)"
        )
    if getattr(defense, "needs_logistic_loss", False) and not vars(type(loss)).get("is_logistic", False):
        raise PrivacyError(
            f"{hook_name(defense)} promises something of labels below the logistic loss alone, and {party.name} trains "
            f"on {type(loss).__name__}, under which a label may move more: take model.loss or train.loss logistic, or "
            "record-gaussian, which asks each loss what a label moves"
        )


def promises_of(party: Party, epochs: int, *, own_part: OwnPart = "exact") -> list[str]:
    """Return what a party's defenses promise of labels over so many epochs, in sentences, each once.

    Args:
        party: The party.
        epochs: How often each record is used.
        own_part: What the label party's own weights learn from, as the exchange says.
    """
    void = void_of(party)
    said = list(dict.fromkeys(said for chain in party.chains().values() for said in chain.promises(epochs, void=void)))
    return [*said, *_over_a_run(party, epochs, own_part)] if isinstance(party, ActiveParty) else said


def claims_in_words(parties: Iterable[Party]) -> list[str]:
    """Return of each defense of some parties what it claims, what that rests on and does not cover, each once."""
    said = (
        line
        for party in parties
        for chain in party.chains().values()
        for line in chain.claims_in_words(void=void_of(party))
    )
    return list(dict.fromkeys(said))


def void_of(party: Party) -> str:
    """Return that a party's guarantees for the whole run do not apply, and by what; empty if they do."""
    return not_applying(party.label_releases) if isinstance(party, ActiveParty) else ""


def promised_in_short(parties: Iterable[Party], *, epochs: int, own_part: OwnPart = "exact") -> list[str]:
    """Return of each defense of some parties what it promises, of a run of so many epochs too, each once."""
    said: list[str] = []
    for party in parties:
        void = void_of(party)
        said += [line for chain in party.chains().values() for line in chain.promised_in_short(void=void)]
        if isinstance(party, ActiveParty):
            said += [line.removesuffix(".") for line in _over_a_run(party, epochs, own_part)]
    return list(dict.fromkeys(said))


def label_guarantee(
    party: ActiveParty,
    partner: str,
    *,
    epochs: int,
    own_part: OwnPart = "exact",
    account: PrivacyBudget | None = None,
) -> Guarantee | None:
    """Return the tightest guarantee of a record's label towards one partner; ``None`` without any.

    Args:
        party: The label owner.
        partner: Who receives the messages.
        epochs: How often each record is used.
        own_part: What its own weights learn from, as the exchange says.
        account: What the run spends of calculated noise; ``None``: there is none.
    """
    void = tuple(release.name for release in party.label_releases)
    gradient = party.cuts[partner].gradient
    found = [one for chain in (party.labels, gradient) for one in chain.guarantees(void=void)]
    here: dict[str, tuple[str, ...]] = {}
    for defense in gradient:
        here[hook_name(defense)] = (*here.get(hook_name(defense), ()), *unchecked(defense))
    found += [
        guarantee_of(total, name, void=(*void, *here[name]))
        for name, total in label_promises_of_run(party, epochs, own_part=own_part)
        if isinstance(total, PureDP) and name in here
    ]
    if account is not None:
        found += _accounted(account, party.name, void)
    return tightest(*found)


def _accounted(account: PrivacyBudget, owner: str, void: tuple[str, ...]) -> Iterator[Guarantee]:
    """Yield what the account of calculated noise guarantees of a label: nothing where it counts other releases too."""
    loss = account.loss(owner, relation="label")
    if loss is not None and not (loss.pure or loss.laplace or loss.distance):
        # What noise of the other label could not have led to tells everything.
        yield Guarantee(min(1.0, auc_of_mu(loss.mu) + loss.unmatched), "run", "calculated noise", void)


def label_promises_of_run(
    party: ActiveParty, epochs: int, *, own_part: OwnPart = "exact"
) -> list[tuple[str, PureDP | str]]:
    """Return what releases of residues come to over a run, by defense, or in words why nothing is said of it.

    Args:
        party: The label party.
        epochs: How often each record is used.
        own_part: What its own weights learn from, as the exchange says.
    """
    costs = {
        (hook_name(defense), claim.epsilon)
        for cut in party.cuts.values()
        for defense in cut.gradient
        for claim in claims_of(defense)
        if isinstance(claim, PureDP) and claim.unit == "label of a record"
    }
    found: list[tuple[str, PureDP | str]] = []
    for name, epsilon in sorted(costs):
        why = _without(party, name) or _uncovered(party, own_part)
        found.append((name, why or PureDP(epochs * epsilon, per="run")))
    return found


def _over_a_run(party: ActiveParty, epochs: int, own_part: OwnPart) -> Iterator[str]:
    """Say what releases of residues come to over a run, or why nothing is said of it: once for all cuts."""
    for name, total in label_promises_of_run(party, epochs, own_part=own_part):
        if isinstance(total, str):
            yield f"{name}: of the whole run nothing is promised: {total}."
        else:
            yield (
                f"{name}: all messages of the run together are {total.epsilon:.3g}-differentially private in the label "
                f"of a record, given all else: nobody tells two labels of even odds apart more often than "
                f"{total.success_bound:.3f}. Labels move the run through what is sent alone."
            )


def _without(party: ActiveParty, name: str) -> str:
    """Return why a promise of a defense that stands at some cuts only says nothing of a run; empty if all have it."""
    bare = [to for to, cut in party.cuts.items() if name not in map(hook_name, cut.gradient)]
    if not bare:
        return ""
    return f"{' and '.join(bare)} gets residues without it, and what is learned from them moves all that comes later"


def _uncovered(party: ActiveParty, own_part: OwnPart) -> str:
    """Return why a promise about one message says nothing of a run; empty if releases add up."""
    if party.label_releases:
        return void_of(party)
    learns = any(weight.requires_grad for weight in party.top.parameters())
    if own_part == "exact" and learns:
        return (
            f"{party.name} learns its own columns or intercept from exact residues, so that one label moves the later "
            "residues of every record; exchange.own_part: sent lets it learn from what is sent"
        )
    return ""
