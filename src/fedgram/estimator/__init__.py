"""Estimators with the interface of scikit-learn, which is needed here only."""
