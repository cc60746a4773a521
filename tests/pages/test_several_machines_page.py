"""The manifests and commands of docs/several-machines.md: what the page promises of them, and that they run."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pandas as pd
import pytest
import torch.distributed as dist
import yaml

from scripts.lock import CUDA, NO_PHE, RUNNING
from splitvfl.app.addresses import AddressBook
from splitvfl.app.saved_model import load_half
from splitvfl.net.certs import make_certificates
from tests.commands import Command
from tests.pages.manifests import FOLDER, PARTIES, Manifest, moved
from tests.run.parties import finished, free_ports, neighbouring_ports, same_weights, start, weights_of

NAME, INSTANCE = "app.kubernetes.io/name", "app.kubernetes.io/instance"


@pytest.fixture(scope="module")
def page(checkout: Path) -> str:
    return (checkout / "docs" / "several-machines.md").read_text(encoding="utf-8")


@pytest.fixture(params=PARTIES)
def manifest(request: pytest.FixtureRequest, checkout: Path) -> Manifest:
    return Manifest.read(checkout, request.param)


def labels_of(manifest: Manifest) -> dict[str, str]:
    return {NAME: "splitvfl", INSTANCE: manifest.party}


# --- what is in them


def test_the_page_shows_the_files_themselves(page: str) -> None:
    shown = re.findall(r"```\{literalinclude\} (\S+)", page)
    assert shown == [
        "examples/kubernetes/Dockerfile",
        "examples/slurm.sh",
        "examples/ray_train.py",
        "examples/kubernetes/ads.yaml",
        "examples/kubernetes/shop.yaml",
    ]


def test_what_the_page_tells_kubectl_is_what_the_manifests_name(page: str, checkout: Path) -> None:
    shop = Manifest.read(checkout, "shop")
    (secret,) = re.findall(r"create secret generic (\S+) (.*)", page)
    assert secret[0] == shop.volumes["certificates"]["secret"]["secretName"]
    assert re.findall(r"--from-file=certs/(\S+)", secret[1]) == ["ca.pem", "shop.pem", "shop.key"]
    assert f"claim, `{shop.volumes['data']['persistentVolumeClaim']['claimName']}`" in page
    (template,) = shop.workers["volumeClaimTemplates"]
    assert f"`{template['metadata']['name']}-{shop.one('StatefulSet')['metadata']['name']}-0`" in page
    assert f"scale statefulset {shop.one('StatefulSet')['metadata']['name']} --replicas 0" in page
    assert f"-l {INSTANCE}=shop" in page
    labels = shop.one("Namespace")["metadata"]["labels"]
    assert [f"label namespace splitvfl {key}={value}" in page for key, value in labels.items()] == [True]
    (words,) = re.findall(r"`args: (\[check.*\])`", page)
    assert yaml.safe_load(words)[1:4] == shop.container["args"][1:4]
    assert shop.container["args"] == [*yaml.safe_load(re.findall(r"command: (\[splitvfl.*\])", page)[0])[1:], "--stay"]


def test_everything_is_as_kubernetes_has_it(manifest: Manifest) -> None:
    """Validated against its schemas, where they are installed (``kubernetes-validate``)."""
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for one in manifest.objects:
        for version in ("1.28", "1.34"):
            kubernetes_validate.validate(one, version, strict=True)


def test_the_kinds_are_those_that_the_page_explains(manifest: Manifest) -> None:
    kinds = ["Namespace", "ConfigMap", "Service", "StatefulSet", "NetworkPolicy"]
    more = ["Service"] * manifest.workers["replicas"] if manifest.party == "ads" else []
    assert [one["kind"] for one in manifest.objects] == kinds + more
    assert {one["metadata"].get("namespace", "splitvfl") for one in manifest.objects} == {"splitvfl"}
    # What is secret, and what is large, lies in no file.
    assert "Secret" not in kinds
    assert manifest.volumes["certificates"]["secret"]["secretName"] == f"{manifest.party}-certificates"


def test_nothing_goes_anywhere_before_it_was_adapted(manifest: Manifest) -> None:
    """Every name and address is one that leads nowhere, by RFC 2606 and RFC 5737: nothing is silently wrong."""
    assert manifest.container["image"].startswith("registry.example/")
    addresses = [one.address for one in manifest.config.parties.values() if one.address is not None]
    assert all(address.rpartition(":")[0].endswith(".example") for address in addresses)
    blocks = re.findall(r"\d+\.\d+\.\d+\.\d+/\d+", manifest.text)
    assert blocks
    assert all(block.startswith("192.0.2.") for block in blocks)
    # All of it, and nothing that stays, is found by what the first lines say.
    adapted = [line for line in manifest.text.splitlines() if re.search(r"example|192\.0\.2\.", line)]
    assert {line for line in manifest.text.splitlines() if "image:" in line or "cidr:" in line} <= set(adapted)


def test_one_number_of_workers_is_said_everywhere(manifest: Manifest) -> None:
    workers = manifest.config.team.workers
    assert manifest.workers["replicas"] == workers == int(manifest.environment(0)["WORLD_SIZE"])
    found = [manifest.environment(ordinal) for ordinal in range(workers)]
    assert [one["RANK"] for one in found] == [str(ordinal) for ordinal in range(workers)]


def test_workers_find_worker_0_before_they_are_ready(manifest: Manifest) -> None:
    name, service = (
        manifest.one("StatefulSet")["metadata"]["name"],
        manifest.one("Service", f"{manifest.party}-workers"),
    )
    assert manifest.workers["serviceName"] == service["metadata"]["name"]
    assert manifest.environment(1)["MASTER_ADDR"] == f"{name}-0.{service['metadata']['name']}"
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert manifest.workers["podManagementPolicy"] == "Parallel"
    (port,) = service["spec"]["ports"]
    assert str(port["port"]) == manifest.environment(0)["MASTER_PORT"]
    assert port["port"] in [one["containerPort"] for one in manifest.container["ports"]]


def test_selectors_are_the_labels_of_the_pods(manifest: Manifest) -> None:
    labels = labels_of(manifest)
    assert manifest.workers["template"]["metadata"]["labels"] == labels
    assert manifest.workers["selector"]["matchLabels"] == labels
    assert manifest.one("Service", f"{manifest.party}-workers")["spec"]["selector"] == labels
    assert manifest.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"] == labels


def test_workers_have_no_privileges(manifest: Manifest) -> None:
    labels = manifest.one("Namespace")["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "restricted"}
    pod, container = manifest.pod["securityContext"], manifest.container["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["runAsUser"] == pod["runAsGroup"] == pod["fsGroup"] > 0
    assert pod["fsGroupChangePolicy"] == "OnRootMismatch"
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert manifest.pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & manifest.pod.keys()


def test_what_is_read_is_mounted_for_reading_and_what_is_written_has_a_volume_of_each_worker(
    manifest: Manifest,
) -> None:
    mounts, volumes = manifest.mounts, manifest.volumes
    assert mounts.keys() == volumes.keys()
    assert {name for name, one in mounts.items() if one.get("readOnly")} == {"file", "certificates", "data"}
    assert volumes["data"]["persistentVolumeClaim"]["readOnly"] is True
    assert volumes["certificates"]["secret"]["defaultMode"] == 0o400
    assert volumes["file"]["configMap"]["name"] == manifest.one("ConfigMap")["metadata"]["name"]
    assert volumes["state"] is None
    assert manifest.workers["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    words = manifest.container["args"]
    assert words[words.index("--out") + 1].startswith(mounts["state"]["mountPath"] + "/")
    assert words[1].startswith(mounts["file"]["mountPath"] + "/")
    config = manifest.config
    assert config.network is not None
    assert config.network.certificates == mounts["certificates"]["mountPath"]
    for path in (config.data.path, config.data.aligned):
        assert str(path).startswith(mounts["data"]["mountPath"] + "/")
    assert manifest.container["workingDir"] == mounts["scratch"]["mountPath"] == manifest.environment(0)["HOME"]


def test_a_pod_has_time_for_its_step_and_a_checkpoint(manifest: Manifest) -> None:
    """A party that is stopped waits five seconds for others, or as long as a message may take for a step's end."""
    network = manifest.config.network
    assert network is not None
    assert manifest.pod["terminationGracePeriodSeconds"] >= network.message_s + 5 + 30
    assert manifest.pod["restartPolicy"] == "Always"
    assert manifest.workers["updateStrategy"] == {"type": "OnDelete"}
    assert "--stay" in manifest.container["args"]


