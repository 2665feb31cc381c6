"""Programs of pages are cut where something is shown."""

import pytest

from tools.page_outputs import MOST_LINES, page_settings, shown, steps

PROGRAM = """\
import numpy as np  # of scikit-learn

# A table
x = np.arange(3)
x + 1  # one more

print("a")
y = x
"""


def test_a_program_is_cut_after_what_shows_something():
    found = [*steps(PROGRAM, {})]
    assert [step.text for step in found] == ["array([1, 2, 3])", "a", ""]
    assert "\n".join(step.source for step in found).split() == PROGRAM.split()
    assert found[0].source.endswith("x + 1  # one more")


def test_programs_of_a_page_share_their_names():
    namespace = {}
    assert [*steps("x = 2", namespace)][0].text == ""
    assert [*steps("x", namespace)][0].text == "2"


def test_what_is_printed_stands_above_what_is_returned():
    assert [*steps("print('a') or 1", {})][0].text == "a\n1"


def test_figures_stand_below_the_statement_that_draws_them():
    pytest.importorskip("matplotlib")
    with page_settings():
        found = [*steps("import matplotlib.pyplot as plt\n_ = plt.plot([1, 2])\nplt", {})]
    assert [len(step.figures) for step in found] == [1, 0]
    assert found[0].figures[0].startswith(b"\x89PNG")


def test_frames_are_tables():
    pytest.importorskip("pandas")
    found = [*steps("import pandas as pd\npd.DataFrame({'a': [1]})", {})]
    assert found[0].text == ""
    assert "<td>1</td>" in found[0].table


def test_a_program_that_fails_or_warns_ends_the_build():
    with pytest.raises(ZeroDivisionError):
        [*steps("1 / 0", {})]
    with page_settings(), pytest.raises(UserWarning):
        [*steps("import warnings\nwarnings.warn('odd')", {})]


def test_long_values_are_shortened():
    assert shown((1 / 3, {"a": [2 / 3]})) == "(0.333333, {'a': [0.666667]})"
    assert len(shown(list(range(1000))).splitlines()) <= MOST_LINES + 1
