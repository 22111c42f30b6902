"""Regression on a table: how diabetes progresses in a year, by ten measurements of a patient.

FedAVG against AdaptCL among five workers, of which the slowest takes four times as long as the
fastest. A regression measures RMSE, MAE and R²; the first is the main metric, and lower is better.
The data comes with scikit-learn: `pip install scikit-learn`.
"""

import torch
from sklearn.datasets import load_diabetes
from torch import nn

import adaptcl

table = load_diabetes()
inputs, targets = torch.tensor(table.data).float(), torch.tensor(table.target).float()
inputs, targets = inputs / inputs.std(), targets / 100
train, test = (inputs[:342], targets[:342]), (inputs[342:], targets[342:])

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(10, 64), nn.BatchNorm1d(64), nn.ReLU(),
    nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
    nn.Linear(64, 1),
)  # fmt: skip

# The clock: whole models train for two seconds, and the fastest link carries 0.01 MiB/s.
results = {
    strategy: adaptcl.run(
        model, train, test, objective="regression", strategy=strategy, workers=5, rounds=16,
        epochs=2, batch_size=16, learning_rate=0.02, sigma=4, train_time=2.0, bandwidth_max=0.01,
    )
    for strategy in ("fedavg", "adaptcl")
}  # fmt: skip
# Whoever is slower has done fewer rounds by the time that the faster is done.
end = results["adaptcl"].summary.virtual_time_s
for strategy, result in results.items():
    last = [record for record in result.rounds if record.virtual_time_s <= end][-1]
    print(f"{strategy:<8} after {end:.0f} s: RMSE {100 * (last.main_value or 0):.1f}", end=" ")
    time, left = result.summary.virtual_time_s, result.summary.heterogeneity_last
    print(f"in round {last.round}; all rounds take {time:.0f} s, and H ends at {left:.2f}")
