"""Tests stand where the module stands that they test, and few enough beside each other."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
# What tests more than one module, and what tests and tools share.
OTHERS = {"adversarial", "contracts", "project", "support", "tutorial"}
MAX_NAMES = 25


def folders():
    return [TESTS, *(p for p in TESTS.rglob("*") if p.is_dir() and p.name != "__pycache__")]


def test_each_folder_is_a_package_of_skebm():
    for folder in folders():
        place = folder.relative_to(TESTS)
        if place.parts and place.parts[0] not in OTHERS:
            assert (ROOT / "skebm" / place).is_dir() or (ROOT / place).is_dir(), place
        assert (folder / "__init__.py").is_file(), place


def test_folders_of_tests_are_not_crowded():
    for folder in folders():
        assert len([p for p in folder.iterdir() if p.name != "__pycache__"]) <= MAX_NAMES, folder
