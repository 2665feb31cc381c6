"""Twelve tasks of a new user, each written from the documentation alone, in twenty lines or fewer.

What surprises here is a fault of the code or of a page.
"""

import inspect
import subprocess
import sys

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_moons
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from skebm import (
    EnergyOutlierDetector,
    RBMClassifier,
    RBMEstimator,
    ScoreMatchingDensity,
    TractableDensity,
    Windows,
)
from tests.support.tiers import full

MOST_LINES = 20
# A default fit to a table without faults warns of nothing.
quiet = pytest.mark.filterwarnings("error::skebm.base.SkebmWarning")


# ------------------------------------------------------------------------------
# Files as they occur
# ------------------------------------------------------------------------------


def trips(n, seed):
    """Trips of taxis: two dates, a zone of 200, distance, money, text."""
    random = np.random.default_rng(seed)
    start = pd.Timestamp("2019-03-01") + pd.to_timedelta(random.integers(0, 43_200, n), "min")
    minutes = random.lognormal(2.5, 0.6, n)
    fare = (2.5 + 0.9 * minutes * random.normal(1, 0.1, n)).round(2)
    return pd.DataFrame(
        {
            "pickup": start,
            "dropoff": start + pd.to_timedelta(minutes, "min"),
            "zone": [f"zone {k}" for k in np.minimum(random.zipf(1.4, n), 200)],
            "fare": fare,
            "tip": np.where(random.random(n) < 0.4, 0, fare * random.uniform(0.1, 0.3, n)).round(2),
            "paid": random.choice(["card", "cash"], n),
        }
    )


def penguins(n=200, seed=0):
    """Bodies of three species, with text, integers and no holes."""
    random = np.random.default_rng(seed)
    species = random.choice(["Adelie", "Chinstrap", "Gentoo"], n, p=[0.44, 0.2, 0.36])
    usual = {"Adelie": [39, 190, 3700], "Chinstrap": [49, 196, 3730], "Gentoo": [47.5, 217, 5080]}
    size = random.normal(size=(n, 1))
    body = np.array([usual[kind] for kind in species]) + size * [2, 5, 350]
    body += random.normal(size=(n, 3)) * [1.5, 4, 150]
    table = pd.DataFrame(body.round(1), columns=["bill", "flipper", "mass"])
    mass = table["mass"].round().astype("Int64")
    sex = np.where(size[:, 0] + random.normal(0, 0.5, n) > 0, "male", "female")
    return table.assign(species=species, mass=mass, sex=sex)


def votes(n=435, seed=0):
    """Votes on 16 bills as y, n or missing, and the party."""
    random = np.random.default_rng(seed)
    party = random.choice(["democrat", "republican"], n, p=[0.6, 0.4])
    yes = random.beta(0.7, 0.7, (2, 16))[(party == "republican").astype(int)]
    said = np.where(random.random((n, 16)) < yes, "y", "n")
    table = pd.DataFrame(said, columns=[f"bill {k}" for k in range(16)])
    return table.mask(random.random(table.shape) < 0.06), party


def load(n=24 * 60, seed=0):
    """An hourly load through the day on which the clocks are set forward."""
    time = pd.date_range("2024-02-10", periods=n, freq="h", tz="Europe/Berlin")
    day = 10 * np.sin(2 * np.pi * time.hour / 24) - 5 * (time.day_of_week >= 5)
    return pd.Series(50 + day + np.random.default_rng(seed).normal(size=n), time, name="load")


def readings(n, random):
    """Two sensors that follow each other, and a mode."""
    a = random.normal(size=n)
    mode = random.choice(["x", "y"], n)
    return pd.DataFrame({"a": a, "b": a + random.normal(0, 0.3, n), "mode": mode})


def patients(n=400, seed=0):
    """All types of columns of a frame."""
    random = np.random.default_rng(seed)
    smoker = random.random(n) < 0.3
    return pd.DataFrame(
        {
            "age": random.integers(18, 80, n),
            "sex": pd.Categorical(random.choice(["f", "m"], n), categories=["f", "m", "other"]),
            "smoker": smoker,
            "cost": (random.lognormal(8, 0.3, n) * (1 + 2 * smoker)).round(2),
            "region": pd.Series(random.choice(["n", "s", "w"], n), dtype="string"),
            "bmi": random.normal(27, 4, n).astype("float32"),
        }
    )


# ------------------------------------------------------------------------------
# The tasks
# ------------------------------------------------------------------------------


