"""From a party's own file to objects: what is refused before anybody is dialled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from splitvfl.app.addresses import AddressBook
from splitvfl.app.deployment import party_run, run_party
from splitvfl.app.records import own_data
from splitvfl.config.sections import ExperimentConfig, parse_config
from splitvfl.errors import ConfigError, DataError, LinkError, ProtocolError
from splitvfl.exchange.roll_call import UNSIGNED, vouching_terms
from splitvfl.net.certs import make_certificates
from splitvfl.net.signing import CertificateSigner
from splitvfl.net.tls import Identity
from splitvfl.run import checkpoint
from splitvfl.run.networked import ActiveRun

OWN_FILE = """
data: {{name: table, path: lab.csv, id_column: patient}}
parties:
  clinic: {{role: active, address: "127.0.0.1:7000"}}
  lab: {{role: passive, columns: rest}}
network: {{plaintext_on_loopback: true}}
defenses: [{defense}]
"""

SHARED_FILE = """
data: breast-cancer
parties:
  clinic: {role: active, columns: ["mean *"], address: "127.0.0.1:7000"}
  lab: {role: passive, columns: rest}
network: {plaintext_on_loopback: true, listen: "127.0.0.1:7000"}
defenses: [{name: isotropic, ratio: 1.0}, {name: gaussian-ir, clip: 1.0, sigma: 0.1}, {name: rounding, decimals: 2}]
"""

TELECOMS_FILE = """
data: {name: table, path: people.csv}
parties:
  bank: {role: active, address: "127.0.0.1:1"}
  telecom: {role: passive, columns: rest}