def test_a_worker_has_as_many_threads_as_cores_and_no_more_memory_than_was_set_aside(manifest: Manifest) -> None:
    resources = manifest.container["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"]["cpu"] == str(manifest.config.train.threads)


def test_the_policy_lets_in_and_out_what_the_page_says_and_nothing_else(manifest: Manifest) -> None:
    policy = manifest.one("NetworkPolicy")["spec"]
    assert sorted(policy["policyTypes"]) == ["Egress", "Ingress"]
    among_themselves = [{"podSelector": {"matchLabels": labels_of(manifest)}}]
    names = [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        }
    ]
    dns = {"to": names, "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
    partner = [{"protocol": "TCP", "port": 7000}]
    inward, outward = policy["ingress"], policy["egress"]
    assert inward[0] == {"from": among_themselves}
    assert outward[0] == {"to": among_themselves}
    assert outward[-1] == dns
    if manifest.party == "ads":
        assert inward[1:] == [{"from": [{"ipBlock": {"cidr": "192.0.2.0/28"}}], "ports": partner}]
        assert outward[1:-1] == []
    else:
        assert inward[1:] == []
        assert outward[1:-1] == [{"to": [{"ipBlock": {"cidr": "192.0.2.64/28"}}], "ports": partner}]


def test_each_worker_of_ads_has_an_address_that_only_shop_reaches(checkout: Path) -> None:
    ads, shop = (Manifest.read(checkout, party) for party in PARTIES)
    (policy,) = [one for one in ads.one("NetworkPolicy")["spec"]["ingress"] if "ports" in one]
    outside = [one for one in ads.all_of("Service") if one["spec"].get("type")]
    assert len(outside) == ads.config.team.workers
    for worker, service in enumerate(outside):
        where = AddressBook(ads.config, "ads", worker=worker).where()
        assert where == ["listens at :7000"]
        assert service["spec"] == {
            "type": "LoadBalancer",
            "externalTrafficPolicy": "Local",
            "loadBalancerSourceRanges": [policy["from"][0]["ipBlock"]["cidr"]],
            "selector": {"statefulset.kubernetes.io/pod-name": f"ads-{worker}"},
            "ports": [{"name": "partners", "port": 7000}],
        }
    assert {"name": "partners", "containerPort": 7000} in ads.container["ports"]
    dialled = [AddressBook(shop.config, "shop", worker=worker).where() for worker in range(2)]
    assert dialled == [[f"dials ads at ads-{worker}.ads.example:7000"] for worker in range(2)]


def test_what_parties_agree_on_is_the_same_in_both_files(checkout: Path) -> None:
    ads, shop = (Manifest.read(checkout, party).config for party in PARTIES)
    assert ads.team == shop.team
    assert ads.train == shop.train
    assert ads.exchange == shop.exchange


# --- the image


def test_the_image_holds_what_the_lock_files_hold_and_runs_as_the_user_of_the_manifests(checkout: Path) -> None:
    text = (checkout / FOLDER / "Dockerfile").read_text(encoding="utf-8")
    lines = text.replace("\\\n", " ").splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    assert [name for names in copied for name in names if not (checkout / name).exists()] == []
    # What the build itself says it needs, so that a new folder of code cannot be forgotten.
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], project["project"]["readme"], "pyproject.toml"}
    needed.update(project["project"]["license-files"])
    # Either lock file can be named, and is there.
    needed.update({RUNNING, NO_PHE, CUDA})
    assert needed <= {name for names in copied for name in names}
    assert f"ARG LOCK={RUNNING}" in lines
    assert f"LOCK={NO_PHE}" in text
    installs = re.findall(r"pip install (.*)", text)
    # Each by its hash; the last is the project itself, for which nothing is fetched.
    assert all("--require-hashes --no-deps" in one for one in installs[:-1])
    assert installs[-1].startswith("--no-deps --no-build-isolation .")
    (user,) = [line.split()[1] for line in lines if line.startswith("USER ")]
    for party in PARTIES:
        pod = Manifest.read(checkout, party).pod["securityContext"]
        assert user == f"{pod['runAsUser']}:{pod['runAsGroup']}"
    assert "ENTRYPOINT" in text.split(f"USER {user}")[1]
    assert "latest" not in text


