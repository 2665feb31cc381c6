"""Break skebm in a copy, one small change at a time, and see which test notices.

    python -m tools.mutate --n 60                      # both tiers, two processes
    python -m tools.mutate --n 10 --only samplers partition --tiers first
    python -m tools.mutate --n 60 --list               # what would be changed

A mutant meets the first-tier tests that run the changed lines, cheapest first; if none fails, the
other first-tier tests of their files, then the same of the full tier, and with ``--whole`` all that
is left. Survivors are for a human to read: a change that means nothing is no hole in the tests.

Which lines a test runs is measured once a tier and kept in ``.mutation/`` until a source or a test
changes. Nothing is written to the working tree but that folder and what ``--json`` names.
"""

import argparse
import contextlib
import hashlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import coverage

from tools.mutations import Mutation, package_of, sample

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".mutation"
TIERS = {"first": "not full", "full": "full"}
# A Ctrl-C that arrives within coverage leaves its lock taken: the worker would wait for ever.
UNMEASURED = ("tests/adversarial/test_interrupts.py",)
GRACE = 20  # seconds that a test may take beyond twenty times what it took before


class Verdict(NamedTuple):
    """What became of a mutant."""

    mutation: Mutation
    killed_by: str  # a test, or what else stopped it; "" for a survivor
    tier: str  # of the tests that killed it
    seconds: float


# ------------------------------------------------------------------------------
# A copy of the repository, and pytest in it
# ------------------------------------------------------------------------------