train: {batch_size: 8}
network: {plaintext_on_loopback: true, meeting_s: 0.1}
"""


@pytest.mark.parametrize(
    ("defense", "crossing"),
    [
        ("{name: isotropic, ratio: 1.0}", "gradient"),
        ("{name: memoised-response, epsilon: 1.0}", "labels"),
        ("{name: rounding, decimals: 2}", "scores"),
    ],
)
def test_a_defense_that_would_do_nothing_at_this_party_is_refused(defense: str, crossing: str, tmp_path: Path) -> None:
    config = parse_config(OWN_FILE.format(defense=defense), source=tmp_path / "lab.yaml")
    complaint = f"lab.yaml: defenses: .* acts on the {crossing} of the active party, and would do nothing at lab"
    with pytest.raises(ConfigError, match=complaint):
        party_run(config, "lab", tmp_path / "run")


def test_in_a_shared_file_it_may_be_another_partys(tmp_path: Path) -> None:
    config = parse_config(SHARED_FILE, source=tmp_path / "all.yaml")
    for name in ("clinic", "lab"):
        assert party_run(config, name, tmp_path / "run").name == name


def test_canaries_are_for_the_label_partys_file_alone(tmp_path: Path) -> None:
    own = OWN_FILE.replace("defenses: [{defense}]", "audit: {{canaries: 30}}").format()
    with pytest.raises(ConfigError, match=r"lab.yaml: audit.canaries: the label party, clinic, places them"):
        party_run(parse_config(own, source=tmp_path / "lab.yaml"), "lab", tmp_path / "run")
    shared = parse_config(SHARED_FILE + "audit: {canaries: 30}\n", source=tmp_path / "all.yaml")
    runs = {name: party_run(shared, name, tmp_path / "run") for name in ("clinic", "lab")}
    # Nothing that the parties compare says that there are any.
    without = party_run(parse_config(SHARED_FILE, source=tmp_path / "all.yaml"), "clinic", tmp_path / "run")
    assert runs["clinic"].settings.terms == runs["lab"].settings.terms == without.settings.terms


def test_the_active_party_has_two_names(tmp_path: Path) -> None:
    config = parse_config(SHARED_FILE, source=tmp_path / "all.yaml")
    assert [config.own_name(name) for name in ("active", "clinic", "lab")] == ["clinic", "clinic", "lab"]
    with pytest.raises(ConfigError, match=r"there is no .laboratory."):
        config.own_name("laboratory")


@pytest.mark.parametrize(
    ("left_out", "complaint"),
    [
        ('network: {plaintext_on_loopback: true, listen: "127.0.0.1:7000"}', "network: where do the parties meet"),
        (', listen: "127.0.0.1:7000"', "how do clinic and lab meet"),
        ("plaintext_on_loopback: true, ", "network.certificates: expected a folder"),
    ],
)
def test_what_a_meeting_needs_is_asked_for(left_out: str, complaint: str, tmp_path: Path) -> None:
    assert left_out in SHARED_FILE
    config = parse_config(SHARED_FILE.replace(left_out, ""), source=tmp_path / "all.yaml")
    with pytest.raises(ConfigError, match=complaint):
        party_run(config, "clinic", tmp_path / "run")


def telecoms_config(folder: Path, text: str = TELECOMS_FILE) -> ExperimentConfig:
    return parse_config(text, source=folder / "telecom.yaml")


def test_another_partys_file_is_suspected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"telecom\.yaml: parties\.bank\.columns: .*another party's file"):
        own_data(telecoms_config(tmp_path), "bank")


@pytest.mark.parametrize(
    ("old", "new", "party", "key"),
    [
        ("127.0.0.1:1", "bank.example", "telecom", r"parties\.bank\.address"),
        ("meeting_s: 0.1", 'listen: "7000"', "telecom", r"network\.listen"),
    ],
)
def test_an_address_that_is_none_is_told_with_its_key(old: str, new: str, party: str, key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"telecom\.yaml: {key}: expected an address like"):
        AddressBook(telecoms_config(tmp_path, TELECOMS_FILE.replace(old, new)), party).meeting(print)


def test_who_has_waited_in_vain_can_simply_start_again(tmp_path: Path) -> None:
    rows = "".join(f"{row},{row % 5}\n" for row in range(50))
    (tmp_path / "people.csv").write_text("a,b\n" + rows)

    for _ in range(2):
        with pytest.raises(LinkError, match=r"no link with bank at 127\.0\.0\.1:1.*Has bank been started"):
            run_party(telecoms_config(tmp_path), "telecom", tmp_path / "run")


def test_no_file_of_a_partys_run_is_for_others_to_write(tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("a,b\n" + "".join(f"{row},{row % 5}\n" for row in range(50)))
    before = os.umask(0)
    try:
        with pytest.raises(LinkError):
            run_party(telecoms_config(tmp_path), "telecom", tmp_path / "runs" / "run")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "runs").rglob("*")}
    assert modes.pop("run") == 0o700
    assert modes.keys() >= {"experiment.yaml"}
    assert not any(mode & 0o022 for mode in modes.values())


def test_the_aligned_folder_is_looked_for_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "aligned").mkdir()
    config = telecoms_config(tmp_path, TELECOMS_FILE.replace("people.csv", "people.csv, aligned: aligned"))

    assert config.data.aligned == str(tmp_path / "aligned")


def test_parties_of_tables_may_have_addresses(tmp_path: Path) -> None:
    text = TELECOMS_FILE.replace("table, path: people.csv", "tables, path: t").replace(
        ", columns: rest", ", identity: t.example"
    )
    config = telecoms_config(tmp_path, text)

    assert config.parties["bank"].address == "127.0.0.1:1"
    assert config.parties["telecom"].identity == "t.example"


THREE = """
data: {name: table, path: lab.csv, id_column: patient}
parties:
  clinic: {role: active, address: "127.0.0.1:7000"}
  lab: {role: passive, columns: rest}
  shop: {role: passive, identity: vfl.shop.example}
