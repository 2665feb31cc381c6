"""
Windows of a series: wrong values in the load of a grid
=======================================================

``Windows`` makes a row of each time stamp of a series, which any density or
detector takes: what is new in the value, given those before it and the
calendar. Three faults of different lengths are planted in a simulated
hourly load, and found by the default detector.
"""

# %%
# A series with a time index
# --------------------------
# The load follows the hours of the day, is lower at weekends, and wanders.
# The detector is fitted to the first two months, in which nothing is wrong.
# In the third, a single value is too high, the level is shifted for half a
# day, and a day repeats a night instead of following its own course.

# sphinx_gallery_thumbnail_number = 1

import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
hours = pd.date_range("2024-01-01", "2024-03-31 23:00", freq="h")
course = np.sin(2 * np.pi * (hours.hour - 9) / 24)
weekend = hours.day_of_week >= 5
level = np.cumsum(rng.normal(size=len(hours))) * 0.1
noise = 0.6 * rng.normal(size=len(hours))
load = pd.Series(30 + 5 * course - 3 * weekend + level + noise, hours)

faults = {
    "a wrong value": ("2024-03-07 15:00", "2024-03-07 15:00"),
    "a shifted level": ("2024-03-14 06:00", "2024-03-14 18:00"),
    "a flat day": ("2024-03-21 06:00", "2024-03-21 22:00"),
}
periods = {name: slice(*ends) for name, ends in faults.items()}
load[periods["a wrong value"]] += 6
load[periods["a shifted level"]] += 4
night = load["2024-03-21 00:00":"2024-03-21 05:00"].mean()
load[periods["a flat day"]] = night + 0.6 * rng.normal(size=17)
known, new = load[:"2024-02"], load["2024-03"]

# %%
# Rows of windows, and a detector
# -------------------------------
# With ``lags="auto"`` the past is a day, as the steps are hours. A row
# holds the residual of a forecast and its means over the last hours, in
# standard deviations.

from sklearn.pipeline import make_pipeline

from skebm import EnergyOutlierDetector, Windows

model = make_pipeline(Windows(), EnergyOutlierDetector(random_state=0))
model.set_output(transform="pandas").fit(known)
windows = model[:-1]
print(f"{windows[0].lags_} lags of {windows[0].step_}")
print(windows.transform(new)[periods["a wrong value"]].T.round(1))

# %%
# Scores by time stamp
# --------------------
# The score of a row is its log density. The threshold is that of
# ``predict``.

import matplotlib.pyplot as plt
from matplotlib.dates import DateFormatter, DayLocator

scores = pd.Series(model.score_samples(new), new.index)
figure, (above, below) = plt.subplots(
    2, 1, figsize=(7.5, 4.2), sharex=True, height_ratios=[1.3, 1]
)
above.plot(new, color="0.6", linewidth=1)
below.plot(scores, color="0.6", linewidth=1)
for number, (name, period) in enumerate(periods.items()):
    style = {"color": f"C{number}", "marker": ".", "linewidth": 1.5}
    above.plot(new[period], **style, label=name)
    below.plot(scores[period], **style)
threshold = model[-1].offset_
below.axhline(threshold, color="0.3", linestyle="--", linewidth=1)
above.set_ylabel("load, MW")
below.set_ylabel("log density, nats")
above.legend(ncols=3, loc="lower left", bbox_to_anchor=(0, 0.97))
below.xaxis.set_major_locator(DayLocator([1, 7, 14, 21, 28]))
below.xaxis.set_major_formatter(DateFormatter("%d %b"))
plt.show()

# %%
# Which of the residuals
# ----------------------
# ``explain`` names the window in which a value is anomalous: the hour of
# the wrong value itself, and means over more hours for the longer faults.

for name, period in periods.items():
    lowest = scores[period].idxmin()
    row = windows.transform(new).loc[[lowest]]
    reason = model[-1].explain(row).to_frame(1).iloc[0]
    print(f"{name:16} {lowest:%d %b %H:%M}  {reason['feature']:22}", end="")
    print(f" {reason['value']:5.1f}")

# %%
# The days with the lowest scores are those of the faults, and the days
# after them, whose past is wrong.

print(scores.resample("D").min().nsmallest(5).round(1).to_string())
