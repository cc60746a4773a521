"""The quality rule of FATE's benchmark for vertical logistic regression, against scikit-learn."""
