"""Every numbered claim of the paper, with the run or the test that shows it.

Verdicts of claims that are measured stand in the tables of their parts; those here are read off them.

Source: *Is Vertical Logistic Regression Privacy-Preserving?*.
"""

from __future__ import annotations

from scripts.reproduce.shared.pages import Section
from scripts.reproduce.shared.settings import Settings
from scripts.reproduce.shared.statements import STATEMENT_VERDICTS, Statement, statements_table

_ATTACKS = "tests/attacks"
_SOLVING = f"{_ATTACKS}/test_residue_solving.py"
_FEATURE = f"{_ATTACKS}/test_single_feature.py"
_TWIN = f"{_ATTACKS}/test_orthogonal_twin.py"
_HORIZON = "tests/privacy/test_sign_horizon.py"
_LABELS = f"{_ATTACKS}/test_recover_labels.py"
_PACKED = f"{_ATTACKS}/test_packed_equations.py"
_NOISE = "tests/privacy/test_dp_paillier.py"
_OWN = "tests/scripts/test_reproduce_vertical_lr_privacy.py"
_SIGMOIDS = "tests/learning/test_sigmoid_coefficients.py"
_EXCHANGES = "tests/exchange/test_logistic_exchanges.py"

_UNSEEN = "its words were not at hand"

