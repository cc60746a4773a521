from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from splitvfl.attacks import NormAttack
from splitvfl.defenses import TopK
from splitvfl.errors import ArgumentError
from splitvfl.hooks import Secrets, View, call_attack, call_defense, crossing_of
from splitvfl.metrics import leak_auc

SecretsFactory = Callable[..., Secrets]


def slow_top_k(rows: list[list[float]], keep: float) -> list[list[float]]:
    """Sort every entry of the message; cut at the K-th."""
    magnitudes = sorted((abs(value) for row in rows for value in row), reverse=True)
    least = magnitudes[max(1, round(keep * len(magnitudes))) - 1]
    return [[value if abs(value) >= least else 0.0 for value in row] for row in rows]


@given(
    rows=st.integers(1, 4).flatmap(
        lambda width: st.lists(
            st.lists(st.sampled_from([-3.0, -1.5, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0]), min_size=width, max_size=width),
            min_size=1,
            max_size=8,
        )
    ),
    keep=st.floats(0.001, 1.0),
)
def test_it_sends_what_sorting_all_entries_leaves(rows: list[list[float]], keep: float) -> None:
    secrets = Secrets(party="bank", step=0, generator=torch.Generator())

    sent = call_defense(TopK(keep=keep), torch.tensor(rows), secrets)

    assert sent.tolist() == slow_top_k(rows, keep)


@pytest.mark.parametrize(("keep", "entries"), [(0.1, 60), (0.0999, 60), (0.25, 150), (1.0, 600), (0.0001, 1)])
def test_the_share_is_of_the_whole_message(keep: float, entries: int, secrets_for_test: SecretsFactory) -> None:
    gradient = torch.randn(100, 6, generator=torch.Generator().manual_seed(0))

    sent = call_defense(TopK(keep=keep), gradient, secrets_for_test())

    assert int((sent != 0).sum()) == entries
    assert torch.equal(sent[sent != 0], gradient[sent != 0])
    if entries < 600:
        assert (sent != 0).sum(dim=1).unique().numel() > 1  # not a share of each row


def test_ties_are_kept_whatever_the_order_of_the_records(secrets_for_test: SecretsFactory) -> None:
    gradient = torch.tensor([[1.0, -2.0], [2.0, 0.5], [-2.0, 0.1]])

    sent = call_defense(TopK(keep=1 / 6), gradient, secrets_for_test())

    assert sent.tolist() == [[0.0, -2.0], [2.0, 0.0], [-2.0, 0.0]]
    for order in ([2, 0, 1], [1, 2, 0]):
        assert torch.equal(call_defense(TopK(keep=1 / 6), gradient[order], secrets_for_test()), sent[order])


def test_long_rows_stay_long(secrets_for_test: SecretsFactory) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = (torch.arange(400) % 10 == 0).float()
    gradient = torch.randn(400, 8, generator=generator) * (0.1 + labels[:, None])

    sent = call_defense(TopK(keep=0.1), gradient, secrets_for_test())

    scores = call_attack(NormAttack(), View(party="telecom", step=0, ids=torch.arange(400), gradient=sent))
    assert leak_auc(scores, labels) > 0.99


def test_what_was_dropped_is_logged(secrets_for_test: SecretsFactory) -> None:
    logged: dict[str, float] = {}

    call_defense(TopK(keep=0.5), torch.tensor([[3.0, 1.0], [0.5, -4.0]]), secrets_for_test(log=logged.__setitem__))

    power, signal = (1.0 + 0.25) / 2, (10.0 + 16.25) / 2
    assert logged == pytest.approx({"power": power, "noise_to_signal": power / signal})
    assert crossing_of(TopK()) == "gradient"
    assert TopK().keep == 0.1


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.5, math.nan])
def test_bad_shares_are_refused(keep: float) -> None:
    with pytest.raises(ArgumentError, match=r"keep must lie in \(0, 1\], got"):
        TopK(keep=keep)