model: logistic-regression
exchange: EXCHANGE
network: {listen: "127.0.0.1:7001", certificates: certs}
"""


@pytest.mark.parametrize(
    ("exchange", "purpose", "members"),
    [
        ("taylor", "training", {"lab", "shop"}),
        ("taylor", "prediction", {"lab", "shop"}),
        ("coordinator", "training", {"lab", "shop", "coordinator"}),
        ("coordinator", "prediction", {"lab", "shop"}),
    ],
)
def test_over_tls_keys_that_are_passed_on_are_signed_by_all_that_the_file_names(
    exchange: str, purpose: str, members: set[str], tmp_path: Path
) -> None:
    make_certificates(tmp_path / "certs", ["clinic", "lab", "shop"], hosts={"shop": ["vfl.shop.example"]})
    config = parse_config(THREE.replace("EXCHANGE", exchange), source=tmp_path / "lab.yaml")
    addresses = AddressBook(config, "lab", purpose)
    found = addresses.vouching(addresses.meeting(print))

    assert found.members == members
    assert isinstance(found.signer, CertificateSigner)
    # What the shop signs, under the identity that the file gives it, at that meeting and no other.
    for other in ("training", "prediction"):
        shop = Identity.load("shop", folder=tmp_path / "certs", identity="vfl.shop.example")
        shown = CertificateSigner(shop, {}, run=f"clinic, {other}").sign(b"keys")
        if other == purpose:
            found.signer.check("shop", b"keys", shown)
        else:
            with pytest.raises(ProtocolError, match="not vouched for by shop"):
                found.signer.check("shop", b"keys", shown)


@pytest.mark.parametrize("exchange", ["taylor", "coordinator"])
def test_a_run_over_tls_is_put_together_with_signed_keys(exchange: str, tmp_path: Path) -> None:
    make_certificates(tmp_path / "certs", ["clinic", "lab", "shop"], hosts={"shop": ["vfl.shop.example"]})
    rows = "".join(f"{number},{number % 7},{number % 3}\n" for number in range(400))
    (tmp_path / "lab.csv").write_text(f"patient,a,b\n{rows}")
    config = parse_config(THREE.replace("EXCHANGE", exchange), source=tmp_path / "lab.yaml")
    terms = party_run(config, "lab", tmp_path / "run").settings.terms
    assert terms["keys that are passed on"] == "signed"


@pytest.mark.parametrize("exchange", ["taylor", "coordinator"])
def test_without_certificates_nobody_signs_and_the_terms_say_so(exchange: str, tmp_path: Path) -> None:
    text = THREE.replace("EXCHANGE", exchange).replace("certificates: certs", "plaintext_on_loopback: true")
    config = parse_config(text, source=tmp_path / "lab.yaml")
    addresses = AddressBook(config, "lab")
    found = addresses.vouching(addresses.meeting(print))

    assert found.signer is None
    assert found.members is not None
    assert {"lab", "shop"} <= found.members  # which are compared all the same
    assert vouching_terms(found) == {"keys that are passed on": "not signed"}


@pytest.mark.parametrize("exchange", ["split", "oracle", "residue"])
def test_where_no_keys_are_passed_on_a_file_need_not_name_all(exchange: str, tmp_path: Path) -> None:
    make_certificates(tmp_path / "certs", ["lab"])
    config = parse_config(THREE.replace("EXCHANGE", exchange), source=tmp_path / "lab.yaml")

    addresses = AddressBook(config, "lab")
    assert addresses.vouching(addresses.meeting(print)) is UNSIGNED


def test_a_party_whose_data_changed_is_told_before_it_meets_anybody(tmp_path: Path) -> None:
    def people(step: int) -> None:
        (tmp_path / "people.csv").write_text("a,b\n" + "".join(f"{row},{row % step}\n" for row in range(50)))

    people(5)
    config, folder, told = telecoms_config(tmp_path), tmp_path / "run", list[str]()
    settings = party_run(config, "telecom", folder).settings
    begun = {"run": "0" * 32, "step": 3, "stopped": False, "terms": settings.kept_terms, "data": settings.data}
    checkpoint.save(folder / "checkpoints", 3, {"run": begun})

    with pytest.raises(LinkError):
        party_run(config, "telecom", folder).run()  # the same data: it waits for the others
    people(7)
    with pytest.raises(DataError, match=r"run: the data have changed .*: values in telecom's columns\. A run goes on"):
        party_run(config, "telecom", folder).run()
    del begun["data"]
    checkpoint.save(folder / "checkpoints", 4, {"run": begun})
    run = party_run(config, "telecom", folder)
    run.training.notify = told.append
    with pytest.raises(LinkError):
        run.run()
    assert any("is not checked" in line for line in told)


def test_where_sums_alone_are_sent_sign_points_to_the_attack_that_reads_sums(tmp_path: Path) -> None:
    """A label party knows what its partner would see: no gradient for each record, but their sum."""
    text = SHARED_FILE.partition("defenses:")[0] + (
        "model: logistic-regression\nexchange: oracle\n"
        "train: {batch_size: 32, optimizer: {name: sgd, lr: 0.1}}\nattacks: [sign]\naudit: false\n"
    )

    run = party_run(parse_config(text, source=tmp_path / "all.yaml"), "clinic", tmp_path / "run")

    assert isinstance(run, ActiveRun)
    _, watch = run._build({"lab": 1})
    assert "the attack residue-solving recovers labels from it" in watch.unavailable["lab"]["sign"]
