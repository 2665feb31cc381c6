"""scikit-learn's checks of estimators as test cases with short names, in two tiers."""

import functools

import pytest
from sklearn.utils import estimator_checks

from tests.support.tiers import full

# What a mode of an estimator can break: how it trains, and what it holds after a fit. The kinds of
# arrays that a fit takes, and what it says of wrong ones, are decided before any mode is. Storage,
# seeds, neighbours of a row and what a method changes are in the contracts of all modes.
OF_TRAINING = {
    "check_classifiers_one_label_sample_weights",
    "check_decision_proba_consistency",
    "check_estimators_overwrite_params",
    "check_fit2d_1feature",
    "check_fit2d_1sample",
    "check_sample_weight_equivalence_on_dense_data",
    "check_transformer_general",
}


def parametrize_with_checks(cases, expected_failed_checks=None, first=(), modes=(), alike=()):
    """scikit-learn's own decorator of that name, for ``{name: estimator}``.

    Test ids hold the names, where scikit-learn asks every estimator for its repr at every check:
    seconds at each collection. Of the full tier are cases that are not in `first`, and checks that
    repeat another one, as with memory maps, or are expected to fail. A case in `modes` is another
    mode of an estimator that has all checks under another name: it has the checks of training that
    are not expected to fail. The first tier has the checks of training alone of one in `alike`,
    whose rows are validated as another one's are.
    """
    assert set(first) | set(modes) | set(alike) <= set(cases)
    params = []
    for name, estimator in cases.items():
        mark = estimator_checks.parametrize_with_checks(
            [estimator], expected_failed_checks=expected_failed_checks
        ).mark
        for case in mark.args[1]:
            values, marks = getattr(case, "values", case), getattr(case, "marks", ())
            title = check_name(values[1])
            if name in modes and (title not in OF_TRAINING or marks):
                continue
            if title.startswith("check_sample_weight_equivalence"):
                # Where copies are merged and one batch has all rows, some fits pass.
                marks = [pytest.mark.xfail(strict=False, reason=m.kwargs["reason"]) for m in marks]
            is_first = name in first or (name in alike and title in OF_TRAINING)
            if marks or repeats(title) or not is_first:
                marks = [*marks, full]
            params.append(pytest.param(*values, marks=marks, id=f"{name}-{title}"))
    return pytest.mark.parametrize(("estimator", "check"), params)


def repeats(title):
    """Whether a check is another one with arguments, or that of sparse arrays with matrices."""
    return "(" in title or title == "check_estimator_sparse_matrix"


def check_name(check):
    """check_fit2d_1sample, or check_n_features_in_after_fitting(a=1) with what it is given."""
    if not isinstance(check, functools.partial):
        return check.__name__
    given = ",".join(f"{name}={value}" for name, value in check.keywords.items())
    return check_name(check.func) + (f"({given})" if given else "")
