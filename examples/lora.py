"""Fine-tune a GPT-2 with LoRA: slow workers train a smaller rank of the same adapters.

The ranks of an adapter are its units. The frozen base travels to each worker once, and every worker
has all of it. Its weights are random here; put a pretrained model in its place. It needs two
packages more: `pip install peft transformers`.
"""

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

import adaptcl

ONES = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TENS = [f"{each}ty" for each in ("twen", "thir", "for", "fif", "six", "seven", "eigh", "nine")]
SMALL = [*ONES, *(f"{ten}-{one}" for ten in TENS for one in ONES)]
TEXT = " ".join(f"{one} hundred {rest}" for one in ONES for rest in SMALL)
LETTERS = sorted(set(TEXT))
texts = torch.tensor([LETTERS.index(letter) for letter in TEXT]).unfold(0, 32, 24)

torch.manual_seed(0)
texts = texts[torch.randperm(len(texts))]
base = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=len(LETTERS), n_embd=64, n_layer=2, n_head=4, n_positions=32,
        bos_token_id=0, eos_token_id=0,
    )
)  # fmt: skip
adapters = LoraConfig(r=16, lora_alpha=32, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
model = get_peft_model(base, adapters)
fixed = ["*.base_layer", "*.wte"]  # else heads, neurons and vectors of the base are units too
description = adaptcl.describe(model, texts[:2], fixed)
print(description)

results = {
    strategy: adaptcl.run(
        model, texts[:-100], texts[-100:], objective="language-modelling", strategy=strategy,
        fixed=fixed, workers=5, rounds=8, epochs=1, batch_size=16, optimizer="adamw",
        learning_rate=0.01, strength=0, sigma=4, train_time=0.1, bandwidth_max=0.1,
    )
    for strategy in ("fedavg", "adaptcl")
}  # fmt: skip
for strategy, result in results.items():
    perplexities = [round(record.main_value or 0, 1) for record in result.rounds]
    first, second, *_, last = (f"{record.bytes_sent:,}" for record in result.rounds)
    print(f"{strategy}: perplexity {perplexities} in {result.summary.virtual_time_s:.0f} s")
    print(f"  bytes to the workers: {first} in round 1, {second} in round 2, {last} in the last")
slowest = results["adaptcl"].sub_model(0)
for name, module in slowest.named_modules():
    if name.endswith("lora_A.default"):
        print(f"{name}: rank {len(module.get_parameter('weight'))} at the slowest worker")