@quiet
def test_anomalies_of_a_raw_file_with_reasons():
    past, new = trips(1000, 0), trips(100, 1)
    new.loc[3, "dropoff"] = new.loc[3, "pickup"] - pd.Timedelta("3h")
    new.loc[7, "fare"] *= 12
    detector = EnergyOutlierDetector(method="conformal", contamination=0.02, random_state=0)
    p = pd.Series(detector.fit(past).p_values(new), new.index)
    assert {3, 7} <= set(p.nsmallest(4).index)
    assert (detector.predict(new) == -1).sum() <= 8
    reasons = detector.explain(new.loc[[3, 7]]).to_frame(1)
    assert reasons["feature"][0] in ("pickup", "dropoff")
    assert reasons["feature"][1] == "fare"


@full
def test_imputations_and_how_sure_they_are():
    truth = penguins()
    hole = np.random.default_rng(1).random(truth.shape) < 0.08
    holes = truth.mask(hole)
    rbm = RBMEstimator(4, base="latent-classes", n_iter=20, random_state=0).fit(holes)
    tables = rbm.impute(holes, n_draws=10, random_state=0)
    assert (tables[0].dtypes == truth.dtypes).all()
    assert (tables[0].where(~hole, truth) == truth).all(axis=None)
    mass, lost = np.array([table["mass"] for table in tables], float), hole[:, 2]
    error = mass.mean(0)[lost] - truth["mass"][lost].astype(float)
    sure = mass.std(0)[lost]
    assert error.std() < 0.6 * truth["mass"].astype(float).std()
    assert 0.5 < np.sqrt(np.mean(error**2)) / np.sqrt(np.mean(sure**2)) < 2


