"""How long to train where nobody has said so: batch size and epochs from the number of records.

A batch of fixed size leaves a small table with a dozen steps, in which nothing is learned. Here batches grow with the
square root of the number of records, and epochs become fewer as steps become more, so that a table of 100 records gets
some 300 steps, one of 1000 some 800, and one of 24 000 a thousand.

Measured with bottoms ``[64, 32]``, a linear top and Adam at 1e-3, columns divided in halves; test AUC, or accuracy for
wine, digits and satellite; means over one to five seeds, beside a fixed batch of 256 (or all records) and ten epochs:

=====================  ========  =====  ======  ====  =========
data set               records   batch  epochs  test  256 and 10
=====================  ========  =====  ======  ====  =========
wine                        142     16      39  .989  .644
breast-cancer               455     32      29  .994  .885
credit-default, first     1 000     32      24  .720  .600
digits, ten classes       1 437     64      22  .893  .729
credit-default, first     4 000     64      17  .740  .694
satellite                 4 435    128      16  .856  .833
credit-default           24 000    256      11  .747  .745
bank-marketing           32 950    256      10  .939  .939
=====================  ========  =====  ======  ====  =========

The estimators' defaults beside linear models on all columns in one place (scikit-learn's ``LogisticRegression``, and
``RidgeCV`` from 1e-3 to 1e3, standardised): columns in halves, a quarter held out, means of test AUC or R² over five
seeds, two of 20 000 records:

========================  ========  ====  ======  ==================
data set                  trained   ours  linear  largest shortfall
========================  ========  ====  ======  ==================
breast-cancer                  426  .993    .994  .004
wine                           133  .998   1.000  .004
digits, ten classes          1 347  .998    .999  .001
made up, 20 columns            150  .854    .857  .040
made up, 100 columns           150  .613    .693  .120
made up, 20 columns          1 500  .920    .944  .029
made up, 20 columns         15 000  .955    .933  none
diabetes, R²                   331  .384    .427  .116
linear, 10 columns, R²          45  .204    .854  1.162
linear, 20 columns, R²         150  .695    .915  .339
linear, 100 columns, R²        150  .519    .962  .536
linear, 20 columns, R²       1 500  .906    .949  .072
linear, 20 columns, R²      15 000  .885    .887  .002
========================  ========  ====  ======  ==================

So classes are predicted about as well, and numbers of few records are not, where they are linear in the columns:
bottoms of 64 and 32 learn these by heart (R² of .85 to 1 in training), which more epochs do not mend. A rate of 3e-3
helped some (150 linear records .757, 225 of Friedman's .559 for .476; three seeds) and harmed others (1 500 noisy ones
.038 for .132). There ``logistic-regression``, which is linear regression then, is better, and needs a rate of 1e-2: R²
.912 of 150 and .722 of 45, which is its default. At 1e-3 it ends before it gets anywhere: R² from −2.1 to .06, and of
classes AUC .71 on the 1 500 made-up records, for .94 at 1e-2.

Regression needs labels of about mean 0 and variance 1 for these to be enough: an output that starts near 0 does not
reach labels around 150 in 350 steps of Adam.
"""

from __future__ import annotations

import math

from splitvfl.errors import ArgumentError

_SMALLEST_BATCH, _LARGEST_BATCH = 8, 1024
_FEWEST_EPOCHS, _MOST_EPOCHS = 10, 100


def suggested_batch_size(records: int) -> int:
    """Return a batch size: the largest power of two up to ``2·√records``, from 8 to 1024, and no more than there are.

    Args:
        records: Training records, at least 1.

    Raises:
        ArgumentError: If there are none.

    >>> [suggested_batch_size(records) for records in (5, 100, 400, 4_000, 24_000, 1_000_000)]
    [5, 16, 32, 64, 256, 1024]
    """
    _check(records)
    wanted = 1 << (math.isqrt(4 * records).bit_length() - 1)
    return min(records, max(_SMALLEST_BATCH, min(wanted, _LARGEST_BATCH)))


def suggested_epochs(records: int) -> int:
    """Return a number of epochs that goes with :func:`suggested_batch_size`: ``30·(400 / records)^¼``, from 10 to 100.

    Args:
        records: Training records, at least 1.

    Raises:
        ArgumentError: If there are none.

    >>> [suggested_epochs(records) for records in (5, 100, 400, 4_000, 24_000, 1_000_000)]
    [90, 42, 30, 17, 11, 10]
    """
    _check(records)
    wanted = round(30 * math.sqrt(math.sqrt(400 / records)))
    return max(_FEWEST_EPOCHS, min(wanted, _MOST_EPOCHS))


def suggested_learning_rate(*, linear: bool) -> float:
    """Return a learning rate of Adam for as many steps as the other two make.

    Args:
        linear: Whether all halves are linear: a weight then moves by little more than the rate in a step, and there is
            nothing else that could grow.

    >>> suggested_learning_rate(linear=False), suggested_learning_rate(linear=True)
    (0.001, 0.01)
    """
    return 1e-2 if linear else 1e-3


def _check(records: int) -> None:
    if records < 1:
        raise ArgumentError(f"expected at least 1 training record, got {records}")