@contextlib.contextmanager
def checkout() -> Iterator[Path]:
    """A copy of what git knows and does not ignore, as it is now."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    with tempfile.TemporaryDirectory(prefix="skebm-mutant-") as folder:
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                target = Path(folder) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
        yield Path(folder)


def run_pytest(
    folder: Path, *args: str, limit: float, bytecode: bool = False
) -> tuple[int | None, str]:
    """Exit code (None if it ran past the limit, in seconds) and output of pytest in `folder`."""
    env = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "SCIPY_ARRAY_API": "1"}
    # A mutant leaves no bytecode: the next one of the same file would run it.
    env["PYTHONDONTWRITEBYTECODE"] = "" if bytecode else "1"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        [*command, "-p", "tools.contexts", *args],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return None, ""
    finally:  # its own children too
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# ------------------------------------------------------------------------------
# Which test runs which line
# ------------------------------------------------------------------------------


def digest() -> str:
    """Of all that decides which lines a test runs."""
    total = hashlib.sha256()
    for path in sorted([*ROOT.glob("skebm/**/*.py"), *ROOT.glob("tests/**/*.py")]):
        total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:16]


class Contexts:
    """The tests of a tier that pass, their seconds, and the lines that they run."""

    def __init__(self, tier: str, jobs: int, only: Sequence[str]):
        self.tier = tier
        key = "-".join([tier, digest(), *only])
        self.folder = CACHE / (key if len(key) < 100 else hashlib.sha256(key.encode()).hexdigest())
        if not (self.folder / "complete").exists():
            self._measure(jobs, only)
        records = [
            json.loads(line)
            for path in self.folder.glob("tests.*.jsonl")
            for line in path.read_text().splitlines()
        ]
        self.seconds = {name: seconds for name, seconds, passed in records if passed}
        self._lines: dict[str, dict[int, set[str]]] = {}

    def _measure(self, jobs: int, only: Sequence[str]) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        print(f"measuring what the tests of the {self.tier} tier run ...", flush=True)
        start = time.perf_counter()
        with checkout() as folder:
            code, output = run_pytest(
                folder,
                *("-n", str(jobs), "-m", TIERS[self.tier], "--contexts", str(self.folder)),
                *(f"--ignore={path}" for path in UNMEASURED),
                *only,
                limit=4 * 3600,
            )
        print(f"{output.strip().splitlines()[-1]}, {time.perf_counter() - start:.0f} s", flush=True)
        if code not in (0, 1):
            raise RuntimeError(f"pytest ended with {code}:\n{output[-3000:]}")
        (self.folder / "complete").touch()

    def lines(self, path: str) -> dict[int, set[str]]:
        """Tests by the line of a file that they run."""
        if path not in self._lines:
            found: dict[int, set[str]] = defaultdict(set)
            for name in self.folder.glob("coverage.*"):
                data = coverage.CoverageData(basename=str(name))
                data.read()
                for line, tests in data.contexts_by_lineno(path).items():
                    found[line].update(test for test in tests if test in self.seconds)
            self._lines[path] = found
        return self._lines[path]

    def running(self, mutation: Mutation) -> set[str]:
        """Tests that run the changed statement; or, of one that is run on import, what is near."""
        by_line = self.lines(mutation.path)
        for first, last in (mutation.lines, *mutation.scopes, (1, max(by_line, default=0))):
            tests = set().union(*(by_line.get(line, ()) for line in range(first, last + 1)))
            if tests:
                return tests
        return set()

    def beside(self, tests: set[str]) -> set[str]:
        """The other tests of their files: they may share a model that another test has fitted."""
        files = {file_of(test) for test in tests}
        return {test for test in self.seconds if file_of(test) in files} - tests


def file_of(test: str) -> str:
    """tests/test_a.py::test_b[c] -> tests/test_a.py."""
    return test.partition("::")[0]


# ------------------------------------------------------------------------------
# A mutant and the tests
# ------------------------------------------------------------------------------


def in_order(tests: set[str], seconds: dict[str, float]) -> dict[str, float]:
    """Time limits of tests, cheap files first and cheap tests of a file first."""
    cost: Counter[str] = Counter()
    for test in tests:
        cost[file_of(test)] += seconds[test]
    order = sorted(tests, key=lambda t: (cost[file_of(t)], file_of(t), seconds[t], t))
    return {test: round(GRACE + 20 * seconds[test], 1) for test in order}


def failing(folder: Path, tests: set[str], seconds: dict[str, float]) -> str:
    """The first of `tests` that fails in `folder`, or what else went wrong; "" if none does."""
    if not tests:
        return ""
    limits, chosen = in_order(tests, seconds), folder / ".chosen.json"
    chosen.write_text(json.dumps(limits))
    files = dict.fromkeys(map(file_of, limits))
    code, output = run_pytest(
        folder,
        *("-x", "-m", "", "-rfE", "--chosen", str(chosen), *files),
        limit=300 + 5 * sum(seconds[test] for test in tests),
    )
    if code == 0:
        return ""
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split(" ", 1)[1].split(" - ")[0]
    return "the time limit" if code is None else f"pytest, which ends with {code}"


def judge(folder: Path, mutation: Mutation, tier: Contexts, whole: bool) -> Verdict:
    """Plant a mutation in the copy at `folder`, run tests of a tier, take it back."""
    file, start, killer = folder / mutation.path, time.perf_counter(), ""
    source = file.read_text()
    running = tier.running(mutation)
    beside = tier.beside(running)
    batches = [set(tier.seconds) - running - beside] if whole else [running, beside]
    file.write_text(mutation.apply(source))
    try:
        for tests in batches:
            killer = killer or failing(folder, tests, tier.seconds)
    finally:
        file.write_text(source)
    seconds = round(time.perf_counter() - start, 1)
    return Verdict(mutation, killer, tier.tier if killer else "", seconds)


def judge_all(
    chosen: Sequence[Mutation], tier: Contexts, jobs: int, whole: bool = False
) -> list[Verdict]:
    """Judge mutations in `jobs` copies at once, in the order in which they are given."""
    waiting: queue.SimpleQueue[Mutation] = queue.SimpleQueue()
    for mutation in chosen:
        waiting.put(mutation)
        tier.lines(mutation.path)  # read here: the threads only look up
    verdicts: list[Verdict] = []

    def work() -> None:
        with checkout() as folder, contextlib.suppress(queue.Empty):
            # Bytecode of the tests, whose assertions pytest takes seconds to rewrite.
            run_pytest(folder, "--collect-only", limit=600, bytecode=True)
            while True:
                verdict = judge(folder, waiting.get_nowait(), tier, whole)
                verdicts.append(verdict)
                print(f"{len(verdicts):4d} {line_of(verdict)}", flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(work) for _ in range(jobs)]:
            done.result()
    return sorted(verdicts, key=lambda verdict: chosen.index(verdict.mutation))


# ------------------------------------------------------------------------------
# What is said about them
# ------------------------------------------------------------------------------


def line_of(verdict: Verdict) -> str:
    """A verdict on one line."""
    fate = f"{verdict.tier}: {verdict.killed_by}" if verdict.killed_by else "SURVIVED"
    place = f"{verdict.mutation.path}:{verdict.mutation.lines[0]}"
    return f"{place} {verdict.mutation.operator} -> {fate} ({verdict.seconds:.0f} s)"


def change_of(mutation: Mutation) -> str:
    """Old and new text on one line, without what they share at their ends."""
    before, after = (" ".join(text.split()) for text in (mutation.before, mutation.after))
    return f"{before} => {after}"


def table(verdicts: Sequence[Verdict]) -> str:
    """Markdown: a row for each mutant, then rates by package, then the survivors."""
    rows = ["| place | operator | change | killed by | tier |", "|---|---|---|---|---|"]
    for v in verdicts:
        cells = (
            f"{v.mutation.path}:{v.mutation.lines[0]}",
            v.mutation.operator,
            f"`{change_of(v.mutation)}`",
            v.killed_by or "**survived**",
            v.tier,
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    rows += ["", "| package | mutants | first tier | both tiers |", "|---|---|---|---|"]
    groups = defaultdict(list)
    for v in verdicts:
        groups[package_of(v.mutation.path)].append(v)
    for name, group in [*sorted(groups.items()), ("all", list(verdicts))]:
        first = sum(v.tier == "first" for v in group)
        killed = sum(bool(v.killed_by) for v in group)
        rows.append(f"| {name} | {len(group)} | {first} | {killed} |")
    return "\n".join(rows)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.mutate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--n", type=int, default=60, help="number of mutations")
    parser.add_argument("--seed", type=int, default=0, help="of their choice")
    parser.add_argument("--only", nargs="+", default=[], metavar="PACKAGE", help="of skebm")
    parser.add_argument("--tests", nargs="+", default=[], metavar="FILE", help="tests to use")
    parser.add_argument("--tiers", nargs="+", choices=TIERS, default=list(TIERS))
    parser.add_argument("--whole", action="store_true", help="survivors meet every test")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdicts there")
    parser.add_argument("--list", action="store_true", help="show the mutations and stop")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.glob("skebm/**/*.py")}
    sources = {p: s for p, s in sources.items() if not args.only or package_of(p) in args.only}
    chosen = sample(sources, args.n, args.seed)
    if args.list:
        for m in chosen:
            print(f"{m.path}:{m.lines[0]} {m.operator}: {change_of(m)}")
        return
    verdicts: dict[Mutation, Verdict] = {}
    for whole in (False, True) if args.whole else (False,):
        for tier in args.tiers:
            left = [m for m in chosen if m not in verdicts or not verdicts[m].killed_by]
            if left:
                contexts = Contexts(tier, args.jobs, args.tests)
                verdicts |= {v.mutation: v for v in judge_all(left, contexts, args.jobs, whole)}
    print("\n" + table([verdicts[mutation] for mutation in chosen]))
    if args.json:
        records = [verdicts[m]._asdict() | {"mutation": m._asdict()} for m in chosen]
        args.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
