"""The second head of docs/reference/cut.md, as it stands there: nothing that crosses depends on it."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from splitvfl import SplitModel
from splitvfl.defenses import Isotropic, RandomisedResponse
from splitvfl.hooks import Secrets
from splitvfl.models import MLP
from tests.builders import generator


class Noted:
    """A defense that changes nothing and keeps what would be sent."""

    crossing = "gradient"

    def __init__(self) -> None:
        self.sent: list[Tensor] = []

    def __call__(self, gradient: Tensor, secrets: Secrets, /) -> Tensor:
        self.sent.append(gradient.clone())
        return gradient.clone()


def batches() -> list[Any]:
    made = []
    for number in range(40):
        x = torch.randn(16, 5, generator=generator("x", number))
        own = torch.randn(16, 2, generator=generator("own", number))
        made.append((x, own, ((x[:, 0] + own[:, 0]) > 0).float(), torch.arange(16) + 16 * number))
    return made


def defended() -> tuple[SplitModel, Noted]:
    torch.manual_seed(3)
    model, noted = SplitModel(MLP(5, [8], dropout=0.2), MLP(10, [6, 1], final_activation=False, dropout=0.2)), Noted()
    for defense in (RandomisedResponse(epsilon=1.0), Isotropic(ratio=0.5), noted):
        model.defend(defense, noise_seed_for_experiments=5)
    return model, noted


def without_it(model: SplitModel, data: list[Any]) -> None:
    """The same loop, by hand, with one head."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for x, own, y, ids in data:
        optimizer.zero_grad()
        logits = model(x, active=own, labels=y, ids=ids)[:, 0]
        nn.functional.binary_cross_entropy_with_logits(logits, model.targets(y, ids=ids)).backward()
        optimizer.step()


def test_the_loop_on_the_page_sends_what_a_loop_without_it_sends(checkout: Path) -> None:
    page = (checkout / "docs" / "reference" / "cut.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)

    private = MLP(10, [6, 1], final_activation=False, dropout=0.2)
    before = copy.deepcopy(private.state_dict())
    data = batches()
    model, noted = defended()
    torch.manual_seed(7)
    names["train"](model, private, data)
    plain, expected = defended()
    torch.manual_seed(7)
    without_it(plain, data)

    assert len(noted.sent) == len(expected.sent) == 40
    assert all(torch.equal(one, other) for one, other in zip(noted.sent, expected.sent, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), plain.parameters(), strict=True))
    assert not torch.equal(private.state_dict()["layers.0.weight"], before["layers.0.weight"])
