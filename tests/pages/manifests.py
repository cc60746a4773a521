"""The Kubernetes manifests of docs/several-machines.md, as far as tests need to understand them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from splitvfl.config.sections import ExperimentConfig, parse_config

PARTIES = ("ads", "shop")
FOLDER = Path("docs", "examples", "kubernetes")


@dataclass(frozen=True)
class Manifest:
    """One party's manifest."""

    party: str
    text: str

    @classmethod
    def read(cls, checkout: Path, party: str) -> Manifest:
        return cls(party, (checkout / FOLDER / f"{party}.yaml").read_text(encoding="utf-8"))

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [one for one in yaml.safe_load_all(self.text) if one]

    def all_of(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.objects if one["kind"] == kind]

    def one(self, kind: str, name: str = "") -> Any:
        (found,) = (each for each in self.all_of(kind) if name in ("", each["metadata"]["name"]))
        return found

    @property
    def workers(self) -> Any:
        """What the StatefulSet asks for."""
        return self.one("StatefulSet")["spec"]

    @property
    def pod(self) -> Any:
        return self.workers["template"]["spec"]

    @property
    def container(self) -> Any:
        (container,) = self.pod["containers"]
        return container

    @property
    def mounts(self) -> dict[str, Any]:
        """What is mounted, by the name of its volume."""
        return {one["name"]: one for one in self.container["volumeMounts"]}

    @property
    def volumes(self) -> dict[str, Any]:
        """What the pod mounts, by name; those of claim templates are ``None``."""
        own = {one["name"]: one for one in self.pod["volumes"]}
        return own | {one["metadata"]["name"]: None for one in self.workers["volumeClaimTemplates"]}

    @property
    def file(self) -> str:
        """The file of splitvfl, as the ConfigMap has it."""
        text = self.one("ConfigMap")["data"]["run.yaml"]
        assert isinstance(text, str)
        return text

    @property
    def config(self) -> ExperimentConfig:
        return parse_config(self.file, source="run.yaml")

    def environment(self, ordinal: int) -> dict[str, str]:
        """What a pod's process finds, as the kubelet fills it in from the pod's labels."""
        labels = {"apps.kubernetes.io/pod-index": str(ordinal)}
        found = {}
        for one in self.container["env"]:
            path = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            label = re.fullmatch(r"metadata\.labels\['(.*)'\]", path)
            found[one["name"]] = one["value"] if label is None else labels[label[1]]
        return found


def moved(text: str, folders: Mapping[str, Path]) -> str:
    """Return a text with other folders in place of those that are mounted."""
    places = "|".join(map(re.escape, folders))
    return re.sub(rf"(?<![\w/])({places})(?![\w-])", lambda found: str(folders[found[1]]), text)
