"""Estimators in the manner of scikit-learn: a model over columns of several parties, and what it gives away.

They train in this process, write no folder, and go wherever scikit-learn's own do: ``Pipeline``, ``GridSearchCV``,
``cross_val_score``.
"""

from __future__ import annotations

from splitvfl.app.estimators import SplitClassifier, SplitRegressor

__all__ = ["SplitClassifier", "SplitRegressor"]
