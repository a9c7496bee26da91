"""
How much of a batch is padding?
===============================

Claim: the batches decide, not the collate function. Samples of very different lengths
in random batches are mostly padding. Sorting all of them by length removes nearly all
of it, and makes the same batches in every epoch; sorting within shuffled windows
removes most of it and keeps the batches changing. Laid end to end, samples need none.

Padding costs memory and arithmetic, and it is counted by every mean that is not told to
leave it out. The last part computes the loss of the same samples batched in three ways:
the mean over places gives three results, the mean over real numbers gives one.

Nothing is timed, and all of it runs on the CPU, as collation does.
"""

import matplotlib.pyplot as plt
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

print(f"torch {torch.__version__} on the CPU")

# %%
# Sequences with a long tail
# --------------------------
#
# 512 sequences, most of them short and a few long, as texts are. Each holds the numbers
# 1, 2, 3, ..., so that 0 can only be padding.

SIZE, BATCH, WINDOW = 512, 16, 128
draws = torch.rand(SIZE, generator=torch.Generator().manual_seed(0))
lengths = (4 - 16 * (1 - 0.98 * draws).log()).int().tolist()
sequences = [torch.arange(1.0, length + 1) for length in lengths]
print("shortest", min(lengths), " median", sorted(lengths)[SIZE // 2], end="  ")
print("longest", max(lengths), " numbers in all", sum(lengths))


def pad(samples: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad with 0 and return the batch and its mask, True where a number is real."""
    padded = pad_sequence(samples, batch_first=True)
    sizes = torch.tensor([len(sample) for sample in samples])
    return padded, torch.arange(padded.shape[1]) < sizes[:, None]


# %%
# Four ways to choose a batch
# ---------------------------
#
# Each is a list of lists of indices, to be passed as ``batch_sampler``. The last cuts
# the sorted samples where a batch would hold more places than the budget allows, so
# its batches differ in the number of samples and not in memory.


def cut(order: list[int]) -> list[list[int]]:
    """Return consecutive batches of equal numbers of samples."""
    return [order[start : start + BATCH] for start in range(0, SIZE, BATCH)]


def shuffled(items: list, generator: torch.Generator) -> list:
    """Return the items in a random order."""
    return [items[i] for i in torch.randperm(len(items), generator=generator)]


def randomly(generator: torch.Generator) -> list[list[int]]:
    """Shuffle and cut."""
    return cut(shuffled(range(SIZE), generator))


def all_sorted(generator: torch.Generator) -> list[list[int]]:
    """Sort by length, cut, shuffle the batches."""
    return shuffled(cut(sorted(range(SIZE), key=lengths.__getitem__)), generator)


def in_windows(generator: torch.Generator) -> list[list[int]]:
    """Shuffle, sort within each window, cut, shuffle the batches."""
    order = shuffled(range(SIZE), generator)
    for start in range(0, SIZE, WINDOW):
        window = slice(start, start + WINDOW)
        order[window] = sorted(order[window], key=lengths.__getitem__)
    return shuffled(cut(order), generator)


def by_places(generator: torch.Generator, budget: int = 256) -> list[list[int]]:
    """Sort by length and fill each batch up to a number of places."""
    batches = [[]]
    for index in sorted(range(SIZE), key=lengths.__getitem__):
        if (len(batches[-1]) + 1) * lengths[index] > budget and batches[-1]:
            batches.append([])
        batches[-1].append(index)
    return shuffled(batches, generator)


WAYS = {
    "random": randomly,
    "sorted": all_sorted,
    "windows": in_windows,
    "by places": by_places,
}

print("              places  padding  largest batch  batches  again in epoch 2")
table = {}
for name, choose in WAYS.items():
    generator = torch.Generator().manual_seed(1)
    first, second = choose(generator), choose(generator)
    masks = [
        mask for _, mask in DataLoader(sequences, batch_sampler=first, collate_fn=pad)
    ]
    places = sum(mask.numel() for mask in masks)
    real = sum(mask.sum().item() for mask in masks)
    largest = max(mask.numel() for mask in masks)
    again = len({frozenset(batch) for batch in first} & {*map(frozenset, second)})
    table[name] = {"batches": first, "masks": masks, "places": places, "again": again}
    table[name] |= {"padding": 1 - real / places, "largest": largest}
    print(
        f"{name:12}{places:8}{1 - real / places:9.0%}{largest:15}"
        f"{len(first):9}{again:18}"
    )
    assert real == sum(lengths), "every sequence comes once"

# %%
# Random batches are as wide as the longest of sixteen, and one of sixteen is often
# long. Sorting leaves padding only where lengths jump, at the long end. But the sixteen
# shortest then meet in every epoch, and only the order of the batches changes. Windows
# of eight batches leave less than a fifth of the padding, and no batch comes back.
#
# The budget does something else: it bounds the largest batch, which is what has to fit
# in memory. One sequence longer than the budget would still be a batch of its own.

assert table["random"]["padding"] > 0.5, "more padding than data"
assert table["sorted"]["padding"] < 0.1
numbers = sum(lengths)
assert table["windows"]["places"] - numbers < 0.2 * (
    table["random"]["places"] - numbers
)
assert table["sorted"]["again"] == len(table["sorted"]["batches"])
assert table["random"]["again"] == table["windows"]["again"] == 0
assert table["by places"]["largest"] <= max(256, max(lengths))
assert table["by places"]["largest"] < table["sorted"]["largest"]

# %%
# Eight batches of each kind, one below the other: a row is a sample, and what is grey
# is padding.

figure, panels = plt.subplots(1, 3, figsize=(5.5, 5), sharey=True, layout="constrained")
width = max(lengths)
for axes, name in zip(panels, ("random", "windows", "sorted"), strict=True):
    masks = table[name]["masks"][:8]
    data = torch.cat([mask.sum(1) for mask in masks]).tolist()
    wide = [mask.shape[1] for mask in masks for _ in mask]
    bars = {"orientation": "horizontal", "fill": True}
    axes.stairs(data, color="C0", label="data", **bars)
    axes.stairs(wide, baseline=data, color="C7", label="padding", **bars)
    axes.set(xlabel="places", xlim=(0, width), title=name)
    axes.set_yticks(range(0, len(data) + 1, BATCH))
panels[0].invert_yaxis()
panels[0].set_ylabel("sample, batches of 16")
handles, labels = panels[0].get_legend_handles_labels()
figure.legend(handles[:2], labels[:2], loc="outside lower center", ncols=2)
figure.suptitle("Eight batches each: what is data and what is padding")
plt.show()

# %%
# End to end
# ----------
#
# A jagged nested tensor lays the sequences of a batch end to end and keeps offsets. It
# has as many places as there are numbers, in whatever batches, and a layer that works
# on each place alone computes the same from it as from the padded batch.


def nest(samples: list[torch.Tensor]) -> torch.Tensor:
    """Return the samples as a jagged nested tensor."""
    return torch.nested.nested_tensor(samples, layout=torch.jagged)


batches = table["random"]["batches"]
nested = list(DataLoader(sequences, batch_sampler=batches, collate_fn=nest))
padded = list(DataLoader(sequences, batch_sampler=batches, collate_fn=pad))
packed_places = sum(batch.values().numel() for batch in nested)
print("places, padded:", table["random"]["places"], " end to end:", packed_places)
assert packed_places == sum(lengths), "no padding, though the batches are random"

layer = torch.nn.Linear(1, 2)
for batch, (values, mask) in zip(nested, padded, strict=True):
    flat = layer(batch.unsqueeze(-1)).values()
    torch.testing.assert_close(flat, layer(values.unsqueeze(-1))[mask])

# %%
# The same samples, three losses
# ------------------------------
#
# The model predicts one constant, 10, and the loss of an epoch is the mean of its
# squared error: sums and counts added up over the batches, divided once. Over numbers
# it is the same for any batches. Over places the padding pulls the prediction towards
# 0, and how hard it pulls depends on the batches.


def epoch(name: str, over_places: bool) -> tuple[float, float]:
    """Return the loss of an epoch and its gradient for a constant prediction."""
    guess = torch.tensor(10.0, requires_grad=True)
    loader = DataLoader(sequences, batch_sampler=table[name]["batches"], collate_fn=pad)
    total, count = 0.0, 0
    for values, mask in loader:
        errors = (values - guess) ** 2
        kept = errors if over_places else errors[mask]
        total, count = total + kept.double().sum(), count + kept.numel()
    loss = total / count
    loss.backward()
    return loss.item(), guess.grad.item()


losses = {}
print("            mean over places       mean over numbers")
print("               loss  gradient        loss  gradient")
for name in ("random", "windows", "sorted"):
    losses[name] = epoch(name, True), epoch(name, False)
    (a, b), (c, d) = losses[name]
    print(f"{name:10}{a:9.2f}{b:10.3f}{c:12.2f}{d:10.3f}")

true = torch.cat(sequences)
mean = ((true - 10) ** 2).double().mean().item()
for over_places, over_numbers in losses.values():
    assert abs(over_numbers[0] - mean) < 1e-4 * mean, "the mean over all numbers"
    assert over_places[1] > over_numbers[1] + 1, "padding pulls towards 0"
assert losses["random"][0][1] > losses["windows"][0][1] > losses["sorted"][0][1]

# %%
# The true gradient is negative: the guess of 10 is too low. Over places, the random
# batches turn its sign, so training would lower the guess instead.

signs = [losses["random"][kind][1] > 0 for kind in (0, 1)]
assert signs == [True, False], "padding turned the sign"
