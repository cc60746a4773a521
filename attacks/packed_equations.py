"""Arithmetic of the packing attack: many equations in one ciphertext.

Under an additively homomorphic cipher the party without the key sends sums ``[[Σ w_i v_i]]`` of the other party's
encrypted values v, with weights of its own, and gets them back decrypted. An honest weight has a few dozen bits and the
plaintext two thousand. A malicious weight is itself a packed number, ``w_i = Σ_k row_k[i] 2^(k ι)``, and the plaintext
then holds u sums in slots of ι bits. d ciphertexts give ``u d`` equations instead of d, which determine every value of
a batch of up to ``u d`` records.

It works in both roles: for a passive party on encrypted residues (or ``g_i^A − 2 y_i``), and for the label party on
encrypted inner products ``g_i^B``. Everything here is integers; encryption, masks and messages are the caller's. It
does not say whether the other party decrypts such a ciphertext: a cap on ciphertexts and on the bits of each stops it.

Source: *Is Vertical Logistic Regression Privacy-Preserving?*, section 5.2, the active packing attack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import flint

from splitvfl.crypto.packing import slot_capacity, unpack
from splitvfl.errors import ArgumentError


def slots_available(modulus_bits: int, slot_bits: int) -> int:
    """Return how many equations one ciphertext carries: ``u = ⌊(κ − 1) / ι⌋``.

    Args:
        modulus_bits: Bit length κ of the modulus.
        slot_bits: Width ι of a slot in bits.

    Raises:
        ArgumentError: If a width is too small.

    >>> slots_available(2048, 100)
    20
    """
    return slot_capacity(modulus_bits, slot_bits)


def slot_bits_needed(
    records: int, *, value_bits: int, weight_bits: int, largest_value: float, largest_weight: float
) -> int:
    """Return the width of a slot that no sum can overflow: ``⌈2 + f_g + f_x + log2(s max|g| max|x|)⌉``.

    A row that picks one record is a sum of one: ``records=1, weight_bits=0, largest_weight=1``.

    Args:
        records: s, how many values are added up, at least 1.
        value_bits: f_g, fraction bits of the encrypted values, at least 0.
        weight_bits: f_x, fraction bits of the weights, at least 0.
        largest_value: Bound on a value's magnitude before it was scaled, above 0.
        largest_weight: Bound on a weight's magnitude before it is scaled, above 0.

    Raises:
        ArgumentError: If an argument is outside its range.

    >>> slot_bits_needed(256, value_bits=32, weight_bits=26, largest_value=4.0, largest_weight=1.0)
    70
    """
    if min(value_bits, weight_bits) < 0 or records < 1:
        raise ArgumentError(
            f"expected records from 1 and fraction bits from 0, got {records}, {value_bits} and {weight_bits}"
        )
    for name, bound in (("largest_value", largest_value), ("largest_weight", largest_weight)):
        if not (math.isfinite(bound) and bound > 0):
            raise ArgumentError(f"{name} must be finite and above 0, got {bound!r}")
    magnitude = math.log2(records) + math.log2(largest_value) + math.log2(largest_weight)
    return max(2, math.ceil(2 + value_bits + weight_bits + magnitude))


def packed_weights(rows: Sequence[Sequence[int]], *, slot_bits: int, value_bound: int, modulus: int) -> list[int]:
    """Return one weight per record, so that a single encrypted sum carries an equation per row.

    ``w_i = Σ_k rows[k][i] · 2^(k ι)``: the decrypted ``Σ_i w_i v_i`` has ``Σ_i rows[k][i] v_i`` in slot k, which
    :func:`unpack_equations` takes out.

    Args:
        rows: u equations of one integer per record.
        slot_bits: Width ι of a slot in bits.
        value_bound: Largest magnitude of the encrypted integers.
        modulus: The cipher's.

    Returns:
        Signed integers, one per record; larger than the modulus they never are.

    Raises:
        ArgumentError: If there is no row, rows differ in length, there are more than slots, or a row's sum could exceed
            its slot.

    >>> weights = packed_weights([[1, 0], [2, -1]], slot_bits=8, value_bound=20, modulus=1_000_003)
    >>> weights
    [513, -256]
    >>> unpack_equations([513 * 7 - 256 * -20], slot_bits=8, count=2, modulus=1_000_003)
    [7, 34]
    """
    _check_rows(rows)
    capacity = slots_available(modulus.bit_length(), slot_bits)
    if len(rows) > capacity:
        raise ArgumentError(f"expected at most {capacity} rows in slots of {slot_bits} bits, got {len(rows)}")
    for place, row in enumerate(rows):
        _check_fits(place, row, slot_bits, value_bound)
    return [sum(row[i] << (k * slot_bits) for k, row in enumerate(rows)) for i in range(len(rows[0]))]


def packed_selections(
    records: int, *, ciphertexts: int, slot_bits: int, value_bound: int, modulus: int
) -> list[list[int]]:
    """Return the weights of the shortest attack: slot k of ciphertext j carries record ``j u + k`` itself.

    Rows that pick one record each (unit vectors for features) need no solving and the narrowest slots. Records beyond
    ``ciphertexts · u`` are left out; slots beyond the last record are empty.

    Args:
        records: s, records of the batch.
        ciphertexts: d, how many sums the other party decrypts, at least 1.
        slot_bits: Width ι of a slot in bits.
        value_bound: Largest magnitude of the encrypted integers.
        modulus: The cipher's.

    Returns:
        One list of s weights per ciphertext; ``unpack_equations(..., count=slots_available(...))`` of the decrypted
        sums begins with the s values, or as many as there are slots.

    Raises:
        ArgumentError: If an argument is below 1, no slot fits, or a value could exceed its slot.

    >>> packed_selections(3, ciphertexts=2, slot_bits=8, value_bound=9, modulus=2**17)
    [[1, 256, 0], [0, 0, 1]]
    """
    if records < 1 or ciphertexts < 1:
        raise ArgumentError(f"expected at least one record and one ciphertext, got {records} and {ciphertexts}")
    slots = slots_available(modulus.bit_length(), slot_bits)
    if slots < 1:
        raise ArgumentError(f"no slot of {slot_bits} bits fits a modulus of {modulus.bit_length()} bits")
    _check_fits(0, [1], slot_bits, value_bound)
    return [
        [1 << ((i - j * slots) * slot_bits) if j * slots <= i < (j + 1) * slots else 0 for i in range(records)]
        for j in range(ciphertexts)
    ]


def unpack_equations(plaintexts: Sequence[int], *, slot_bits: int, count: int, modulus: int) -> list[int]:
    """Return the signed sums that decrypted (and unmasked) plaintexts carry: slot after slot, one after another.

    Centred modulo N first, then from the lowest slot upwards, each subtracted before the next: a negative slot borrows
    from the one above.

    Args:
        plaintexts: Numbers modulo N.
        slot_bits: Width ι of a slot in bits.
        count: Slots per plaintext.
        modulus: N.

    Returns:
        ``count`` integers per plaintext.

    Raises:
        ArgumentError: If so many slots do not fit, or a plaintext exceeds its slots: it was packed otherwise, or is
            masked.
    """
    return [
        value
        for plaintext in plaintexts
        for value in unpack(plaintext, slot_bits=slot_bits, count=count, modulus=modulus)
    ]


def solve_equations(rows: Sequence[Sequence[int]], sums: Sequence[int]) -> list[int]:
    """Return the integers v with ``Σ_i rows[k][i] v_i = sums[k]`` for every k, exactly.

    Solves ``RᵀR v = Rᵀ sums`` over the rationals: without rounding, however ill-conditioned the rows are.

    Args:
        rows: m equations of one integer per record, of rank s.
        sums: m integers.

    Returns:
        s integers.

    Raises:
        ArgumentError: If lengths do not fit, the rows determine fewer values than there are records (s > u d, or rows
            that depend on each other), or no integers solve them.

    >>> solve_equations([[3, 1], [1, 1], [0, 2]], [5, -1, -8])
    [3, -4]
    """
    _check_rows(rows)
    if len(sums) != len(rows):
        raise ArgumentError(f"expected one sum per row, {len(rows)}, got {len(sums)}")
    matrix = flint.fmpz_mat([list(row) for row in rows])
    sides = flint.fmpz_mat([[value] for value in sums])
    transposed = matrix.transpose()
    try:
        solution = (transposed * matrix).solve(transposed * sides)
    except ZeroDivisionError:
        raise ArgumentError(
            f"{len(rows)} equations of rank {matrix.rank()} do not determine {len(rows[0])} values"
        ) from None
    # Numerators of fractions solve nothing, and the comparison says so.
    values = [int(solution[place, 0].p) for place in range(len(rows[0]))]
    if matrix * flint.fmpz_mat([[value] for value in values]) != sides:
        raise ArgumentError("no integers solve these equations: the sums are noisy, or of other rows")
    return values


def _check_rows(rows: Sequence[Sequence[int]]) -> None:
    lengths = {len(row) for row in rows}
    if len(lengths) != 1 or 0 in lengths:
        raise ArgumentError(f"expected rows of one integer per record, got rows of lengths {sorted(lengths)}")


def _check_fits(place: int, row: Sequence[int], slot_bits: int, value_bound: int) -> None:
    weight = sum(abs(weight) for weight in row)
    if value_bound < 1 or value_bound * weight >= 1 << (slot_bits - 1):
        raise ArgumentError(
            f"row {place} can reach {value_bound} * {weight}, which does not fit a signed slot of {slot_bits} bits; "
            "expected a value_bound from 1, and wider slots"
        )
