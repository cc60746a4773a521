"""From the exchange section of an experiment to the exchange, and what it says of itself."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from splitvfl.app.addresses import AddressBook
from splitvfl.app.exchanges import exchange_of, said_before, task_of
from splitvfl.app.noise import NoisePlan
from splitvfl.app.noise_plans import plan_of
from splitvfl.app.records import load_data
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.crypto.engine import Engine
from splitvfl.errors import ConfigError, CryptoError
from splitvfl.exchange.hybrid import Hybrid
from splitvfl.exchange.paillier import EncryptedExchange, Encryption, InsecureEncryption
from splitvfl.exchange.residue import Residue
from splitvfl.exchange.roll_call import Vouching
from splitvfl.exchange.split import Split
from splitvfl.models import gradient_scale, largest_logit, sigmoid_coefficients
from tests.exchange.logistic import trainer_of

TEXT = """
data: {name: breast-cancer}
parties:
  clinic: {role: active, columns: ["mean *"]}
  lab: {role: passive, columns: ["worst *", "* error"]}
model: {name: logistic-regression, row_norm: 0.7}
train: {batch_size: 32, optimizer: {name: sgd, lr: 0.1}}
network: {listen: "127.0.0.1:7000", plaintext_on_loopback: true}
"""
KINDS = {
    "split": ("exact", False, False),
    "oracle": ("exact", True, False),
    "residue": ("exact", True, False),
    "taylor": ("taylor", True, True),
    "coordinator": ("taylor", True, True),
}


def config_of(section: str) -> ExperimentConfig:
    return parse_config(TEXT + f"exchange: {section}\n", source="exchanges.yaml")


@pytest.mark.parametrize("name", KINDS)
def test_every_name_gives_its_exchange(name: str) -> None:
    section = config_of(name).exchange
    exchange = exchange_of(section, rows=32)
    assert exchange.name == name
    assert (exchange.approximation, exchange.sums_only, exchange.hides_parts) == KINDS[name]
    if isinstance(exchange, EncryptedExchange):
        assert exchange.rows == 32
        assert exchange.encryption == Encryption()


def test_batches_in_flight_are_of_exchange_split_and_the_others_say_why_they_have_none() -> None:
    exchange = exchange_of(config_of("{name: split, in_flight: 2}").exchange, rows=32)
    assert isinstance(exchange, Split)
    assert exchange.in_flight == 2
    assert exchange.terms()["batches in flight"] == 2
    assert exchange_of(config_of("split").exchange, rows=32).in_flight == 0
    for name, why in {
        "oracle": "stands for encrypted ones",
        **dict.fromkeys(("residue", "taylor", "coordinator", "hybrid"), "a step is opened as a whole"),
    }.items():
        with pytest.raises(ConfigError, match=rf"exchanges\.yaml:9: exchange\.in_flight: .*{why}"):
            config_of(f"{{name: {name}, in_flight: 1}}")
    for value in ("-1", "17", "1.5", "two"):
        with pytest.raises(ConfigError, match=r"exchanges\.yaml:9: exchange\.in_flight: "):
            config_of(f"{{name: split, in_flight: {value}}}")


def test_settings_reach_the_exchange() -> None:
    section = config_of(
        "{name: residue, approximation: minimax, processes: 2, stock: 7, "
        "encryption: {key_bits: 2048, value_limit: 5, packed: false, most_columns: 9}}"
    ).exchange
    exchange = exchange_of(section, rows=8)
    assert isinstance(exchange, EncryptedExchange)
    assert exchange.encryption == Encryption(key_bits=2048, value_limit=5.0, packed=False, most_columns=9)
    assert exchange.terms()["approximation"] == "minimax"
    engine = exchange.engine()
    assert isinstance(engine, Engine)
    assert (engine._processes, engine._stock) == (2, 7)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("epsilon: 0, share: 0.3", r"exchange\.epsilon"),
        ("epsilon: .inf, share: 0.3", r"exchange\.epsilon"),
        ("epsilon: 1, share: 0.5", r"exchange\.share"),
        ("epsilon: 1, share: 0", r"exchange\.share"),
        ("epsilon: 1", r"exchange\.share: required"),
        ("epsilon: 1, share: 0.01", r"share 0\.01 of train\.batch_size 32 is no record at all"),
    ],
)
def test_a_secret_batch_that_cannot_be_is_refused_by_its_key(options: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        exchange_of(config_of(f"{{name: hybrid, {options}}}").exchange, rows=32)


def test_what_is_a_partys_own_business_is_not_agreed() -> None:
    plain = exchange_of(config_of("taylor").exchange, rows=32).terms()
    assert exchange_of(config_of("{name: taylor, processes: 1, stock: 64}").exchange, rows=32).terms() == plain


def test_noise_raises_the_limit_of_values_and_leaves_the_loss_out() -> None:
    config = config_of("{name: taylor, noise: {epsilon: 0.5, delta: 0.1}}")
    noise = plan_of(config, load_data(config).active)
    assert isinstance(noise, NoisePlan)
    terms = exchange_of(config.exchange, rows=32, noise=noise).terms()
    limit = terms["encryption: value limit"]
    assert isinstance(limit, float)
    assert limit >= 4 + 8 * noise.active
    assert limit < 2 * (4 + 8 * noise.active)
    assert terms["loss of each step"] is False
    own = config_of("{name: taylor, encryption: {value_limit: 9000}, noise: {epsilon: 0.5, delta: 0.1}}")
    assert exchange_of(own.exchange, rows=32, noise=noise).terms()["encryption: value limit"] == 9000


def largest_residue(z: float, approximation: Any) -> float:
    both = torch.tensor([z, z], dtype=torch.float64), torch.tensor([1.0, -1.0])
    with warnings.catch_warnings(action="ignore"):
        found = sigmoid_coefficients(*both, approximation=approximation).abs().max().item()
    return found / gradient_scale(approximation)


@pytest.mark.parametrize("approximation", ["taylor", "minimax", "piecewise", "exact"])
@pytest.mark.parametrize("limit", [0.7, 1.0, 1.02, 1.04, 16.0, 1024.0])
def test_the_largest_logit_is_the_first_that_leaves_a_larger_residue(approximation: Any, limit: float) -> None:
    most = largest_logit(limit, approximation=approximation)

    # A grid in place of algebra; the last point before the first residue that is larger.
    top = most if math.isfinite(most) else 1e4
    assert all(largest_residue(z, approximation) <= limit + 1e-9 for z in np.linspace(0, top, 200))
    if math.isfinite(most):
        assert largest_residue(most + 1e-6, approximation) > limit


@pytest.mark.parametrize(
    ("exchange", "told"),
    [
        ("{name: residue, approximation: taylor}", "value_limit 16 holds them up to a logit of 62"),
        ("{name: residue, approximation: minimax, encryption: {value_limit: 64}}", "up to a logit of 25.8"),
        ("{name: hybrid, epsilon: 1, share: 0.3, approximation: taylor}", "up to a logit of 62"),
        ("{name: residue, approximation: piecewise}", "residues stay within 1 whatever the logits"),
        ("taylor", "value_limit 16 holds parts up to 16, of the label party up to 14"),
        ("{name: residue, approximation: exact}", ""),
    ],
)
def test_which_logits_the_limit_of_encrypted_numbers_holds_is_said(exchange: str, told: str) -> None:
    trainer = trainer_of(Split(), {"lab": 2}, audit=False)

    lines = said_before(exchange_of(config_of(exchange).exchange, rows=32), trainer.active, epochs=1)

    said = [line for line in lines if line.startswith("Exchange ")]
    assert told in " ".join(said)
    assert bool(said) == bool(told)


@pytest.mark.parametrize(("share", "survives"), [(0.98, True), (1.02, False)])
@pytest.mark.parametrize("name", ["residue", "hybrid"])
def test_a_run_ends_where_it_was_said(name: str, share: float, survives: bool) -> None:
    """One epoch at weights that leave one record a logit just below what the limit holds, or just above it."""
    limit = 3.0
    encryption = InsecureEncryption(key_bits=512, value_limit=limit)
    made: dict[str, Any] = {"rows": 16, "encryption": encryption, "approximation": "taylor"}
    exchange = Residue(**made) if name == "residue" else Hybrid(**made, epsilon=1.0, share=0.05)  # one is used
    trainer = trainer_of(exchange, {"lab": 2}, own=0, audit=False)
    for party in trainer.passives.values():
        rows = party.data.train.columns.numeric
        rows[:] = 0
        rows[:, 0] = share * largest_logit(limit, approximation="taylor")
        party.bottom.weight.data[:] = torch.tensor([[1.0, 0.0]])
    labels = trainer.active.data.train.labels
    assert labels is not None
    labels[:] = 0
    for party in (*trainer.passives.values(), trainer.active):
        party.weights.optimizer.param_groups[0]["lr"] = 0.0  # type: ignore[union-attr]

    if survives:
        trainer.fit(1)
        return
    with pytest.raises(CryptoError, match="value_limit is 3"):
        trainer.fit(1)


def test_no_party_is_called_like_the_coordinator() -> None:
    with pytest.raises(ConfigError, match="give the party another name"):
        parse_config(TEXT.replace("lab:", "coordinator:") + "exchange: coordinator\n", source="exchanges.yaml")
    assert "coordinator" in parse_config(TEXT.replace("lab:", "coordinator:"), source="exchanges.yaml").parties


def test_where_the_coordinator_is_found_is_said() -> None:
    text = TEXT.replace('network: {listen: "127.0.0.1:7000", ', "network: {")
    config = parse_config(
        text.replace("lab: {", 'lab: {address: "127.0.0.1:7001", ') + "exchange: coordinator\n", source="e.yaml"
    )
    with pytest.raises(ConfigError, match=r"how do clinic and coordinator meet\? Give exchange.address"):
        AddressBook(config, "clinic").meeting(print)


@pytest.mark.parametrize(("what", "limit"), [("value", 1e9), ("feature", 8.0)])
def test_numbers_that_are_too_long_are_named(what: str, limit: float) -> None:
    with pytest.raises(ConfigError, match=rf"{what}_limit .* with {what}_bits 60 .* take fewer bits"):
        config_of(f"{{name: taylor, encryption: {{{what}_bits: 60, {what}_limit: {limit}}}}}")


def test_a_task_that_is_not_binary_is_refused_by_name() -> None:
    exchange = exchange_of(config_of("residue").exchange, rows=32)
    with pytest.raises(ConfigError, match=r"exchange residue trains logistic regression, .* this is a multiclass task"):
        task_of(exchange, "multiclass", 3)


@pytest.mark.parametrize("mask", ["bounded", "uniform"])
def test_a_file_that_still_names_a_mask_is_told_what_became_of_it(mask: str) -> None:
    with pytest.raises(ConfigError, match=r"encryption\.mask: delete this key: there is one kind of mask now"):
        config_of(f"{{name: taylor, encryption: {{mask: {mask}}}}}")


class Signs:
    def sign(self, statement: bytes) -> dict[str, object]:
        return {"statement": statement.hex()}

    def check(self, member: str, statement: bytes, shown: object) -> None:
        raise AssertionError("nobody meets here")


@pytest.mark.parametrize("name", ["taylor", "coordinator"])
def test_keys_that_are_passed_on_are_signed_where_the_party_can(name: str) -> None:
    """An exchange that forgot it would train all the same, with keys that the active party may replace."""
    section = config_of(name).exchange
    signed = exchange_of(section, rows=8, vouching=Vouching(frozenset({"lab"}), Signs()))
    assert signed.terms()["keys that are passed on"] == "signed"
    assert exchange_of(section, rows=8).terms()["keys that are passed on"] == "not signed"
