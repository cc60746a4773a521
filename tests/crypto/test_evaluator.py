from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from splitvfl.crypto.budget import Budget
from splitvfl.crypto.evaluator import Evaluator, MaskedSums
from splitvfl.crypto.integers import integers_to_tensor
from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.obfuscators import Products
from splitvfl.crypto.owner import Owner
from splitvfl.errors import CryptoError

Budgets = Callable[..., Budget]


def integers(shape: tuple[int, ...], limit: int, seed: int) -> Tensor:
    return torch.randint(-limit, limit + 1, shape, generator=torch.Generator().manual_seed(seed))


def answered(key: PrivateKey, evaluator: Evaluator, masked: MaskedSums) -> list[int]:
    return evaluator.unmask(Owner(key).open_masked(masked.reply, evaluator.budget), masked)


def exact(weights: Tensor, values: Tensor) -> list[int]:
    """Sums in integers of any size."""
    return [
        sum(int(w) * int(v) for w, v in zip(column, values.tolist(), strict=True)) for column in weights.t().tolist()
    ]


@pytest.mark.parametrize("mask", ["uniform", "bounded"])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("rows", [1, 4, 6])
def test_sums_are_those_in_the_clear(key: PrivateKey, budget: Budgets, mask: str, packed: bool, rows: int) -> None:
    agreed = budget(mask=mask, packed=packed)
    values, weights = integers((rows,), agreed.value_size, 1), integers((rows, 9), agreed.weight_size, 2)
    evaluator = Evaluator(key.public, agreed)

    masked = evaluator.masked_sums([(Owner(key).encrypt(values, agreed), weights)])

    assert masked.reply.shape == (agreed.replies, 128)
    assert answered(key, evaluator, masked) == exact(weights, values)


@pytest.mark.parametrize("mask", ["uniform", "bounded"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_that_were_agreed_fit(key: PrivateKey, budget: Budgets, mask: str, sign: int) -> None:
    agreed = budget(mask=mask, plain_limit=50.0)
    values, weights = torch.full((6,), agreed.value_size), torch.full((6, 9), sign * agreed.weight_size)
    weights[:, ::2] *= -1
    evaluator = Evaluator(key.public, agreed)
    plain = [agreed.plain_size if weight > 0 else -agreed.plain_size for weight in weights[0].tolist()]

    masked = evaluator.masked_sums([(Owner(key).encrypt(values, agreed), weights)], plain=plain)

    largest = 6 * agreed.value_size * agreed.weight_size + agreed.plain_size
    assert answered(key, evaluator, masked) == [largest if value > 0 else -largest for value in plain]


def test_sums_of_several_parties_under_one_key(key: PrivateKey, budget: Budgets) -> None:
    agreed = budget(rows=6, plain_limit=1.0)
    first, second = integers((2,), agreed.value_size, 1), integers((4,), agreed.value_size, 2)
    weights = integers((6, 9), agreed.weight_size, 3)
    plain = list(range(-4, 5))
    evaluator, owner = Evaluator(key.public, agreed, obfuscators=Products(key.public)), Owner(key)

    terms = [(owner.encrypt(first), weights[:2]), (owner.encrypt(second), weights[2:])]
    masked = evaluator.masked_sums(terms, plain=plain)

    expected = exact(weights, torch.cat([first, second]))
    assert answered(key, evaluator, masked) == [a + b for a, b in zip(expected, plain, strict=True)]


def test_real_numbers_agree_to_the_stated_error(key: PrivateKey, budget: Budgets) -> None:
    agreed = budget()
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(6, generator=generator, dtype=torch.float64) * 4 - 2
    weights = torch.rand(6, 9, generator=generator, dtype=torch.float64) * 8 - 4
    evaluator = Evaluator(key.public, agreed)

    sent = Owner(key).encrypt(agreed.encode_values(values), agreed)
    masked = evaluator.masked_sums([(sent, agreed.encode_weights(weights))])
    found = agreed.decode_sums(answered(key, evaluator, masked))

    # float64 sums of six products of size 8 err by 1e-14 at most, a millionth of the stated error.
    assert (found - weights.t() @ values).abs().max() <= agreed.error
    assert agreed.error < 1e-7


def test_two_replies_to_the_same_question_have_nothing_in_common(key: PrivateKey, budget: Budgets) -> None:
    agreed = budget()
    evaluator, sent = Evaluator(key.public, agreed), Owner(key).encrypt([1, 2, 3])
    first, second = (evaluator.masked_sums([(sent, torch.ones(3, 9, dtype=torch.int64))]) for _ in range(2))

    assert not set(first.masks) & set(second.masks)
    assert not (first.reply == second.reply).all(dim=1).any()
    assert "masks" not in repr(first)


def test_a_key_of_another_length_is_refused(key: PrivateKey, budget: Budgets) -> None:
    with pytest.raises(CryptoError, match="expected a key of 1024 bits, as agreed, got one of 512 bits"):
        Evaluator(key.public, budget(key_bits=1024))


def test_bad_terms_are_refused(key: PrivateKey, budget: Budgets) -> None:
    agreed = budget()
    evaluator, owner = Evaluator(key.public, agreed), Owner(key)
    sent, ones = owner.encrypt([1, 2, 3]), torch.ones(3, 9, dtype=torch.int64)
    too_large = ones.clone()
    too_large[2, 7] = -agreed.weight_size - 1

    for terms, said in (
        ([], "at least one vector of ciphertexts"),
        ([(sent, ones[:2])], r"expected weights int64 \(3, 9\), got int64 \(2, 9\)"),
        ([(sent, ones[:, :8])], r"int64 \(3, 9\), got int64 \(3, 8\)"),
        ([(sent, ones.double())], r"got float64 \(3, 9\)"),
        ([(sent, too_large)], "got -268435457 in row 2, column 7"),
        ([(sent, ones)] * 3, "expected 1 to 6 rows, as agreed, got 9"),
        ([(sent[:0], ones[:0])], "expected 1 to 6 rows, as agreed, got 0"),
        ([(torch.zeros_like(sent), ones)], "number 0 is 0"),
    ):
        with pytest.raises(CryptoError, match=said):
            evaluator.masked_sums(terms)


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ([0] * 8, "expected 9 plain addends, got 8"),
        ([0] * 8 + [1], "up to 0 in size, the agreed limit, got one of 1 bits at place 8"),
        ([0.5] * 9, "expected integers"),
    ],
)
def test_bad_addends_are_refused(key: PrivateKey, budget: Budgets, plain: list[int], said: str) -> None:
    evaluator, sent = Evaluator(key.public, budget()), Owner(key).encrypt([1])

    with pytest.raises(CryptoError, match=said):
        evaluator.masked_sums([(sent, torch.ones(1, 9, dtype=torch.int64))], plain=plain)


