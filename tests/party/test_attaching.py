"""Which messages a defense is attached to, and whether what was agreed on is bounded."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from splitvfl.app.assembly import Assembly
from splitvfl.app.deployment import run_party
from splitvfl.app.exchanges import task_of
from splitvfl.app.experiment import build_trainer
from splitvfl.app.records import load_data
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.defenses import ClipGradient, GaussianIR, Isotropic, MemoisedResponse, Rounding
from splitvfl.errors import ConfigError, HookError, LinkError, PrivacyError
from splitvfl.hooks import PHASES, Phase
from splitvfl.party.attaching import attach_defense, check_clips
from splitvfl.party.party import ActiveParty
from tests.builders import active_party, passive_party, same, weights
from tests.run.parties import free_ports


def active(*passives: str) -> ActiveParty:
    party = active_party(len(passives))
    for name in passives:
        party.connect(name)
    return party


@pytest.mark.parametrize(
    ("defense", "at_active", "at_passive"),
    [
        (Isotropic(ratio=1.0), {"gradient/telecom", "gradient/shop"}, set()),
        (MemoisedResponse(epsilon=1.0), {"labels"}, set()),
        (Rounding(decimals=2), {"scores"}, set()),
        (
            GaussianIR(clip=1.0, sigma=0.1),
            set(),
            {"activation/training", "activation/evaluation", "activation/prediction"},
        ),
    ],
    ids=["gradient", "labels", "scores", "activation"],
)
def test_a_defense_acts_on_the_messages_that_it_is_for_and_on_no_other(
    defense: Any, at_active: set[str], at_passive: set[str]
) -> None:
    for party, places in ((active("telecom", "shop"), at_active), (passive_party("telecom"), at_passive)):
        assert attach_defense(party, defense, number=0, noise_seed=None) == bool(places)
        assert {where for where, chain in party.chains().items() if len(chain)} == places


def test_every_cut_has_a_copy_of_its_own_unless_there_is_one() -> None:
    defense = Isotropic(ratio=1.0)
    alone, two = active("telecom"), active("telecom", "shop")
    attach_defense(alone, defense, number=0, noise_seed=None)
    attach_defense(two, defense, number=0, noise_seed=None)
    assert [*alone.cuts["telecom"].gradient] == [defense]
    copies = [next(iter(cut.gradient)) for cut in two.cuts.values()]
    assert len({id(one) for one in (*copies, defense)}) == 3


def test_agreed_bounds_are_kept_by_a_defense_of_every_message() -> None:
    bounded, passive = active("telecom", "shop"), passive_party("telecom")
    attach_defense(bounded, ClipGradient(bound=0.1), number=0, noise_seed=None)
    attach_defense(passive, GaussianIR(clip=2.0, sigma=0.1), number=0, noise_seed=None)
    for party in (bounded, passive):
        check_clips(party, activation=2.0, gradient=0.1)
        check_clips(party, activation=None, gradient=None)
    check_clips(bounded, activation=None, gradient=0.2)
    with pytest.raises(
        PrivacyError, match=r"gradient_clip, of what bank sends to telecom: .* to 0\.05: clip-.* to 0\.1"
    ):
        check_clips(bounded, activation=None, gradient=0.05)
    with pytest.raises(PrivacyError, match=r"activation_clip, of what telecom sends in training: .* to 1: .* to 2"):
        check_clips(passive, activation=1.0, gradient=None)
    bounded.connect("late")
    with pytest.raises(PrivacyError, match=r"bank sends to late: .* to 0\.1: no defense bounds them"):
        check_clips(bounded, activation=None, gradient=0.1)


@pytest.mark.parametrize("left_out", PHASES)
def test_an_activation_is_bounded_in_every_phase(left_out: Phase) -> None:
    party, kept = passive_party("telecom"), [phase for phase in PHASES if phase != left_out]
    attach_defense(party, GaussianIR(clip=2.0, sigma=0.1), number=0, noise_seed=None, phases=kept)
    with pytest.raises(PrivacyError, match=f"of what telecom sends in {left_out}: .* no defense bounds them"):
        check_clips(party, activation=2.0, gradient=None)
    attach_defense(party, GaussianIR(clip=1.0, sigma=0.1), number=1, noise_seed=None, phases=[left_out])
    check_clips(party, activation=2.0, gradient=None)


# --- from a file, in one process and over a network

HOOKS = """
from splitvfl.claims import Gaussian, RowNorm
from splitvfl.defenses import GaussianIR


class Silent:
    crossing = "activation"

    def __init__(self, *, clip: float) -> None:
        self.clip = self.bound = clip

    def __call__(self, message, secrets, /):
        return 100 * message


class Lying(Silent):
    def claims(self):
        return (RowNorm(self.clip),)

    def __call__(self, message, secrets, /):
        return 100 * message


class Loud(GaussianIR):
    def __call__(self, message, secrets, /):
        return 100 * super().__call__(message, secrets)
"""

FILE = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:PORT"}
  lab: {role: passive, columns: rest}
model: {name: mlp, bottom: [4]}
exchange: {name: split, LIMIT}
train: {epochs: 1, batch_size: 128}
network: {listen: "127.0.0.1:PORT", meeting_s: 3, plaintext_on_loopback: true}
defenses: [HOOKS]
audit: false
"""
GOOD = "{name: gaussian-ir, clip: 1.0, sigma: 0.1}"


