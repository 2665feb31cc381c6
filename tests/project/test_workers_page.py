"""The programs of the page on many workers run, section by section."""

import re
from pathlib import Path

import pytest

from tests.support.tiers import named

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "processes.md").read_text()
PARTS = re.split(r"^#+ ([A-Z].*)\n\n", PAGE, flags=re.MULTILINE)[1:]
CODE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = {title: CODE.findall(text) for title, text in zip(PARTS[::2], PARTS[1::2], strict=True)}

# A section, and those whose names it uses.
USES = {
    "Searches and cross-validation": ["Many workers"],
    "Folds and experts": ["Many workers"],
    "Dask": ["Many workers"],
    "Ray": ["Many workers"],
    "An array or a frame of Dask": ["Many workers", "Scoring many rows"],
    "Batches of Arrow": ["Many workers", "Scoring many rows"],
    "Spark": ["Many workers", "Scoring many rows"],
    "Processes of your own": ["Many workers", "Scoring many rows"],
}


def test_every_section_is_run():
    assert set(BLOCKS) == set(USES).union(*USES.values())
    assert all(BLOCKS.values())


@pytest.mark.parametrize("title", named(["Spark"], USES))
def test_a_section(title):
    names = {"__name__": "__main__"}
    for block in [block for part in (*USES[title], title) for block in BLOCKS[part]]:
        for package in re.findall(r"^(?:import|from) ([\w.]+)", block, re.MULTILINE):
            pytest.importorskip(package)
        exec(compile(block, "docs/guide/processes.md", "exec"), names)
