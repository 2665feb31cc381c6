"""Displays of detectors: anomaly scores, p-values and ROC curves."""
