"""Print the oldest version of each requirement that pyproject.toml admits, for pip.

python -m tools.oldest > oldest.txt
pip install -r oldest.txt
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
# Not installed: only compared with in tests, and it needs a newer numpy than skebm does.
NEWER = {"arviz-stats"}
REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(\[[\w,-]+\])?>=(?P<oldest>[\w.]+)(,[^;]*)?(?P<marker>;.*)?"
)


def of_extra(project: dict, extra: str) -> Iterator[str]:
    """Requirements of an extra, and of the extras of the project that it names."""
    own = re.compile(rf"{project['name']}\[(.*)\]")
    for requirement in project["optional-dependencies"][extra]:
        named = own.fullmatch(requirement)
        if named is None:
            yield requirement
        else:
            for other in named[1].split(","):
                yield from of_extra(project, other)


def oldest(project: dict) -> list[str]:
    """Requirements of a ``[project]`` table and of its tests, each pinned to its lower bound."""
    pins = []
    for requirement in (*project["dependencies"], *of_extra(project, "test")):
        found = REQUIREMENT.fullmatch(requirement)
        if found is None:
            raise ValueError(f"{requirement!r} has no lower bound of the form name>=version.")
        if found["name"] not in NEWER:
            pins.append(f"{found['name']}=={found['oldest']}{found['marker'] or ''}")
    return pins


if __name__ == "__main__":
    pins = oldest(tomllib.loads(PYPROJECT.read_text())["project"])
    sys.stdout.writelines(f"{pin}\n" for pin in pins)