@pytest.mark.parametrize(
    ("said", "code", "right"),
    [
        ("No broken requirements found.", 0, True),
        ("splitvfl 0.1.0 requires phe, which is not installed.", 1, True),
        (
            "splitvfl 0.1.0 requires phe, which is not installed.\ntorch 2.13.0 requires sympy, which is missing.",
            1,
            False,
        ),
        ("torch 2.13.0 requires sympy, which is not installed.", 1, False),
    ],
)
def test_the_image_may_lack_phe_and_nothing_else(
    said: str, code: int, right: bool, checkout: Path, tmp_path: Path
) -> None:
    text = (checkout / FOLDER / "Dockerfile").read_text(encoding="utf-8")
    (check,) = re.findall(r"&& (\{ pip check .*\})", text)
    pip = tmp_path / "pip"
    pip.write_text(f"#!/bin/sh\nprintf '%s\\n' '{said}'\nexit {code}\n", encoding="utf-8")
    pip.chmod(0o755)

    done = subprocess.run(
        ["sh", "-c", check], cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, check=False
    )

    assert (done.returncode == 0) == right


# --- Kubernetes: they run


@dataclass(frozen=True)
class Pod:
    """One pod, whose volumes are folders here."""

    folders: dict[str, Path]
    command: Command

    @property
    def read_only(self) -> set[str]:
        """Files in what is mounted for reading."""
        return files_in(*(self.folders[place] for place in ("/config", "/certs", "/data")))