@pytest.mark.parametrize("mask", ["uniform", "bounded"])
@pytest.mark.parametrize("shift", [1, -1])
def test_a_sum_larger_than_its_weights_can_make_it_is_refused(
    key: PrivateKey, budget: Budgets, mask: str, shift: int
) -> None:
    agreed = budget(mask=mask, outputs=1, plain_limit=1.0)
    evaluator, owner = Evaluator(key.public, agreed), Owner(key)
    # The largest sum of these weights, 3 of the largest value and what is added, has the bits for no more than itself.
    sent = owner.encrypt([shift * agreed.value_size], agreed)
    masked = evaluator.masked_sums([(sent, torch.tensor([[3]]))], plain=[5 * shift])
    opened = owner.open_masked(masked.reply, agreed)
    number = int.from_bytes(bytes(opened[0].tolist()), "big")
    more = integers_to_tensor([(number + shift) % 256**agreed.opened_bytes], agreed.opened_bytes)

    assert evaluator.unmask(opened, masked) == [shift * (3 * agreed.value_size + 5)]
    with pytest.raises(CryptoError, match="expected sum 0 of 1 below 2"):
        evaluator.unmask(more, masked)


@pytest.mark.parametrize("mask", ["uniform", "bounded"])
def test_an_answer_to_something_else_is_refused(key: PrivateKey, budget: Budgets, mask: str) -> None:
    # One output, so that what is under the mask has room to be wrong in, modulo n; a bounded mask has none.
    agreed = budget(mask=mask, outputs=1)
    evaluator, owner = Evaluator(key.public, agreed), Owner(key)
    masked = evaluator.masked_sums([(owner.encrypt([1]), torch.ones(1, 1, dtype=torch.int64))])
    opened = owner.open_masked(masked.reply, agreed)

    with pytest.raises(CryptoError, match="expected 1 masked plaintexts, got 2"):
        evaluator.unmask(opened.repeat(2, 1), masked)
    with pytest.raises(CryptoError, match="expected bytes"):
        evaluator.unmask(opened[:, 1:], masked)
    if mask == "uniform":
        with pytest.raises(CryptoError, match="masked plaintext 0 is not what was sent: expected 1 slots"):
            evaluator.unmask(torch.zeros_like(opened), masked)
