from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from splitvfl.crypto.evaluator import Evaluator, MaskedSums
from splitvfl.crypto.integers import integers_to_tensor
from splitvfl.crypto.keys import PrivateKey
from splitvfl.crypto.obfuscators import Products
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.errors import CryptoError, SumError

Layouts = Callable[..., ProductLayout]


def integers(shape: tuple[int, ...], limit: int, seed: int) -> Tensor:
    return torch.randint(-limit, limit + 1, shape, generator=torch.Generator().manual_seed(seed))


def answered(key: PrivateKey, evaluator: Evaluator, masked: MaskedSums) -> list[int]:
    return evaluator.unmask(Owner(key).open_masked(masked.reply, evaluator.layout), masked)


def exact(weights: Tensor, values: Tensor) -> list[int]:
    """Sums in integers of any size."""
    return [
        sum(int(w) * int(v) for w, v in zip(column, values.tolist(), strict=True)) for column in weights.t().tolist()
    ]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("rows", [1, 4, 6])
def test_sums_are_those_in_the_clear(key: PrivateKey, layout: Layouts, packed: bool, rows: int) -> None:
    agreed = layout(packed=packed)
    values, weights = integers((rows,), agreed.value_size, 1), integers((rows, 9), agreed.weight_size, 2)
    evaluator = Evaluator(key.public, agreed)

    masked = evaluator.masked_sums([(Owner(key).encrypt(values, agreed), weights)])

    assert masked.reply.shape == (agreed.replies, 128)
    assert answered(key, evaluator, masked) == exact(weights, values)