def files_in(*folders: Path) -> set[str]:
    return {str(path) for folder in folders for path in folder.rglob("*")}


def write_tables(folder: Path) -> dict[str, Path]:
    """Tables of two companies with some customers in common, each in an order of its own."""
    draw = np.random.default_rng(0)
    customers = [f"c{number:04d}" for number in range(700)]
    visits, age, price, views = draw.normal(size=(4, 700))
    everything = pd.DataFrame({"customer": customers, "visits": visits, "age": age, "price": price, "views": views})
    everything["clicked"] = (visits + price + draw.normal(size=700) > 0).astype(int)
    columns = {"ads": ["customer", "visits", "age", "clicked"], "shop": ["customer", "price", "views"]}
    for party, rows in (("ads", slice(0, 650)), ("shop", slice(50, 700))):
        (folder / party).mkdir()
        table = everything[rows].sample(frac=1, random_state=len(party))
        table[columns[party]].to_csv(folder / party / f"{party}.csv", index=False)
    return {party: folder / party for party in PARTIES}


def align(checkout: Path, data: dict[str, Path]) -> None:
    (port,) = free_ports(1)
    meets = {"ads": ["--peer", "shop", "--listen"], "shop": ["--peer"]}
    where = {"ads": f"127.0.0.1:{port}", "shop": f"ads=127.0.0.1:{port}"}
    words = {
        party: ["align", f"{party}.csv", "--id", "customer", "--as", party, "--active", "ads", *meets[party]]
        for party in PARTIES
    }
    more = ["--plaintext-on-loopback", "--out", "aligned"]
    finished({party: start(checkout, [*words[party], where[party], *more], data[party]) for party in PARTIES})


def here(text: str, port: int) -> str:
    """A file of splitvfl with addresses of this machine: names lead nowhere, and pods have an address each."""
    assert ('"ads-{worker}.ads.example:7000"' in text) != ('listen: ":7000"' in text)
    return text.replace('"ads-{worker}.ads.example:7000"', f'"127.0.0.1:{port}+"').replace(
        'listen: ":7000"', f'listen: "127.0.0.1:{port}+"'
    )


