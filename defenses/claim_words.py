"""What the promises of several defenses rest on, and leave out, in the same words."""

from __future__ import annotations

from splitvfl.claims import LABEL_RELEASES, Condition, DetectionError, NoPromise, named

PREDICTION = "Whether a label can be predicted, from a partner's columns or by the model."
GENERATOR = (
    "Draws of a fixed seed, which is for experiments: torch's generators are not cryptographic. An adversary who reads "
    "the party's checkpoints, which hold the key that draws follow from."
)
ROUNDED_NOISE = (
    "That noise is rounded: from the keystream of a deployed run it is discrete, on a grid, which adds 10⁻⁶ at most to "
    "an ε or μ of one number; under a fixed seed, and on an accelerator, it is drawn in floating point."
)
FLOATING_POINT = "That noise is drawn, and multiplied, in floating point."
MANY_STEPS = "Anything over many steps, in which noise that is drawn anew averages out."

_SEARCHED = (
    f"A guarantee for the whole run does not apply with {named(LABEL_RELEASES, joined_by='or')}. Batches "
    "that are drawn by label are not seen."
)

ONE_RECORD = Condition(
    "A label belongs to one id, and takes part in one run.",
    "Nobody can check that: a person under two ids, or a second run, is one more release.",
)
ANSWERS_ALONE = Condition(
    "What partners see follows from labels through these answers alone.",
    f"Checked in a run: the loss and all later defenses get the answers. {_SEARCHED}",
)
RECORDS_APART = Condition(
    "No layer behind the cut mixes the records of a batch.",
    "Checked where it is attached: BatchNorm and its like are refused.",
)
NO_OTHER_RELEASE = Condition(
    "Nothing else that partners see is made from true labels.",
    f"Checked in a run: {_SEARCHED[0].lower()}{_SEARCHED[1:]}",
)
GAUSSIAN_CLASSES = Condition(
    "The gradients of each class are Gaussian, with the same spread in all directions, and the attacker knows no more "
    "of a record.",
    "Nobody checks that, and it is false below a linear top, where they lie on one line, and against a partner who "
    "knows what the model predicts of a record.",
)


def under_a_model(
    error: float | None, *limits: str, mechanism: str, condition: Condition
) -> tuple[DetectionError | NoPromise, ...]:
    """Return the claim of noise that is solved for a detection error under a model of gradients.

    Args:
        error: The detection error; ``None``: a power was set in its place, and nothing is promised.
        limits: What it does not cover, in whole sentences, before what none of these defenses covers.
        mechanism: What is done, in words that go on in a sentence.
        condition: The model.
    """
    if error is None:
        return (NoPromise("Its power is set, and the detection error that this leaves under its model is logged."),)
    left_out = (*limits, MANY_STEPS, PREDICTION, GENERATOR)
    return (DetectionError(error, proven=False, mechanism=mechanism, conditions=(condition,), not_covered=left_out),)
