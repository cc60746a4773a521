"""What attacks read of a view, in words: for people who have never seen a :class:`~splitvfl.hooks.View`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_WORDS: Mapping[str, str] = {
    "gradient": "the gradient of each record",
    "aggregated_gradient": "the gradient of its own weights",
    "activation": "its own activations",
    "columns": "its own columns",
    "logits": "the model's logits, which a party has where nobody adds to its own part of them",
    "weights": "its own weights",
    "bottom": "its own half of the model",
    "known_positives": "which of a few records are positive",
    "known_negatives": "which of a few records are negative",
    "classes": "how many classes there are",
    "known_records": "of which few records it knows the labels",
    "known_values": "the labels of a few records",
    "scores": "published scores",
    "active_logits": "its own part of the logits",
    "passive_weight": "the passive party's weights",
    "equations": "what predictions tell of the partner's columns, given its weights",
    "alphabets": "which values the partner's columns can take",
    "logit_parts": "the partner's part of the logits, without its weights",
    "received_activation": "the partner's activations as they were received",
    "auxiliary": "the partner's columns of a few records of each message",
    "earlier_auxiliary": "the partner's columns of a few records of earlier messages",
    "partner_bottom": "the partner's half of the model",
    "whole_model": "the whole trained model",
    "known_columns": "the partner's columns of a few of the records that are scored",
    "losses": "the finished model's loss of each record",
    "known_members": "of a few records that they were trained on",
    "known_others": "of a few records that they were not trained on",
    "partner_architecture": "the architecture of the partner's half of the model",
    "top": "the label party's own half of the model, with the labels of a few records",
    "packed_values": "values that a party unpacks which deviates (malicious: {PARTY: packing})",
    "partner_steps": "every step of the training of a partner with one column",
    "known_rows": "the partner's columns of a few records",
}


def in_words(fields: Iterable[str]) -> list[str]:
    """Return what fields of a view are, in the order of their names; a field that nobody knows is called by its name.

    >>> in_words({"scores", "columns"})
    ['its own columns', 'published scores']
    """
    return [_WORDS.get(field, field) for field in sorted(fields)]
