"""What attacks read of a view, in words."""

from __future__ import annotations

from splitvfl.hooks import View, ViewField
from splitvfl.leakage.view_fields import in_words


def test_every_field_of_a_view_has_words_and_a_plug_ins_own_its_name() -> None:
    fields = [name for name, value in vars(View).items() if isinstance(value, ViewField)]
    assert len(fields) > 15
    words = in_words(fields)
    assert len(set(words)) == len(fields)
    assert not [text for text in words if "_" in text or text in fields]
    assert in_words(["scores", "charm"]) == ["charm", "published scores"]