@pytest.mark.parametrize("edge", ["drawn", "lowest", "highest"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_that_were_agreed_fit(
    key: PrivateKey, layout: Layouts, edge: str, sign: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing wraps around n, whatever mask is drawn: no sum is ever wrong by chance."""
    if edge != "drawn":
        drawn = SimpleNamespace(randbelow=lambda limit: 0 if edge == "lowest" else limit - 1)
        monkeypatch.setattr("splitvfl.crypto.evaluator.secrets", drawn)
    agreed = layout(plain_limit=50.0)
    values, weights = torch.full((6,), agreed.value_size), torch.full((6, 9), sign * agreed.weight_size)
    weights[:, ::2] *= -1
    evaluator = Evaluator(key.public, agreed)
    plain = [agreed.plain_size if weight > 0 else -agreed.plain_size for weight in weights[0].tolist()]

    masked = evaluator.masked_sums([(Owner(key).encrypt(values, agreed), weights)], plain=plain)

    largest = 6 * agreed.value_size * agreed.weight_size + agreed.plain_size
    assert largest == agreed.largest_sum
    assert answered(key, evaluator, masked) == [largest if value > 0 else -largest for value in plain]


def test_sums_of_several_parties_under_one_key(key: PrivateKey, layout: Layouts) -> None:
    agreed = layout(rows=6, plain_limit=1.0)
    first, second = integers((2,), agreed.value_size, 1), integers((4,), agreed.value_size, 2)
    weights = integers((6, 9), agreed.weight_size, 3)
    plain = list(range(-4, 5))
    evaluator, owner = Evaluator(key.public, agreed, obfuscators=Products(key.public)), Owner(key)

    terms = [(owner.encrypt(first), weights[:2]), (owner.encrypt(second), weights[2:])]
    masked = evaluator.masked_sums(terms, plain=plain)

    expected = exact(weights, torch.cat([first, second]))
    assert answered(key, evaluator, masked) == [a + b for a, b in zip(expected, plain, strict=True)]


def test_real_numbers_agree_to_the_stated_error(key: PrivateKey, layout: Layouts) -> None:
    agreed = layout()
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


def test_two_replies_to_the_same_question_have_nothing_in_common(key: PrivateKey, layout: Layouts) -> None:
    agreed = layout()
    evaluator, sent = Evaluator(key.public, agreed), Owner(key).encrypt([1, 2, 3])
    first, second = (evaluator.masked_sums([(sent, torch.ones(3, 9, dtype=torch.int64))]) for _ in range(2))

    assert not set(first.masks) & set(second.masks)
    assert not (first.reply == second.reply).all(dim=1).any()
    assert "masks" not in repr(first)


def test_a_key_of_another_length_is_refused(key: PrivateKey, layout: Layouts) -> None:
    with pytest.raises(CryptoError, match="expected a key of 1024 bits, as agreed, got one of 512 bits"):
        Evaluator(key.public, layout(key_bits=1024))


def test_bad_terms_are_refused(key: PrivateKey, layout: Layouts) -> None:
    agreed = layout()
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
def test_bad_addends_are_refused(key: PrivateKey, layout: Layouts, plain: list[int], said: str) -> None:
    evaluator, sent = Evaluator(key.public, layout()), Owner(key).encrypt([1])

    with pytest.raises(CryptoError, match=said):
        evaluator.masked_sums([(sent, torch.ones(1, 9, dtype=torch.int64))], plain=plain)


@pytest.mark.parametrize("shift", [1, -1])
def test_a_sum_larger_than_agreed_numbers_can_make_it_is_refused(key: PrivateKey, layout: Layouts, shift: int) -> None:
    agreed = layout(outputs=1, plain_limit=1.0)
    evaluator, owner = Evaluator(key.public, agreed), Owner(key)
    # The largest sum of all, of six of the largest products and what is added.
    sent = owner.encrypt([shift * agreed.value_size] * 6, agreed)
    weights = torch.full((6, 1), agreed.weight_size)
    masked = evaluator.masked_sums([(sent, weights)], plain=[shift * agreed.plain_size])
    opened = owner.open_masked(masked.reply, agreed)
    number = int.from_bytes(bytes(opened[0].tolist()), "big")
    more = integers_to_tensor([(number + shift) % 2**agreed.slot_bits], agreed.opened_bytes)

    assert evaluator.unmask(opened, masked) == [shift * agreed.largest_sum]
    with pytest.raises(SumError, match="expected sum 0 of 1 up to 2"):
        evaluator.unmask(more, masked)


def test_whether_a_sum_is_refused_depends_on_it_and_on_nothing_else_of_its_party(
    key: PrivateKey, layout: Layouts
) -> None:
    """Small weights have the limit of large ones: their size would be told by where refusals begin."""
    agreed = layout(outputs=1)
    evaluator, owner = Evaluator(key.public, agreed), Owner(key)
    for weight in (0, 1, agreed.weight_size):
        masked = evaluator.masked_sums([(owner.encrypt([0]), torch.tensor([[weight]]))])
        number = int.from_bytes(bytes(owner.open_masked(masked.reply, agreed)[0].tolist()), "big")
        for lie, refused in ((agreed.largest_sum, False), (agreed.largest_sum + 1, True)):
            for sign in (1, -1):
                answer = integers_to_tensor([(number + sign * lie) % 2**agreed.slot_bits], agreed.opened_bytes)
                if refused:
                    with pytest.raises(SumError):
                        evaluator.unmask(answer, masked)
                else:
                    assert evaluator.unmask(answer, masked) == [sign * lie]


def test_an_answer_of_another_form_is_refused(key: PrivateKey, layout: Layouts) -> None:
    agreed = layout(outputs=1)
    evaluator, owner = Evaluator(key.public, agreed), Owner(key)
    masked = evaluator.masked_sums([(owner.encrypt([1]), torch.ones(1, 1, dtype=torch.int64))])
    opened = owner.open_masked(masked.reply, agreed)

    with pytest.raises(CryptoError, match="expected 1 masked plaintexts, got 2"):
        evaluator.unmask(opened.repeat(2, 1), masked)
    with pytest.raises(CryptoError, match="expected bytes"):
        evaluator.unmask(opened[:, 1:], masked)
    # 66 bits in 9 bytes.
    assert agreed.opened_bits == (66,)
    with pytest.raises(CryptoError, match="of up to 66 bits, as agreed, number 0 has 72") as caught:
        evaluator.unmask(torch.full_like(opened, 255), masked)
    assert not isinstance(caught.value, SumError)


def test_a_number_that_is_no_row_of_slots_is_refused(key: PrivateKey, layout: Layouts) -> None:
    agreed = layout()
    evaluator, owner = Evaluator(key.public, agreed), Owner(key)
    masked = evaluator.masked_sums([(owner.encrypt([0]), torch.ones(1, 9, dtype=torch.int64))])
    # The largest signed number of so many bits: more than slots can hold that are signed each.
    pairs = zip(masked.masks, agreed.opened_bits, strict=True)
    values = [(mask + 2 ** (bits - 1) - 1) % 2**bits for mask, bits in pairs]

    with pytest.raises(SumError, match="masked plaintext 0 is not what was sent"):
        evaluator.unmask(integers_to_tensor(values, agreed.opened_bytes), masked)