def make_shared(folder: Path, manifest: Manifest, data: Path, port: int) -> dict[str, Path]:
    """Make what all pods of a party mount: by the names of the volumes."""
    found = {"file": folder / "file", "certificates": folder / "certificates", "data": data}
    for place in found.values():
        place.mkdir(parents=True, exist_ok=True)
    places = {manifest.mounts[name]["mountPath"]: place for name, place in found.items()}
    (found["file"] / "run.yaml").write_text(moved(here(manifest.file, port), places))
    for name in ("ca.pem", f"{manifest.party}.pem", f"{manifest.party}.key"):
        shutil.copy(folder.parent / "certs" / name, found["certificates"])
    return found


def start_pod(
    checkout: Path, folder: Path, manifest: Manifest, ordinal: int, shared: dict[str, Path], join: int
) -> Pod:
    """Start what a pod starts, with a folder for each of its volumes."""
    folders = {
        one["mountPath"]: shared.get(name, folder / str(ordinal) / name) for name, one in manifest.mounts.items()
    }
    for place in folders.values():
        place.mkdir(parents=True, exist_ok=True)
    environment = {name: moved(text, folders) for name, text in manifest.environment(ordinal).items()}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(join)}
    assert manifest.container["command"] == ["splitvfl"]
    # Shorter than what stands there, and with a thread for each of the four processes.
    words = [*(moved(word, folders) for word in manifest.container["args"]), "train.epochs=2", "train.threads=1"]
    where = folders[manifest.container["workingDir"]]
    return Pod(folders, Command(words, where, COLUMNS="200", PYTHONPATH=str(checkout), **environment))


@contextmanager
def cluster(checkout: Path, folder: Path, data: dict[str, Path]) -> Iterator[dict[tuple[str, int], Pod]]:
    """Two parties of two pods each."""
    first = neighbouring_ports(2)
    make_certificates(folder / "certs", list(PARTIES))
    pods = {}
    for party, join in zip(PARTIES, free_ports(2), strict=True):
        manifest = Manifest.read(checkout, party)
        shared = make_shared(folder / party, manifest, data[party], first)
        for ordinal in range(manifest.workers["replicas"]):
            pods[party, ordinal] = start_pod(checkout, folder / party, manifest, ordinal, shared, join)
    try:
        yield pods
    finally:
        for pod in pods.values():
            pod.command.kill()


def wait_for(words: str, pod: Pod) -> None:
    """Wait until a pod says something."""
    said = []
    for line in pod.command.stderr:
        said.append(line)
        if words in line:
            return
    raise AssertionError("".join(said))


@pytest.mark.slow(reason="two parties of two workers, each in a process, that train a model")
def test_the_pods_train_a_model_and_stay_until_they_are_stopped(tmp_path: Path, checkout: Path) -> None:
    (tmp_path / "tables").mkdir()
    data = write_tables(tmp_path / "tables")
    align(checkout, data)
    with cluster(checkout, tmp_path, data) as pods:
        before = {key: pod.read_only for key, pod in pods.items()}
        for pod in pods.values():
            wait_for("waits to be stopped", pod)
        for pod in pods.values():
            assert pod.command.poll() is None
            pod.command.send_signal(signal.SIGTERM)
        assert [pod.command.wait(60) for pod in pods.values()] == [0] * 4

    for key, pod in pods.items():
        assert pod.read_only == before[key]
        assert files_in(pod.folders["/tmp"]) == set()
    for party in PARTIES:
        runs = [pods[party, 0].folders["/state"] / "run", pods[party, 1].folders["/state"] / "run" / "worker-1"]
        assert same_weights(*(weights_of(run, runs[0]) for run in runs))
        load_half(runs[0] / "model")
        assert not (runs[1] / "model").exists()


# --- torchrun, SLURM


def test_torchrun_starts_as_many_as_the_page_says(page: str) -> None:
    from torch.distributed.run import get_args_parser

    (text,) = re.findall(r"^torchrun (--nnodes .*?)\n```", page, re.DOTALL | re.MULTILINE)
    found = get_args_parser().parse_args(shlex.split(text.replace("\\\n", "")))
    assert int(found.nnodes) * int(found.nproc_per_node) == 8
    assert "`team: {workers: 8}`" in page
    assert (found.no_python, found.training_script, found.training_script_args[0]) == (True, "splitvfl", "party")


