"""Which readers a party should run, and that there are such."""

from __future__ import annotations

from dataclasses import replace

import torch

from splitvfl import attacks
from splitvfl.data.columns import Columns, PartyData
from splitvfl.hooks import hook_name, needs_of, reads_activations, target_of
from splitvfl.leakage.column_readers import BY_LESS, readers_to_run
from tests.builders import party_data


def with_a_category(data: PartyData, *, numbers: int) -> PartyData:
    train = data.train
    columns = Columns(train.columns.numeric[:, :numbers], torch.zeros(train.count, 1, dtype=torch.int64))
    return replace(data, numeric_names=data.numeric_names[:numbers], train=replace(train, columns=columns))


def test_all_built_in_readers_are_named_but_those_that_assume_less() -> None:
    readers = {
        hook_name(made): made
        for made in (getattr(attacks, name) for name in attacks.__all__)
        if hasattr(made, "name") and target_of(made) == "features" and reads_activations(made)
    }
    data = party_data("lab", width=3)
    assert set(BY_LESS) <= set(readers)
    for name in BY_LESS:
        del readers[name]
    assert set(readers_to_run(data)) == set(readers)
    assert set(readers_to_run(with_a_category(data, numbers=3))) == {
        name for name, made in readers.items() if "partner_bottom" not in needs_of(made)
    }
    assert readers_to_run(with_a_category(data, numbers=0)) == readers_to_run(with_a_category(data, numbers=3))
    bare = replace(data.train, columns=Columns.of(data.train.columns.numeric[:, :0]))
    assert readers_to_run(replace(data, numeric_names=(), train=bare)) == ()