STATEMENTS = (
    *(
        Statement(
            number=number,
            says=f"of section 3, the attack on features; {_UNSEEN}",
            tests=(test,),
            verdict=None,
            why=f"{subject}, is judged below",
        )
        for number, test, subject in (
            (
                "theorem 3.1",
                f"{_SOLVING}::test_residues_are_recovered_exactly_up_to_the_rank",
                "its subject, that residues follow from their sum",
            ),
            ("corollary 3.2", f"{_SOLVING}::test_more_residues_than_rank_are_refused", "its subject, up to how many"),
            (
                "lemma 3.3",
                f"{_FEATURE}::test_logits_follow_from_residues_or_are_nan",
                "its subject, that logits follow from residues",
            ),
            (
                "lemma 3.4",
                f"{_FEATURE}::test_linkage_takes_more_than_one_epoch_and_says_so",
                "its subject, how batches are linked by records that they share",
            ),
        )
    ),
    Statement(
        number="residues (section 3)",
        says="the sum of residue times row determines the residues of a batch of s records where s is at most the rank "
        "of one's own columns",
        tests=(
            f"{_SOLVING}::test_residues_are_recovered_exactly_up_to_the_rank",
            f"{_SOLVING}::test_more_residues_than_rank_are_refused",
        ),
        verdict="reproduces",
        why="exactly, by least squares; of more records than that it does not determine them",
    ),
    Statement(
        number="linkage (section 3)",
        says="with what probability so many epochs link all batches",
        parts=("features",),
        tests=(f"{_FEATURE}::test_linkage_takes_more_than_one_epoch_and_says_so",),
        verdict="does not",
        why="the printed bound is wrong; counted here, the epochs of theorem 3.5 link batches of 2 in .67 of orders or "
        "more, of 4 in .96, of 16 and more in all",
    ),
    Statement(
        number="theorem 3.5",
        says="a party with one column: the column is known exactly, up to its sign, after max(⌈log₂ m⌉ + 1, 2) epochs",
        parts=("features",),
        tests=(f"{_FEATURE}::test_every_feature_is_recovered_up_to_one_sign",),
        verdict="only with a variant",
        why="with batches of 16 and more, of which two epochs link all; batches of 2 and 4 records may take longer, as "
        "an order that links too little is possible with any number of epochs",
    ),
    Statement(
        number="theorem 3.6",
        says="of a party with two columns and more the features are determined up to an orthogonal map only (its "
        f"content; {_UNSEEN})",
        tests=(
            f"{_TWIN}::test_the_twin_sends_the_same_messages_from_other_features",
            f"{_FEATURE}::test_two_features_are_refused_before_and_noticed_after",
        ),
        verdict="reproduces",
        why="another party, with turned columns and weights, sends the same messages, to rounding",
    ),
    Statement(
        number="theorem 4.1",
        says="a label party without columns (d_A = 0) gives its labels away",
        parts=("first-batch",),
        tests=(
            f"{_LABELS}::test_labels_follow_from_their_sum",
            f"{_LABELS}::test_every_batch_does_where_the_active_party_has_no_columns",
        ),
        verdict="only with a variant",
        why="exactly up to s = d, and beyond as far as a search finds them; a sum of few digits does not tell many "
        "labels, whoever searches",
    ),
    Statement(
        number="labels from signs (section 4)",
        says="minus the sign of a solved residue is the label, in T first steps (278 at η = .01 from zero weights)",
        parts=("labels",),
        tests=(
            f"{_HORIZON}::test_the_formula_of_the_paper_at_its_settings",
            f"{_HORIZON}::test_signs_are_labels_within_the_horizon_of_a_run",
        ),
        verdict="reproduces",
        why="for rows of norm up to 1; for others the horizon is that of the largest norm",
    ),
    Statement(
        number="lemma 4.7",
        says="with sub-exponential first weights the largest first logit is bounded with high probability",
        parts=("first-weights",),
        tests=(f"{_HORIZON}::test_first_logits_stay_below_the_margin_about_as_often_as_promised",),
        verdict="only with a variant",
        why="with the quantile of a normal law, which is proven for normal weights; those from uniform and Laplace's "
        "weights kept it too; the paper's constants were not at hand",
    ),
    Statement(
        number="theorem 4.8",
        says="the horizon from sub-exponential first weights",
        parts=("first-weights",),
        tests=(
            f"{_HORIZON}::test_a_sign_can_be_wrong_right_after_the_horizon",
            f"{_OWN}::test_first_wrong_steps_lie_beyond_the_auditors_horizon",
        ),
        verdict="only with a variant",
        why="with that quantile, or with the first logits themselves (the auditor's): no wrong sign within either, "
        "under any of three laws",
    ),
    Statement(
        number="remark 4.9",
        says="the roles exchanged: a passive party reads the one column of a label party",
        tests=(f"{_FEATURE}::test_a_passive_party_reads_the_one_feature_of_a_label_party_with_an_intercept",),
        verdict="reproduces",
        why="also with an intercept, once that is taken into account",
    ),
    Statement(
        number="equation (33)",
        says="several parties: the horizon and the residues are the same",
        tests=(f"{_SOLVING}::test_of_three_passive_parties_each_with_enough_columns_recovers_the_same_residues",),
        verdict="reproduces",
        why="every passive party with s ≤ d_p solves for the same residues; the horizon has the norm of the whole row",
    ),
    Statement(
        number="section 5.2",
        says="packing reads s ≤ u · max(d) records, u ≥ 31 slots of a ciphertext; and a party may claim a larger d",
        parts=("labels",),
        tests=(
            f"{_PACKED}::test_a_batch_of_u_times_d_records_is_read_from_d_ciphertexts",
            f"{_PACKED}::test_slots_are_counted_as_published",
            "tests/exchange/test_packing_attack.py::test_a_whole_plaintext_tells_far_more_records_than_there_are_columns",
            "tests/exchange/test_packing_attack.py::test_more_columns_than_there_are_buy_more_values_up_to_what_is_agreed",
        ),
        verdict="only with a variant",
        why="where whole plaintexts come back; here the low bits do, and `most_columns` bounds the claim",
    ),
    Statement(
        number="lemma 6.3",
        says="‖e_t‖ ≤ √(k/s) σ for all t ≤ T with probability at least 1 − 2T e^(−ck), c an absolute constant",
        parts=("noisy-signs",),
        tests=(f"{_OWN}::test_noise_of_a_step_stays_below_what_is_proven_about_as_often_as_promised",),
        verdict="only with a variant",
        why="c is not given; with σ / (4 √s) · √(1 + 2√x + 2x), x = ln(T / δ), it is proven",
    ),
    Statement(
        number="theorem 6.4",
        says="L(mean of θ) ≤ L(θ*) + O((u + 1)/√T) with probability at least 1 − 2δ; in full with figures 2 and 3",
        parts=("noise",),
        tests=(f"{_OWN}::test_the_bound_holds_for_descent_with_independent_batches",),
        verdict="does not",
        why="no number follows from it, and its proof has four faults; a textbook's bound on the expectation holds",
    ),
    Statement(
        number="remark 6.5",
        says="the rate is Õ(1/√T)",
        parts=("noise",),
        verdict="does not",
        why="it rests on theorem 6.4; the textbook's bound has that rate for a rate of learning that falls as 1/√T",
    ),
    Statement(
        number="theorem 6.6",
        says="under noise signs are labels for ⌈log((4u + 4)/(4u + 2 + ε))/log(1 + η/4)⌉ steps",
        parts=("noisy-signs",),
        tests=(f"{_OWN}::test_the_noisy_horizon_is_the_number_of_steps_that_a_loop_counts",),
        verdict="only with a variant",
        why="of residues without their own noise, with a u that is proven; of what crosses it does not hold: Φ(2/σ)",
    ),
    Statement(
        number="algorithm 3",
        says="DP-Paillier-MGD and its noise scales",
        parts=("noise",),
        tests=(
            f"{_OWN}::test_noisy_steps_are_those_of_the_encrypted_exchange_with_the_same_noise",
            f"{_NOISE}::test_the_label_partys_noise_is_the_published_one",
            f"{_NOISE}::test_both_parties_cannot_have_the_corrected_noise_at_once",
        ),
        verdict="only with a variant",
        why="lines 5 and 8 corrected; the scales count one epoch of thirty, and leave out the other party's noise",
    ),
    Statement(
        number="figure 2",
        says="training and test accuracy (MNIST); more than .9 on test records, even at ε = .2",
        parts=("noise",),
        verdict="only with a variant",
        why="with rows / largest norm and the noise of one epoch, as in the paper: .990 from Xavier's weights; with "
        "that of all 30 epochs the interval reaches below .9",
    ),
    Statement(
        number="figure 3, above",
        says="MNIST, Xavier: 100 % of labels for several epochs without noise, about 50 % at every ε with it",
        parts=("labels", "noise"),
        verdict="only with a variant",
        why="100 % with rows / largest norm; about 50 % of one release, more of the average over epochs",
    ),
    Statement(
        number="figure 3, below",
        says="MNIST, Xavier: ‖θ‖ stays at or below 2",
        parts=("noise",),
        verdict="only with a variant",
        why="with rows / largest norm, zero weights and e = 1; Xavier's first weights alone have a norm of about 2",
    ),
    Statement(
        number="figure 4",
        says="credit default under three first weights: labels at 100 % from zero weights, below it from Xavier's",
        parts=("labels", "noise"),
        verdict="only with a variant",
        why="packed, as the columns are too few for an honest party: 1.000 and .954 in the first epoch",
    ),
    Statement(
        number="figure 4, in the text",
        says="zero weights keep 100 % for 10 more epochs than Xavier's",
        parts=("noise",),
        verdict="does not",
        why="1.8 epochs (1.0 without an intercept) and none; the paper's scaling is not known",
    ),
    *(
        Statement(
            number=number,
            says=f"of an appendix on the other sigmoids; {_UNSEEN}",
            verdict=None,
            why="what is known of the appendices is judged in the rows that follow; which number says which was not at "
            "hand",
        )
        for number in ("lemma D.2", "lemma D.3", "theorem D.5", "theorem E.2", "theorem F.1", "theorem F.2")
    ),
    Statement(
        number="minimax features (appendix)",
        says="residues of the minimax sigmoid determine the logits, and with them one column, where logits are small "
        "enough for one root alone",
        tests=(
            f"{_FEATURE}::test_every_feature_is_recovered_up_to_one_sign",
            f"{_FEATURE}::test_logits_follow_from_residues_or_are_nan",
            f"{_FEATURE}::test_minimax_residues_beyond_the_cubics_peak_determine_nothing",
        ),
        verdict="only with a variant",
        why="where it is known that logits are within 4.05, the cubic's peak; the printed condition, uniqueness among "
        "all numbers, asks for magnitudes above 8.1, which no training here has",
    ),
    Statement(
        number="piecewise features (appendix)",
        says="residues of the piecewise sigmoid determine the logits, and with them one column",
        tests=(
            f"{_FEATURE}::test_every_feature_is_recovered_up_to_one_sign",
            f"{_FEATURE}::test_logits_follow_from_residues_or_are_nan",
            f"{_FEATURE}::test_records_beyond_the_piecewise_sigmoids_slope_are_used_when_they_are_on_it",
        ),
        verdict="only with a variant",
        why="of residues between 0 and 1 in magnitude; of the others only on which side of ½ the logit is",
    ),
    Statement(
        number="minimax labels (appendix)",
        says="signs of minimax residues are labels for as long as logits stay below 3.2",
        parts=("labels",),
        tests=(
            f"{_HORIZON}::test_the_horizon_is_the_number_of_steps_that_a_loop_counts",
            f"{_HORIZON}::test_signs_are_labels_within_the_horizon_of_a_run",
        ),
        verdict="reproduces",
        why="the exact crossing is 3.209; 383 steps from zero weights at rows of norm up to 1",
    ),
    Statement(
        number="piecewise and exact labels (appendix)",
        says="signs of piecewise and exact residues are labels for ever",
        parts=("labels",),
        tests=(
            f"{_HORIZON}::test_some_residues_never_expire",
            f"{_HORIZON}::test_signs_are_labels_within_the_horizon_of_a_run",
        ),
        verdict="only with a variant",
        why="a piecewise residue of 0 carries no label: .92 of credit default's labels in the last epoch, of exact "
        "ones 1.000",
    ),
    Statement(
        number="labels of the first batch (appendix)",
        says="after zero first weights the first batch gives its labels away under every sigmoid",
        tests=(
            f"{_LABELS}::test_the_first_batch_tells_its_labels_after_zero_initialisation",
            f"{_SIGMOIDS}::test_f_is_minus_half_the_label_at_zero",
        ),
        verdict="reproduces",
        why="there the residue is minus half of the label, in Taylor's unit four times that; labels are found as "
        "far as in the row of theorem 4.1",
    ),
    Statement(
        number="protocol 1",
        says="training by Paillier's ciphertexts is gradient descent, and no inner product is seen",
        tests=(
            f"{_EXCHANGES}::test_an_exchange_trains_as_gradient_descent_does",
            f"{_EXCHANGES}::test_nothing_of_a_step_crosses_in_the_clear",
        ),
        verdict="reproduces",
        why="to the error of fixed point; zeros and magnitudes stay hidden as every plaintext has one exponent",
    ),
    Statement(
        number="footnote 2",
        says="secret-shared gradients hide them from both parties",
        verdict=None,
        why="out of scope: no exchange here has them",
    ),
)


def sections(settings: Settings) -> list[Section]:
    """Return the section on all numbered claims."""
    body = f"{STATEMENT_VERDICTS} No table of the paper is among what was at hand.\n\n{statements_table(STATEMENTS)}"
    return [Section(title="Every numbered claim", body=body)]
