"""When a partner's only feature is said to follow, it does: by NumPy alone, which shares no formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from splitvfl.errors import ArgumentError
from splitvfl.privacy import linking_epochs, linking_probability, solvable_column
from splitvfl.privacy.single_column import PartsSeen, SolvableColumn
from splitvfl.privacy.solvable import SummedTraining
from tests.rows import every


def found(features: int = 1, *, own: int | None = 3, seen: PartsSeen = "sums", **more: Any) -> SolvableColumn | None:
    size, steps, epochs = (more.pop(name, usual) for name, usual in (("batch_size", 4), ("steps", 8), ("epochs", 10)))
    last = more.pop("last", 0)
    training = SummedTraining(size * steps if not last else size * (steps - 1) + last, size, epochs)
    return solvable_column("lab", features, training, seen=seen, own_features=own, **more)


@every(features=[1, 2], batch_size=[1, 2, 3, 5, 8], own=[0, 1, 2, 4, 7])
def test_it_is_said_exactly_where_ratios_of_the_feature_follow_from_the_sums(
    features: int, batch_size: int, own: int
) -> None:
    random = np.random.default_rng(1)
    columns = np.c_[random.normal(size=(batch_size, own)), np.ones(batch_size)]
    theirs, weights = random.normal(size=(batch_size, features)), random.normal(size=features)
    parts = theirs @ weights
    solved = np.linalg.lstsq(columns.T, columns.T @ parts, rcond=None)[0]
    # A ratio of two records, which a single record does not have.
    ratios, truth = solved[1:] / solved[0], theirs[1:, 0] / theirs[0, 0]
    follows = bool(ratios.size) and np.allclose(ratios, truth, rtol=1e-6)
    said = found(features, own=own, batch_size=batch_size)
    assert (said is not None) == follows
    assert said is None or said.equations == own + 1


def test_parts_in_the_clear_need_no_sums_and_parts_of_several_are_not_told_apart() -> None:
    assert found(own=0, seen="each", batch_size=500) is not None
    assert found(own=0, seen="sums", batch_size=500) is None
    assert found(seen="sums", partners=2) is not None
    assert found(seen="sums of all", partners=1) is not None
    assert found(seen="sums of all", partners=2) is None


def _linked(random: np.random.Generator, steps: int, size: int, epochs: int) -> bool:
    """Whether batches of random orders, joined where they share a record, are one: by spreading from the first."""
    batches = [set(part.tolist()) for _ in range(epochs) for part in np.split(random.permutation(steps * size), steps)]
    reached, grows = batches[0], True
    while grows:
        joined = set().union(*(batch for batch in batches if batch & reached))
        grows, reached = joined != reached, joined
    return len(reached) == steps * size


@pytest.mark.parametrize(("steps", "size"), [(1, 2), (2, 2), (4, 2), (8, 2), (2, 4), (3, 3), (8, 3), (16, 3)])
def test_batches_are_linked_at_least_as_often_as_is_said(steps: int, size: int) -> None:
    random, draws = np.random.default_rng(2), 300
    often = np.mean([_linked(random, steps, size, linking_epochs(steps)) for _ in range(draws)])
    stated = linking_probability(steps, size)
    assert often >= stated - 3 * np.sqrt(stated * (1 - stated) / draws)


@pytest.mark.parametrize(("steps", "epochs"), [(1, 2), (2, 2), (3, 3), (4, 3), (5, 4), (8, 4), (9, 5)])
def test_linking_takes_the_epochs_of_the_theorem(steps: int, epochs: int) -> None:
    assert linking_epochs(steps) == epochs == max(int(np.ceil(np.log2(steps))) + 1, 2)


def test_large_runs_have_a_probability_of_one() -> None:
    assert linking_probability(2, 2) == 0
    assert linking_probability(10**6, 10**6) == 1


def test_what_is_said_names_the_sums_the_sign_and_how_long_it_takes() -> None:
    known, unknown = found(), found(own=None)
    assert known is not None
    assert unknown is not None
    text = " ".join(known.sentences())
    assert "only feature of lab, up to its sign (" in text
    assert "4 sums in each step" in text
    assert "within 4 epochs, with probability 0.996 at least" in text  # 1 - 2 / 8 ** 3
    near = found(batch_size=20, own=19)
    assert near is not None
    assert "with probability 0.999 at least" in " ".join(near.sentences())
    assert "if the label owner has 3 features or more" in " ".join(unknown.sentences())
    short, steep = (
        found(epochs=1),
        solvable_column("lab", 1, SummedTraining(32, 4, 10), seen="each", own_features=0, scaled=False),
    )
    assert short is not None
    assert not short.linked
    assert "In 1 epoch it compares records that batches link; all records are linked within 4" in " ".join(
        short.sentences()
    )
    assert steep is not None
    assert "up to one factor" in steep.sentences()[0]
    assert "Batches of more" not in " ".join(steep.sentences())


def test_wrong_numbers_are_refused() -> None:
    sizes: list[dict[str, Any]] = [{name: 0} for name in ("batch_size", "steps", "epochs", "partners", "features")]
    for wrong in [*sizes, {"own": -1}]:
        with pytest.raises(ArgumentError):
            found(**wrong)


@pytest.mark.parametrize(("last", "follows"), [(0, False), (1, False), (2, True), (4, True), (5, False)])
def test_a_short_last_batch_is_solved_for_though_others_are_too_large(last: int, follows: bool) -> None:
    """Beside NumPy, with the four sums of three features and an intercept."""
    random = np.random.default_rng(3)
    columns, x = np.c_[random.normal(size=(last, 3)), np.ones(last)], random.normal(size=last)
    solved = np.linalg.lstsq(columns.T, columns.T @ (0.7 * x), rcond=None)[0]
    assert (last >= 2 and np.allclose(solved / 0.7, x)) == follows
    said = found(batch_size=5, last=last)
    assert (said is not None) == follows
    if said is not None:
        assert said.last_only
        assert not said.scaled
        text = " ".join(said.sentences())
        assert f"It has {last} records" in text
        assert "train.drop_last: true" in text
