"""A pytest plugin for tools.mutate: which lines each test runs, and runs of chosen tests.

``--contexts FOLDER`` measures the lines of skebm under the id of the test that runs them, in every
pytest-xdist worker. ``--chosen FILE`` runs the tests that a JSON file names, in its order, each
within the seconds that stand beside it.
"""

import json
import os
import signal
import time
from pathlib import Path

import pytest


def pytest_addoption(parser):
    group = parser.getgroup("mutation")
    group.addoption("--contexts", metavar="FOLDER", help="measure what each test runs")
    group.addoption("--chosen", metavar="FILE", help="run only these tests, {id: seconds}")


def pytest_configure(config):
    folder, chosen = config.getoption("--contexts"), config.getoption("--chosen")
    controls = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    if folder and not controls:
        config.pluginmanager.register(Recorder(Path(folder)))
    if chosen:
        config.pluginmanager.register(Chooser(json.loads(Path(chosen).read_text())))


class Recorder:
    """Measures every test under its own id, and notes how long it took and whether it passed."""

    def __init__(self, folder):
        import coverage

        self.log = (folder / f"tests.{os.getpid()}.jsonl").open("w", buffering=1)
        self.coverage = coverage.Coverage(
            data_file=str(folder / f"coverage.{os.getpid()}"), source=["skebm"], config_file=False
        )
        self.coverage.set_option("run:relative_files", True)
        self.coverage.start()
        self.passed = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.passed, start = True, time.perf_counter()
        self.coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self.coverage.switch_context("")
            seconds = time.perf_counter() - start
            self.log.write(json.dumps([item.nodeid, round(seconds, 4), self.passed]) + "\n")

    def pytest_runtest_logreport(self, report):
        self.passed = self.passed and not report.failed

    def pytest_sessionfinish(self):
        self.coverage.stop()
        self.coverage.save()
        self.log.close()


class Chooser:
    """Runs the tests of `limits`, {id: seconds}, in its order; one that takes longer fails."""

    def __init__(self, limits):
        self.limits = limits

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        place = {name: i for i, name in enumerate(self.limits)}
        items[:] = [item for item in items if item.nodeid in place]
        items.sort(key=lambda item: place[item.nodeid])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        def ring(*_):
            raise TimeoutError(f"took more than {self.limits[item.nodeid]} s")

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, self.limits[item.nodeid])
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