@full
def test_features_of_votes_in_a_search():
    table, party = votes()
    rbm = RBMEstimator(random_state=0)
    pipeline = make_pipeline(rbm, LogisticRegression(max_iter=500))
    grid = {"rbmestimator__n_components": [4, 16], "logisticregression__C": [1]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(table, party)
    assert search.best_score_ > 0.9
    assert (search.predict(table) == party).mean() > 0.9


@quiet
def test_anomalies_of_an_hourly_series_by_time():
    series = load()
    series["2024-04-05 12:00"] -= 9
    table = series.rename_axis("time").reset_index()
    model = make_pipeline(Windows(), EnergyOutlierDetector(random_state=0)).fit(table[:1200])
    scores = pd.Series(model.score_samples(table), table["time"])
    assert scores[1200:].idxmin() == pd.Timestamp("2024-04-05 12:00", tz="Europe/Berlin")


@full
@quiet
def test_features_of_digits():
    X, y = load_digits(return_X_y=True)
    train, test, of_train, of_test = train_test_split(X / 16, y, random_state=0)
    model = make_pipeline(RBMEstimator(random_state=0), LogisticRegression(C=100, max_iter=500))
    assert model.fit(train, of_train).score(test, of_test) > 0.95
    assert model[:-1].get_feature_names_out()[0] == "rbmestimator0"


@full
def test_a_classifier_with_few_labels():
    X, y = load_digits(return_X_y=True)
    train, test, of_train, of_test = train_test_split(X / 16, y, random_state=0)
    few = np.full(len(of_train), -1)
    for digit in range(10):
        rows = np.flatnonzero(of_train == digit)[:5]
        few[rows] = digit
    model = RBMClassifier(unlabeled=-1, random_state=0).fit(train, few)
    alone = LogisticRegression(max_iter=500).fit(train[few >= 0], few[few >= 0])
    assert model.score(test, of_test) > alone.score(test, of_test)
    assert model.predict_proba(test[:2]).shape == (2, 10)


class Net(torch.nn.Module):
    """A network as a user writes it."""

    def __init__(self, width=32):
        super().__init__()
        hidden = torch.nn.Linear(width, width)
        layers = torch.nn.Linear(2, width), torch.nn.SiLU(), hidden, torch.nn.SiLU()
        self.layers = torch.nn.Sequential(*layers, torch.nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x)


@full
def test_a_network_of_ones_own():
    X, _ = make_moons(1200, noise=0.1, random_state=0)
    model = ScoreMatchingDensity(network=Net, base="gaussian", random_state=0)
    model.set_params(network__width=64).fit(X[:1000])
    gaussian = TractableDensity("gaussian").fit(X[:1000])
    assert model.score(X[1000:]) > gaussian.score(X[1000:]) + 0.4
    for network in (Net(width=8), lambda spec: Net(width=8)):
        model.set_params(network=network, n_iter=2).fit(X)
        assert np.isfinite(model.score_samples(X)).all()


@quiet
def test_a_likelihood_with_its_error_beside_that_of_a_mixture():
    X = load_wine(as_frame=True).data
    train, test = train_test_split(X, random_state=0)
    mixture = GaussianMixture(3, reg_covar=1e-3, random_state=0).fit(train)
    model = TractableDensity(random_state=0).fit(train)
    gain = model.score_samples(test) - mixture.score_samples(test)
    assert model.score(test) - mixture.score(test) == pytest.approx(gain.mean())
    assert gain.mean() > 2 * gain.std() / np.sqrt(len(gain))


@full
@quiet
def test_a_stored_detector_says_the_same_in_another_process(tmp_path):
    X = load_breast_cancer(as_frame=True).data.iloc[:, :6]
    detector = EnergyOutlierDetector(method="conformal", random_state=0).fit(X[:200])
    joblib.dump(detector, tmp_path / "detector.joblib")
    joblib.dump(X[200:], tmp_path / "new.joblib")
    program = (
        "import joblib, sys; detector, new = map(joblib.load, sys.argv[1:3]);"
        "joblib.dump(detector.p_values(new), sys.argv[3])"
    )
    files = [tmp_path / f"{name}.joblib" for name in ("detector", "new", "p")]
    subprocess.run([sys.executable, "-c", program, *files], check=True)
    np.testing.assert_array_equal(joblib.load(files[2]), detector.p_values(X[200:]))


@quiet
def test_a_guaranteed_rate_of_false_alarms_on_a_stream():
    random, rates = np.random.default_rng(0), []
    density = make_pipeline(StandardScaler(), GaussianMixture(2, random_state=0))
    for _ in range(20):
        detector = EnergyOutlierDetector(density, method="conformal", contamination=0.05)
        detector.set_params(random_state=0).fit(readings(400, random)[["a", "b"]])
        detector.partial_fit(readings(100, random)[["a", "b"]])
        stream = [readings(50, random)[["a", "b"]] for _ in range(4)]
        rates.append(np.mean([detector.predict(batch) == -1 for batch in stream]))
    assert np.mean(rates) < 0.05 + 2 * np.std(rates) / np.sqrt(len(rates))
    assert (detector.predict(stream[0].assign(b=-stream[0]["a"] + 4)) == -1).mean() > 0.8


@full
def test_new_rows_like_those_of_a_frame_also_given_a_column():
    table = patients()
    rbm = RBMEstimator(4, base="latent-classes", n_iter=20, random_state=0).fit(table)
    new = rbm.sample(200, random_state=0)
    assert (new.dtypes == table.dtypes).all()
    assert set(new["sex"]) <= {"f", "m"}
    assert new["age"].between(18, 79).all()
    asked = table[:100].assign(age=None, sex=None, smoker=True, cost=None, region=None, bmi=None)
    of_smokers = rbm.impute(asked, random_state=0)
    assert of_smokers["smoker"].all()
    truth = table.groupby("smoker")["cost"].mean()
    assert abs(of_smokers["cost"].mean() - truth[True]) < abs(truth[True] - truth[False]) / 3


@quiet
def test_a_detector_of_mixed_columns_in_a_pipeline():
    random = np.random.default_rng(0)
    table, y = readings(300, random), np.where(random.random(300) < 0.1, -1, 1)
    table.loc[y == -1, "b"] -= 3
    numbers = make_column_selector(dtype_include="number")
    one_hot = OneHotEncoder(sparse_output=False)
    columns = make_column_transformer((StandardScaler(), numbers), (one_hot, ["mode"]))
    within = make_pipeline(columns, EnergyOutlierDetector(random_state=0))
    around = EnergyOutlierDetector(make_pipeline(columns, TractableDensity("gaussian")))
    for model in (within, around, EnergyOutlierDetector(random_state=0)):
        assert cross_val_score(model, table, y, scoring="roc_auc", cv=2).mean() > 0.8


def test_each_task_takes_a_few_lines():
    tasks = [value for name, value in globals().items() if name.startswith("test_")]
    for task in tasks:
        body = inspect.getsource(task).partition("):\n")[2]
        assert len(body.splitlines()) <= MOST_LINES, task.__name__
