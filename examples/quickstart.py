"""Generate, compare two policies, and use the rule alone. Runs anywhere: the toy model needs no weights."""

import torch

import unmask

llm = unmask.load("toy")  # or a folder, or "GSAI-ML/LLaDA-8B-Instruct"

one_by_one = llm.generate("How does it work?", policy="fixed", max_tokens=160)
together = llm.generate("How does it work?", policy="mean_field", max_tokens=160)
print(together.text)
print(f"{one_by_one.usage.forward_passes} forward passes one token at a time, {together.usage.forward_passes} together")

for event in llm.stream("How does it work?", max_tokens=160):
    print(event.text_delta, end="", flush=True)
print()

logits, masked = torch.randn(1, 8, 100) * 4, torch.ones(1, 8, dtype=torch.bool)
decision = unmask.rules.mean_field_commit(logits, masked, threshold=0.85, iterations=2)
print("commit now:", decision.commit.nonzero()[:, 1].tolist())
