"""Segmentation with a U-Net: find bright discs and dark squares in noise, drawn on the fly.

FedAVG against AdaptCL among five workers, of which the slowest takes four times as long as the
fastest. Targets are the class of every pixel; the main metric is the mean IoU.
"""

import torch
from torch import Tensor, nn

import adaptcl


def draw(count: int) -> tuple[Tensor, Tensor]:
    """Pictures [N, 1, 16, 16] and the classes of their pixels: background, disc or square."""
    across = torch.arange(16.0)
    x, y = across[None, None, :], across[None, :, None]
    place, size = torch.randint(4, 12, (4, count, 1, 1)), torch.randint(3, 6, (2, count, 1, 1))
    disc = (x - place[0]) ** 2 + (y - place[1]) ** 2 <= size[0] ** 2
    square = torch.maximum((x - place[2]).abs(), (y - place[3]).abs()) <= size[1] - 1
    masks = torch.where(square, 2, torch.where(disc, 1, 0))
    brightness = torch.tensor([0.0, 1.0, -1.0])[masks][:, None]
    return brightness + 0.7 * torch.randn(count, 1, 16, 16), masks


def block(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())


class UNet(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.down, self.middle = block(1, width), block(width, 2 * width)
        self.deep, self.up = block(2 * width, 2 * width), block(3 * width, width)
        self.pool, self.head = nn.MaxPool2d(2), nn.Conv2d(width, 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        fine = self.down(images)
        coarse = self.deep(self.middle(self.pool(fine)))
        coarse = nn.functional.interpolate(coarse, scale_factor=2)
        scores: Tensor = self.head(self.up(torch.cat([fine, coarse], dim=1)))
        return scores


torch.manual_seed(0)
train, test, model = draw(160), draw(50), UNet()
results = {
    strategy: adaptcl.run(
        model, train, test, objective="segmentation", strategy=strategy, workers=5, rounds=12,
        epochs=1, batch_size=8, sigma=4, train_time=2.0, bandwidth_max=0.2,
    )
    for strategy in ("fedavg", "adaptcl")
}  # fmt: skip
# Whoever is slower has done fewer rounds by the time that the faster is done.
end = results["adaptcl"].summary.virtual_time_s
for strategy, result in results.items():
    last = [record for record in result.rounds if record.virtual_time_s <= end][-1]
    print(f"{strategy:<8} after {end:.0f} s: mean IoU {last.main_value:.1%}", end=" ")
    time, left = result.summary.virtual_time_s, result.summary.heterogeneity_last
    print(f"in round {last.round}; all rounds take {time:.0f} s, and H ends at {left:.2f}")