def test_slurms_variables_are_those_of_the_workers(tmp_path: Path, checkout: Path) -> None:
    """The script runs, with stand-ins for SLURM's own commands and for splitvfl."""
    stand_ins = {
        "scontrol": 'test "$*" = "show hostnames node[3-4]" && printf "node3\\nnode4\\n"',
        "srun": 'for task in 0 1; do SLURM_PROCID=$task SLURM_NTASKS=2 "$@"; done',
        "splitvfl": 'echo "$RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT: $*"',
    }
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    said = subprocess.run(
        ["bash", checkout / "docs" / "examples" / "slurm.sh"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node[3-4]", "SLURM_JOB_ID": "1234567"},
        capture_output=True,
        text=True,
        check=True,
    )
    command = "party run.yaml --as shop --out runs/shop"
    assert said.stdout.splitlines() == [f"{rank} of 2 at node3:24567: {command}" for rank in range(2)]
    assert said.stderr == ""


# --- Ray Train

FILE = """
data: {name: table, path: PARTY.csv, aligned: aligned}
parties:
  ads: {role: active, columns: rest, label: clicked, address: "127.0.0.1:PORT+"}
  shop: {role: passive, columns: rest}
model: {name: mlp, bottom: [8], top_hidden: [8]}
team: {workers: 2}
train: {epochs: 2, batch_size: 128, seed: 1}
network: {listen: "127.0.0.1:PORT+", plaintext_on_loopback: true, message_s: 60, meeting_s: 300}
"""


def example_of_ray(arguments: Sequence[str]) -> int:
    """The example's function for one worker, with a process group that is there, in a thread, as Ray calls it."""
    checkout, rank, size, port, *settings = arguments
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ray", "ray.train", "ray.train.torch"):
            patch.setitem(sys.modules, name, MagicMock())
        example = runpy.run_path(str(Path(checkout) / "docs" / "examples" / "ray_train.py"))
    store = dist.TCPStore("127.0.0.1", int(port), int(size), is_master=rank == "0")
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(size))
    with ThreadPoolExecutor(1) as thread:
        thread.submit(example["train"], dict(zip(("file", "party", "out"), settings, strict=True))).result()
    dist.barrier()  # who keeps the store goes last
    return 0


def place_ray(folder: Path, data: dict[str, Path]) -> None:
    first = neighbouring_ports(2)
    for party, place in data.items():
        text = FILE.replace("PARTY", party).replace("PORT", str(first))
        if party == "shop":
            text = text.replace(", label: clicked", "")
        (place / "run.yaml").write_text(text)


def check_ray(data: dict[str, Path]) -> None:
    for place in data.values():
        assert same_weights(*map(weights_of, (place / "run", place / "run" / "worker-1")))
        load_half(place / "run" / "model")


@pytest.fixture
def aligned(tmp_path: Path, checkout: Path) -> dict[str, Path]:
    data = write_tables(tmp_path)
    align(checkout, data)
    place_ray(tmp_path, data)
    return data


@pytest.mark.slow(reason="two parties of two workers, each in a process")
def test_the_example_of_ray_trains_in_a_process_group_that_is_there(aligned: dict[str, Path], checkout: Path) -> None:
    workers = {}
    for party, place in aligned.items():
        (port,) = free_ports(1)
        for rank in range(2):
            words = [str(checkout), str(rank), "2", str(port), "run.yaml", party, "run"]
            workers[f"{party} {rank}"] = Command(words, place, program=example_of_ray, PYTHONPATH=str(checkout))
    finished(workers)
    check_ray(aligned)


@pytest.mark.slow(reason="Ray takes long to start")
def test_the_example_of_ray_runs_on_ray(aligned: dict[str, Path], checkout: Path) -> None:
    pytest.importorskip("ray.train.torch")
    path = os.pathsep.join(filter(None, (str(checkout), os.environ.get("PYTHONPATH"))))
    joined = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
    words = ["party", "run.yaml", "--as", "ads", "--out", "run"]
    others = {f"ads {rank}": Command(words, aligned["ads"], RANK=str(rank), **joined) for rank in range(2)}
    said = subprocess.run(
        [sys.executable, checkout / "docs" / "examples" / "ray_train.py", "run.yaml", "shop", "run"],
        cwd=aligned["shop"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert said.returncode == 0, said.stderr
    finished(others)
    check_ray(aligned)
