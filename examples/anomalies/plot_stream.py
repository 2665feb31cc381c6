"""
Alarms for a stream that is asked every minute: machine sensors
===============================================================

``StreamMonitor`` raises an alarm with a bounded probability that there is
ever a false one, says where the change is likeliest to have begun, and
which columns have moved.

Data: simulated readings of a machine, one per minute. After a day and a
half without a change a valve begins to leak: the flow is lower for a given
load, while each reading by itself looks normal.
"""

# %%
# Readings
# --------

# sphinx_gallery_thumbnail_number = 1

import numpy as np
import pandas as pd

from skebm import EnergyOutlierDetector, StreamMonitor


def readings(n, seed, leak=0.0):
    """Load, flow, temperature and mode of a machine."""
    random = np.random.default_rng(seed)
    load = random.gamma(4, 10, n)
    return pd.DataFrame(
        {
            "load": load,
            "flow": 2 * load * (1 - leak) + random.normal(0, 3, n),
            "heat": 60 + 0.2 * load + random.normal(0, 2, n),
            "mode": random.choice(["auto", "manual"], n, p=[0.9, 0.1]),
        }
    )


history = readings(1000, seed=0)
stream = pd.concat(
    [readings(2160, seed=1), readings(360, seed=2, leak=0.1)],
    ignore_index=True,
)
detector = EnergyOutlierDetector(method="conformal", random_state=0)
detector.fit(history)

# %%
# Minute by minute
# ----------------
# An alarm for each small p-value is a false one every few hours. The
# monitor takes the rows in blocks of an hour here; alarms are at rows, and
# are the same for rows one at a time.

monitor = StreamMonitor(
    detector, history, level=0.01, n_recent=360, random_state=0
)
updates = [
    monitor.update(stream[start : start + 60])
    for start in range(0, len(stream), 60)
]
p = np.concatenate([update.p_values for update in updates])
evidence = np.concatenate([update.evidence for update in updates])

flagged = detector.p_values(stream[:2160]) <= 0.01
print(f"single p-values of at most 0.01 before the leak: {flagged.sum()}")
print(f"the leak begins at minute {2160}")
print(f"alarm at minute           {monitor.alarm_}")
print(f"change likeliest at       {monitor.change_}")

# %%
# The evidence is flat for a day and a half and then rises by itself.

import matplotlib.pyplot as plt

figure, axes = plt.subplots(2, 1, figsize=(8, 5), sharex=True)
hours = np.arange(len(stream)) / 60
axes[0].scatter(hours, p, s=3, color="C0")
axes[0].set(ylabel="p-value", title="Each reading by itself")
axes[1].plot(hours, evidence, color="C0")
axes[1].axhline(monitor.threshold_, color="C1", label="alarm, level 0.01")
axes[1].axvline(2160 / 60, color="C2", linestyle=":", label="leak begins")
axes[1].set(xlabel="hours", ylabel="evidence in nats", title="All so far")
axes[1].legend()
plt.show()

# %%
# Which columns
# -------------
# The columns of the last six hours are compared with those of the history.
# A column that has not changed is named with probability at most 0.05.

drift = monitor.drift(level=0.05)
print(drift.to_frame().round(3).to_string(index=False))
