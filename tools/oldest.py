"""Print the oldest version of each requirement that pyproject.toml admits, for pip.

python -m tools.oldest > oldest.txt
pip install -r oldest.txt
"""

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
# Extras that the tests need, beside what skebm itself does.
EXTRAS = ("arrow", "dask", "frames", "flows", "plot", "test")
# Not installed: only compared with in tests, and it needs a newer numpy than skebm does.
NEWER = {"arviz-stats"}
REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(\[[\w,-]+\])?>=(?P<oldest>[\w.]+)(,[^;]*)?(?P<marker>;.*)?"
)


def oldest(project: dict) -> list[str]:
    """Requirements of a ``[project]`` table and of its extras, each pinned to its lower bound."""
    requirements = list(project["dependencies"])
    for extra in EXTRAS:
        requirements += project["optional-dependencies"][extra]
    pins = []
    for requirement in requirements:
        if requirement.startswith(f"{project['name']}["):
            continue  # extras of its own, which are among these
        found = REQUIREMENT.fullmatch(requirement)
        if found is None:
            raise ValueError(f"{requirement!r} has no lower bound of the form name>=version.")
        if found["name"] not in NEWER:
            pins.append(f"{found['name']}=={found['oldest']}{found['marker'] or ''}")
    return pins


if __name__ == "__main__":
    pins = oldest(tomllib.loads(PYPROJECT.read_text())["project"])
    sys.stdout.writelines(f"{pin}\n" for pin in pins)
