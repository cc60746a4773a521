from __future__ import annotations

import pytest
import torch

from splitvfl.errors import ArgumentError
from splitvfl.models import Linear, LinearTop, linear
from splitvfl.models.linear import Init


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    torch.manual_seed(0)


def test_linear_is_columns_times_weights() -> None:
    layer = Linear(4, 2)
    columns = torch.randn(3, 4)

    assert layer.bias is None
    torch.testing.assert_close(layer(columns), columns @ layer.weight.T)


def test_a_layer_without_memory_draws_nothing_until_it_has_some(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(linear, "_INITS", {"xavier": lambda weight: pytest.fail("drawn")})
        with torch.device("meta"):
            layer = Linear(4, 2)
    made = layer.to_empty(device="cpu")
    made.reset_parameters()
    assert made.weight.abs().max() > 0


@pytest.mark.parametrize(("init", "deviation"), [("xavier", 0.001**0.5), ("kaiming", 0.002**0.5), ("normal", 1.0)])
def test_initial_weights_are_normal(init: Init, deviation: float) -> None:
    # 1 000 000 draws: five standard errors of a standard deviation are .35 %.
    weight = Linear(1000, 1000, init=init).weight.detach()
    assert weight.std().item() == pytest.approx(deviation, rel=0.0035)
    # Of normal draws .27 % lie beyond three deviations; five standard errors are .026 %.
    assert (weight.abs() > 3 * deviation).double().mean().item() == pytest.approx(0.0027, abs=0.00026)


def test_zero_weights_and_intercepts() -> None:
    zero = Linear(5, 3, bias=True, init="zero")
    assert not zero.weight.any()
    assert not zero.bias.any()
    assert not Linear(5, bias=True).bias.any()


def test_parts_and_intercept_add_up() -> None:
    top = LinearTop(2, 3, active_inputs=4)
    assert top.own is not None
    torch.nn.init.normal_(top.intercept)
    first, second, active = torch.randn(5, 3), torch.randn(5, 3), torch.randn(5, 4)

    logits = top(torch.cat([first, second, active], dim=1))

    torch.testing.assert_close(logits, first + second + active @ top.own.weight.T + top.intercept)
    torch.testing.assert_close(logits - first - second, top.active_logits(active))


def test_a_split_logistic_regression_is_one_logistic_regression() -> None:
    passive, active, labels = torch.randn(9, 4), torch.randn(9, 2), (torch.rand(9) < 0.5).float()
    bottom, top = Linear(4), LinearTop(1, active_inputs=2)
    assert top.own is not None
    whole = torch.nn.Linear(6, 1)
    with torch.no_grad():
        whole.weight.copy_(torch.cat([bottom.weight, top.own.weight], dim=1))
        whole.bias.zero_()
    loss = torch.nn.functional.binary_cross_entropy_with_logits

    activation = bottom(passive)
    activation.retain_grad()
    logits = top(torch.cat([activation, active], dim=1))
    loss(logits.squeeze(1), labels).backward()
    joint = whole(torch.cat([passive, active], dim=1))
    loss(joint.squeeze(1), labels).backward()

    torch.testing.assert_close(logits, joint)
    assert bottom.weight.grad is not None
    assert whole.weight.grad is not None
    torch.testing.assert_close(torch.cat([bottom.weight.grad, top.own.weight.grad], dim=1), whole.weight.grad)
    torch.testing.assert_close(top.intercept.grad, whole.bias.grad)
    # The cut gradient is the residue over the batch size.
    torch.testing.assert_close(activation.grad, (torch.sigmoid(logits) - labels.unsqueeze(1)) / 9)


def test_an_active_party_without_columns_has_an_intercept_only() -> None:
    top = LinearTop(1)
    torch.nn.init.ones_(top.intercept)

    assert [name for name, _ in top.named_parameters()] == ["intercept"]
    assert top(torch.zeros(2, 1)).tolist() == [[1.0], [1.0]]
    assert top.active_logits(torch.zeros(2, 0)).tolist() == [[1.0], [1.0]]


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="at least 1 input and 1 output, got 0 and 1"):
        Linear(0)
    with pytest.raises(ArgumentError, match="one of xavier, zero, kaiming, normal, got 'ones'"):
        Linear(2, init="ones")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="got 0, 1 and 0"):
        LinearTop(0)
    with pytest.raises(ArgumentError, match=r"expected shape \(n, 5\): 2 activations and 3 columns.* got \(7, 4\)"):
        LinearTop(2, active_inputs=3)(torch.zeros(7, 4))
