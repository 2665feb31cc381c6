"""Questions that any density of rows answers: marginals, conditionals, predictions, imputation."""