def config_of(folder: Path, hooks: str, limit: str = "activation_clip: 1.0", port: int = 1) -> ExperimentConfig:
    (folder / "own_claims.py").write_text(HOOKS)
    text = FILE.replace("PORT", str(port)).replace("HOOKS", hooks).replace("LIMIT", limit)
    (folder / "run.yaml").write_text(text)
    return parse_config(text, source=folder / "run.yaml")


@pytest.mark.parametrize(
    ("hooks", "complaint"),
    [
        ("", "no defense bounds them"),
        ("{name: 'own_claims:Silent', clip: 1.0}", "no defense bounds them"),
        ("{name: gaussian-ir, clip: 1.5, sigma: 0.1}", "gaussian-ir bounds them to 1.5"),
        (GOOD + ", {name: 'own_claims:Silent', clip: 1.0}", "Silent, which comes after gaussian-ir, states no bound"),
        ("{name: gaussian-ir, clip: 1.0, sigma: 0.1, at: training}", "lab sends in evaluation: .* no defense bounds"),
        ("{name: gaussian-ir, clip: 1.0, sigma: 0.1, at: [training, evaluation]}", "lab sends in prediction"),
    ],
    ids=["none", "argument", "wider", "after-noise", "training-only", "no-prediction"],
)
def test_a_file_whose_activations_nobody_bounds_is_refused(hooks: str, complaint: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, hooks)
    with pytest.raises(PrivacyError, match=complaint):
        build_trainer(config, load_data(config))
    data = load_data(config)["lab"]
    assembly = Assembly(config, data)
    with pytest.raises(PrivacyError, match=complaint):  # as it is built over a network
        assembly.defend(assembly.passive(data, task_of(assembly.exchange, "binary", 1), seed=None))


@pytest.mark.parametrize(
    ("hooks", "complaint"),
    [
        ("{name: isotropic, sigma: 0.1}", "no defense bounds them"),
        ("{name: clip-gradient, quantile: 0.5}", "no defense bounds them"),
        ("{name: clip-gradient, bound: 0.1}, {name: isotropic, ratio: 1.0}", "isotropic, which comes after clip"),
        ("{name: clip-gradient, bound: 0.1}, {name: sumkl, ratio: 1.0}", "sumkl, which comes after clip"),
        ("{name: coefficient-noise, sigma: 1.0, clip: 0.1}", "no defense bounds them"),
        ("{name: sumkl, ratio: 1.0}, {name: clip-gradient, bound: 0.1}", None),
        ("{name: clip-gradient, bound: 0.1}, {name: isotropic, sigma: 1.0}", None),
    ],
)
def test_gradients_are_bounded_by_what_comes_last(hooks: str, complaint: str | None, tmp_path: Path) -> None:
    config = config_of(tmp_path, hooks, "gradient_clip: 0.1")
    if complaint is None:
        build_trainer(config, load_data(config)).fit(1)
        return
    with pytest.raises(PrivacyError, match=complaint):
        build_trainer(config, load_data(config))


def test_claims_that_are_not_as_they_must_be_are_told_with_their_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.yaml:10: defenses\.0: .* its __call__ replaces that of GaussianIR"):
        config_of(tmp_path, "{name: 'own_claims:Loud', clip: 1.0, sigma: 0.1}")


def test_a_claim_that_is_broken_ends_a_run_before_anything_is_sent(tmp_path: Path) -> None:
    config = config_of(tmp_path, "{name: 'own_claims:Lying', clip: 1.0}")
    trainer = build_trainer(config, load_data(config))
    crossed: list[Any] = []
    trainer.record = crossed.append
    before = weights(trainer)
    with pytest.raises(HookError, match=r"defense Lying at step 0 returned a row .* and claims at most 1; nothing was"):
        trainer.fit(1)
    assert {message.kind for message in crossed} <= {"agreement"}
    assert same(before, weights(trainer))


def test_a_claim_that_is_broken_ends_a_networked_run_before_anything_is_sent(tmp_path: Path) -> None:
    config = config_of(tmp_path, "{name: 'own_claims:Lying', clip: 1.0}", port=free_ports(1)[0])
    heard: list[str] = []

    def clinic() -> None:
        with pytest.raises(LinkError, match="lab"):  # it waits for lab to come back, for as long as the file says
            run_party(config, "clinic", tmp_path / "clinic", notify=heard.append)

    thread = threading.Thread(target=clinic, daemon=True)
    with torch.random.fork_rng(devices=[]):  # parties swap their random states in and out, and share them here
        thread.start()
        with pytest.raises(HookError, match=r"defense Lying at step 0 returned a row"):
            run_party(config, "lab", tmp_path / "lab")
        thread.join(30)
    assert not thread.is_alive()
    assert "waiting for activation of step 0 from lab: lab took its leave: one of its hooks failed" in "".join(heard)
    assert "returned a row" not in "".join(heard)  # what rows are like is nothing for the partner
    assert not (tmp_path / "clinic" / "metrics.jsonl").read_text()
