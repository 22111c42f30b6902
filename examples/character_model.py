"""A language model of characters: which letter comes next in English number words?

FedAVG against AdaptCL among five workers, of which the slowest takes four times as long as the
fastest. Texts are their own targets; the main metric is the perplexity, and lower is better.
"""

import torch
from torch import Tensor, nn

import adaptcl

ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = [f"{each}teen" for each in ("thir", "four", "fif", "six", "seven", "eigh", "nine")]
TENS = [f"{each}ty" for each in ("twen", "thir", "for", "fif", "six", "seven", "eigh", "nine")]
SMALL = [*ONES, "ten", *TEENS, *(f"{ten}{one and '-'}{one}" for ten in TENS for one in ["", *ONES])]
TEXT = " ".join(f"{one} hundred {rest}" for one in ONES for rest in SMALL)
LETTERS = sorted(set(TEXT))
tokens = torch.tensor([LETTERS.index(letter) for letter in TEXT])
texts = tokens.unfold(0, 32, 12)  # 32 letters each, one text every 12


class CharacterModel(nn.Module):
    """Convolutions that only see what came before."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.table = nn.Embedding(len(LETTERS), 16)
        self.first, self.norm1 = nn.Conv1d(16, width, 5), nn.BatchNorm1d(width)
        self.second, self.norm2 = nn.Conv1d(width, width, 5), nn.BatchNorm1d(width)
        self.head = nn.Conv1d(width, len(LETTERS), 1)

    def forward(self, letters: Tensor) -> Tensor:
        x = nn.functional.pad(self.table(letters).transpose(1, 2), (8, 0))
        x = torch.relu(self.norm1(self.first(x)))
        x = torch.relu(self.norm2(self.second(x)))
        scores: Tensor = self.head(x).transpose(1, 2)
        return scores


torch.manual_seed(0)
order = torch.randperm(len(texts))
train, test, model = texts[order[:-200]], texts[order[-200:]], CharacterModel()
results = {
    strategy: adaptcl.run(
        model, train, test, objective="language-modelling", strategy=strategy, workers=5,
        rounds=12, epochs=0.5, batch_size=16, sigma=4, train_time=2.0, bandwidth_max=0.1,
    )
    for strategy in ("fedavg", "adaptcl")
}  # fmt: skip
# Whoever is slower has done fewer rounds by the time that the faster is done.
end = results["adaptcl"].summary.virtual_time_s
for strategy, result in results.items():
    last = [record for record in result.rounds if record.virtual_time_s <= end][-1]
    print(f"{strategy:<8} after {end:.0f} s: perplexity {last.main_value:.2f}", end=" ")
    time, left = result.summary.virtual_time_s, result.summary.heterogeneity_last
    print(f"in round {last.round}; all rounds take {time:.0f} s, and H ends at {left:.2f}")
