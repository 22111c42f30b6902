"""Train your own nn.Module on your own data: FedAVG-S against AdaptCL, nothing to subclass."""

import torch
from torch import nn

import adaptcl

# Any data works. Here: 3,000 points on three arms of a spiral, seen through 16 noisy features.
torch.manual_seed(0)
arm = torch.randint(3, (3000,))
radius = torch.rand(3000)
angle = 2.1 * arm + 4 * radius + 0.15 * torch.randn(3000)
spiral = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
points = torch.cat([4 * spiral @ torch.randn(2, 8), 0.5 * torch.randn(3000, 8)], dim=1)
train, test = (points[:2400], arm[:2400]), (points[2400:], arm[2400:])

# Any module works. AdaptCL finds out which of its units can be cut.
model = nn.Sequential(
    nn.Linear(16, 96), nn.BatchNorm1d(96), nn.ReLU(),
    nn.Linear(96, 96), nn.BatchNorm1d(96), nn.ReLU(),
    nn.Linear(96, 3),
)  # fmt: skip

# Ten workers, the slowest four times slower than the fastest.
summaries = {
    strategy: adaptcl.run(
        model, train, test, strategy=strategy, rounds=16, epochs=2, sigma=4
    ).summary
    for strategy in ("fedavg-s", "adaptcl")
}
for strategy, summary in summaries.items():
    faster = summaries["fedavg-s"].virtual_time_s / summary.virtual_time_s
    print(
        f"{strategy:<8}  accuracy {summary.accuracy:.1%}  {faster:.2f}× as fast  "
        f"H {summary.heterogeneity_first:.2f} → {summary.heterogeneity_last:.2f}"
    )
