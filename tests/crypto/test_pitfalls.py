"""What goes wrong with Paillier in other hands: each pitfall is one test, or a few."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import gmpy2
import numpy as np
import pytest
import torch
from gmpy2 import mpz
from phe import paillier as phe

from splitvfl.crypto.ciphertexts import read_ciphertexts, write_ciphertexts
from splitvfl.crypto.evaluator import Evaluator
from splitvfl.crypto.fixed_point import encode
from splitvfl.crypto.kernels import packed_sums
from splitvfl.crypto.keys import PrivateKey, PublicKey
from splitvfl.crypto.owner import Owner
from splitvfl.crypto.packing import pack, split_slots, unpack
from splitvfl.crypto.paillier import (
    ciphertexts_from_phe,
    ciphertexts_to_phe,
    generate_keys,
    private_to_phe,
    to_phe,
)
from splitvfl.crypto.pools import Pool
from splitvfl.crypto.product_layout import ProductLayout
from splitvfl.errors import ArgumentError, CryptoError

Layouts = Callable[..., ProductLayout]


# Slot width


def test_the_width_of_a_slot_comes_from_the_agreement_not_from_the_batch(key: PrivateKey, layout: Layouts) -> None:
    agreed = layout()
    owner, evaluator = Owner(key), Evaluator(key.public, agreed)
    shapes = set()
    for size in (0, 1, agreed.weight_size):
        sent = owner.encrypt([min(size, agreed.value_size)] * 3, agreed)
        masked = evaluator.masked_sums([(sent, torch.full((3, 9), size))])
        shapes.add((sent.shape[1], tuple(masked.reply.shape), tuple(owner.open_masked(masked.reply, agreed).shape)))

    assert len(shapes) == 1


def test_one_overflow_would_corrupt_every_higher_slot_and_is_refused() -> None:
    modulus, wide = (1 << 127) - 1, 8
    unchecked = sum(value << (place * wide) for place, value in enumerate([300, 1, 2]))

    assert split_slots(unchecked, slot_bits=wide, count=3) == [44, 2, 2]
    with pytest.raises(ArgumentError):
        pack([300, 1, 2], slot_bits=wide, modulus=modulus)


def test_values_and_weights_are_checked_before_encryption(key: PrivateKey, layout: Layouts) -> None:
    agreed = layout()
    with pytest.raises(CryptoError, match="the agreed limit"):
        agreed.encode_values(torch.tensor([2.1]))
    with pytest.raises(CryptoError, match="the agreed limit"):
        Owner(key).encrypt([agreed.value_size + 1], agreed)
    with pytest.raises(CryptoError, match="the agreed limit"):
        Evaluator(key.public, agreed).masked_sums(
            [(Owner(key).encrypt([1]), torch.full((1, 9), agreed.weight_size + 1))]
        )


def test_phe_wraps_around_silently_where_we_raise() -> None:
    public, private = phe.generate_paillier_keypair(n_length=1024)
    number = public.encrypt(0.1)
    for _ in range(19):
        number = number * 1.1

    try:
        wrapped = private.decrypt(number)
    except OverflowError:
        wrapped = float("nan")
    # phe notices when the number falls into the middle third of all, which depends on the key.
    assert wrapped != wrapped or abs(wrapped - 0.1 * 1.1**19) > 0.5
    with pytest.raises(ArgumentError, match="takes 172 bits, and a key of 128 bits holds 85"):
        ProductLayout(key_bits=128, rows=1, outputs=1, value_limit=1.0, weight_limit=512.0, value_bits=60,
                      weight_bits=60, plain_limit=2.0**49)  # fmt: skip


# Sign


def test_negative_slots_borrow_and_plain_cutting_is_wrong_above_them() -> None:
    modulus, values = (1 << 127) - 1, [-1, 5, -7, 3]
    packed = pack(values, slot_bits=16, modulus=modulus)

    cut = [(packed >> (place * 16)) % 2**16 for place in range(4)]
    assert [value - 2**16 * (value >= 2**15) for value in cut] != values
    assert unpack(packed, slot_bits=16, count=4, modulus=modulus) == values


def test_the_modulus_is_centred_before_slots_are_cut() -> None:
    modulus = (1 << 127) - 1
    packed = pack([-1, -1], slot_bits=16, modulus=modulus)

    assert packed > modulus // 2
    with pytest.raises(ArgumentError):
        split_slots(packed, slot_bits=16, count=2)
    assert unpack(packed, slot_bits=16, count=2, modulus=modulus) == [-1, -1]


# Masks


def test_a_mask_covers_all_numbers_modulo_n(key: PrivateKey, layout: Layouts) -> None:
    evaluator, sent = Evaluator(key.public, layout(outputs=1)), Owner(key).encrypt([1])
    masks = [evaluator._mask(1) for _ in range(4000)]

    # The mean of uniform numbers in [0, 1) has the standard error 1/√(12 · 4000) = .0046; six of them.
    assert abs(sum(mask / key.public.n for mask in masks) / 4000 - 0.5) < 0.028
    assert 0.99 < max(masks) / key.public.n < 1
    masked = evaluator.masked_sums([(sent, torch.ones(1, 1, dtype=torch.int64))])
    (opened,) = Owner(key).decrypt(masked.reply)
    assert opened % key.public.n == 1 + masked.masks[0]


def test_a_mask_leaves_out_edges_in_which_sums_would_wrap_around(
    key: PrivateKey, layout: Layouts, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed = layout()
    evaluator = Evaluator(key.public, agreed)
    drawn: dict[str, list[int]] = {}
    for name, choose in {"lowest": lambda limit: 0, "highest": lambda limit: limit - 1}.items():
        monkeypatch.setattr("splitvfl.crypto.evaluator.secrets", SimpleNamespace(randbelow=choose))
        drawn[name] = [evaluator._mask(count) for count in agreed.counts]

    assert drawn["lowest"] == [1 << bits for bits in agreed.opened_bits]
    assert drawn["highest"] == [key.public.n - (1 << bits) - 1 for bits in agreed.opened_bits]


def test_a_mask_has_to_fit_the_key_with_what_it_hides() -> None:
    fitting = {"key_bits": 512, "rows": 1, "outputs": 1, "value_limit": 1.0, "weight_bits": 60}
    widest = ProductLayout(**fitting, value_bits=60, weight_limit=2.0**347)  # type: ignore[arg-type]

    assert widest.slot_bits == 512 - 43
    with pytest.raises(ArgumentError, match="holds 469 beside its mask"):
        ProductLayout(**fitting, value_bits=60, weight_limit=2.0**348)  # type: ignore[arg-type]


# Packing is also the active attack


def malicious_reply(key: PrivateKey, sent: torch.Tensor, weights: torch.Tensor, slot_bits: int) -> torch.Tensor:
    """A reply that holds more sums than were agreed, packed into one ciphertext."""
    values = read_ciphertexts(sent, key.public)
    counts = [weights.shape[1]]
    return write_ciphertexts(
        packed_sums(values, weights.numpy(), counts=counts, slot_bits=slot_bits, n=key.public.modulus), key.public
    )


def test_a_malicious_party_packs_every_residue_into_one_reply_and_gets_the_agreed_bits_back(key: PrivateKey) -> None:
    residues = [3, -5, 7, -1, 2, -8]
    one = {
        "key_bits": 512,
        "rows": 6,
        "outputs": 1,
        "value_limit": 8.0,
        "weight_limit": 1.0,
        "value_bits": 0,
        "weight_bits": 0,
    }
    owner, sent = Owner(key), Owner(key).encrypt(residues)
    # Six equations where one sum was agreed: the identity, with slots of its own choice and no mask.
    reply = malicious_reply(key, sent, torch.eye(6, dtype=torch.int64), slot_bits=16)

    # An owner that returned all that it decrypts would give all of them away.
    (opened,) = owner.decrypt(reply)
    assert unpack(opened, slot_bits=16, count=6, modulus=key.public.n) == residues

    agreed = ProductLayout(**one)  # type: ignore[arg-type]
    capped = owner.open_masked(reply, agreed)
    assert agreed.slot_bits == 8
    assert capped.shape == (1, 1)
    # One byte came back: the low bits of the plaintext in [0, n), and nothing of the others.
    assert capped.item() == opened % key.public.n % 256


def test_more_ciphertexts_than_agreed_are_not_decrypted(key: PrivateKey, layout: Layouts) -> None:
    agreed = layout(outputs=1)
    sent = Owner(key).encrypt([3, -5, 7])

    with pytest.raises(CryptoError, match="expected 1 ciphertexts, got 3"):
        Owner(key).open_masked(sent, agreed)


def test_a_longer_plaintext_than_agreed_is_not_decrypted_modulo_one_prime(key: PrivateKey) -> None:
    # The agreed sums would fit one prime, which is half the work. But then this request returned the low bits of a
    # number less a multiple of p, and of enough of them p follows.
    agreed = ProductLayout(key_bits=512, rows=1, outputs=1, value_limit=1.0, weight_limit=1.0, packed=False)
    sent = Owner(key).encrypt([1 << 500])

    opened = int.from_bytes(bytes(Owner(key).open_masked(sent, agreed)[0].tolist()), "big")

    (bits,) = agreed.opened_bits
    assert opened == (1 << 500) % 2**bits
    assert opened != int((1 << 500) % key.p) % 2**bits


# Re-randomising


def guesses_that_fit(reply: mpz, sent: list[mpz], n: mpz) -> list[int]:
    """The binary columns under which a reply is the product of what was sent, whatever its plaintext is: modulo n."""
    found = []
    for guess in range(1 << len(sent)):
        product = mpz(1)
        for place, value in enumerate(sent):
            if guess >> place & 1:
                product = product * value % n
        if product == reply % n:
            found.append(guess)
    return found


def test_the_owner_reads_a_binary_column_from_a_masked_reply_that_was_not_re_randomised(key: PrivateKey) -> None:
    column, secret = 0b1011001110, 987654321
    n, square = key.public.modulus, key.public.square
    sent = read_ciphertexts(Owner(key).encrypt(list(range(10))), key.public)
    product = mpz(1)
    for place, value in enumerate(sent):
        if column >> place & 1:
            product = product * value % square
    masked_only = product * (1 + secret * n) % square

    assert guesses_that_fit(masked_only, sent, n) == [column]


def test_replies_are_re_randomised_even_when_masked(key: PrivateKey) -> None:
    agreed = ProductLayout(
        key_bits=512, rows=10, outputs=1, value_limit=1.0, weight_limit=1.0, value_bits=8, weight_bits=0
    )
    made = Owner(key).encrypt(list(range(10)))
    weights = torch.tensor([[0b1011001110 >> place & 1] for place in range(10)])
    evaluator = Evaluator(key.public, agreed)
    # Blinding takes care of this guess already, with one factor for the whole reply: enough for one sum at most.
    evaluator._blinding = SimpleNamespace(blinded=list)  # type: ignore[assignment]
    reply = evaluator.masked_sums([(made, weights)]).reply

    (value,) = read_ciphertexts(reply, key.public)
    assert guesses_that_fit(value, read_ciphertexts(made, key.public), key.public.modulus) == []


def test_an_obfuscator_serves_once(key: PrivateKey) -> None:
    n, square = key.public.modulus, key.public.square
    factor = gmpy2.powmod(2, n, square)
    first, second = ((1 + value * n) * factor % square for value in (10, 35))
    # Two ciphertexts with one obfuscator tell everybody the difference of their plaintexts.
    assert ((second * gmpy2.invert(first, square) % square) - 1) // n == 25

    with Pool.fixed_base(key, capacity=2) as pool:
        sent = torch.cat([Owner(key, obfuscators=pool).encrypt([10, 35]) for _ in range(8)])
    assert len({value % n for value in read_ciphertexts(sent, key.public)}) == 16


# Exponents, and other habits of phe


def test_the_exponent_of_phe_tells_a_residues_size_and_ours_is_constant(key: PrivateKey, layout: Layouts) -> None:
    public = to_phe(key.public)
    assert (public.encrypt(0.5).exponent, public.encrypt(1e-9).exponent) == (-14, -21)

    sent = Owner(key).encrypt(layout().encode_values(torch.tensor([0.5, 1e-9, 0.0])), layout())
    assert [number.exponent for number in ciphertexts_to_phe(key.public, sent, bits=32)] == [-8, -8, -8]
    assert sent.shape == (3, 128)


def test_a_number_that_phe_has_not_obfuscated_is_obfuscated_before_it_leaves(key: PrivateKey) -> None:
    number = to_phe(key.public).encrypt(5, precision=1, r_value=1)
    bare = number.ciphertext(be_secure=False)
    assert bare == (1 + 5 * key.public.n) % key.public.n**2

    sent = ciphertexts_from_phe(key.public, [number], bits=0)
    assert read_ciphertexts(sent, key.public) != [bare]
    assert Owner(key).decrypt(sent) == [5]


def test_every_ciphertext_of_ours_is_obfuscated(key: PrivateKey) -> None:
    n = key.public.n

    assert all(value % n != 1 for value in read_ciphertexts(Owner(key).encrypt([0, 1, -1]), key.public))


def test_numbers_of_numpy_and_torch_are_converted_where_phe_refuses_them(key: PrivateKey) -> None:
    for refused in (np.int64(3), np.float32(3.0)):
        with pytest.raises(TypeError):
            to_phe(key.public).encrypt(refused)
    assert encode(torch.tensor([3.0], dtype=torch.float32), bits=4, limit=8.0).tolist() == [48]
    owner = Owner(key)
    assert owner.decrypt(owner.encrypt([np.int64(3), np.int32(-4)])) == [3, -4]
    assert private_to_phe(key).raw_decrypt(int(read_ciphertexts(owner.encrypt([np.int64(3)]), key.public)[0])) == 3


# Randomness


def test_no_module_of_the_cryptography_has_randomness_but_from_secrets(checkout: Path) -> None:
    forbidden = {"random", "numpy.random", "np.random", "torch.rand", "torch.randint", "torch.randn",
                 "gmpy2.mpz_random", "gmpy2.random_state"}  # fmt: skip
    for path in (checkout / "splitvfl" / "crypto").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert not {name for name in names if any(name == bad or name.startswith(f"{bad}.") for bad in forbidden)}, path


def test_every_process_has_randomness_of_its_own(key: PrivateKey) -> None:
    with Pool.powers(key.public, capacity=2) as first, Pool.powers(key.public, capacity=2) as second:
        assert not set(first.take(10)) & set(second.take(10))


# Unmasking


def test_a_party_with_as_many_columns_as_records_solves_for_the_residues(key: PrivateKey) -> None:
    agreed = ProductLayout(key_bits=512, rows=3, outputs=3, value_limit=8.0, weight_limit=4.0)
    residues = torch.tensor([0.25, -0.5, 0.75], dtype=torch.float64)
    columns = torch.tensor([[1.0, 2.0, 0.5], [0.0, 1.0, -1.0], [3.0, 0.0, 1.0]], dtype=torch.float64)
    evaluator, owner = Evaluator(key.public, agreed), Owner(key)

    sent = owner.encrypt(agreed.encode_values(residues), agreed)
    masked = evaluator.masked_sums([(sent, agreed.encode_weights(columns))])
    sums = agreed.decode_sums(evaluator.unmask(owner.open_masked(masked.reply, agreed), masked))

    # Encryption does not help here, whatever the key: the sums are what the party is meant to learn.
    assert torch.linalg.solve(columns.T, sums) == pytest.approx(residues, abs=1e-8)


# Short keys


@pytest.mark.parametrize("bits", [512, 1024, 2046])
def test_short_keys_are_for_tests_and_papers_only(bits: int, key: PrivateKey) -> None:
    with pytest.raises(ArgumentError, match="even key length from 2048 bits"):
        generate_keys(bits)
    with pytest.raises(CryptoError, match="expected a key of 2048 to 16384 bits"):
        PublicKey(key.public.n)
    assert inspect.signature(generate_keys).parameters["bits"].default == phe.DEFAULT_KEYSIZE == 3072


# Limits that are stated rather than removed


@pytest.mark.parametrize("module", ["kernels", "modular", "obfuscators"])
def test_what_is_not_constant_time_says_so(checkout: Path, module: str) -> None:
    tree = ast.parse((checkout / "splitvfl" / "crypto" / f"{module}.py").read_text(encoding="utf-8"))
    texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef)]

    assert any("constant-time" in text for text in texts)


def test_gmp_computes(key: PrivateKey) -> None:
    # Without it everything takes nine times as long: it is no option.
    assert isinstance(key.public.modulus, type(mpz()))
    assert gmpy2.mp_version().startswith("GMP")
