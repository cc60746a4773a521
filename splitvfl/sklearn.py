"""Estimators in the manner of scikit-learn: a model over columns of several parties, and what it gives away.

They train in this process, write no folder, and go wherever scikit-learn's own do: ``Pipeline``, ``GridSearchCV``,
``cross_val_score``.

Cross-validation divides records by what scikit-learn gives it: of classes, folds are stratified by the labels. A
partner that sees which records are tested infers labels from such folds. Pass ``cv=KFold(5, shuffle=True)`` to divide
without labels.
"""

from __future__ import annotations

from splitvfl.app.estimators import SplitClassifier, SplitRegressor

__all__ = ["SplitClassifier", "SplitRegressor"]
