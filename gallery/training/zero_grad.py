"""
When does gradient accumulation equal one large batch?
======================================================

Gradients add up until ``zero_grad()`` clears them. That makes one large batch out of
several small ones, if each loss is weighted by its share of the examples. Dividing by
the number of micro-batches is right only when all are equally large, and no weighting
helps a layer that looks across the batch. Clearing to ``None`` or to zero gives the
next gradient the same value, but optimizers treat a parameter without one differently.

This script measures the error of the accumulated gradient for every way of splitting
a batch in two, for padded sequences, and for a network with batch normalisation. Then
it freezes a layer in mid-training and measures how far it moves afterwards.
"""

from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

# %%
# A batch of sixteen, split in two
# --------------------------------
#
# Everything is float64, so that a wrong weight cannot hide behind rounding. The error
# is relative: the norm of the difference between the accumulated gradient and that of
# the whole batch, divided by the norm of the latter.

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)


def gradient(model: nn.Module) -> torch.Tensor:
    """Return all gradients of a model as one vector, and clear them."""
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    model.zero_grad()
    return flat


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the norm of the difference as a share of the wanted norm."""
    return ((found - wanted).norm() / wanted.norm()).item()


inputs, targets = torch.randn(16, 4), torch.randn(16, 1)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

mse_loss(model(inputs), targets).backward()
whole = gradient(model)

weighted_error, divided_error = [], []
for first in range(1, 16):
    parts = (slice(0, first), slice(first, 16))
    for rows in parts:
        share = len(inputs[rows]) / len(inputs)
        (mse_loss(model(inputs[rows]), targets[rows]) * share).backward()
    weighted_error.append(error(gradient(model), whole))
    for rows in parts:
        (mse_loss(model(inputs[rows]), targets[rows]) / len(parts)).backward()
    divided_error.append(error(gradient(model), whole))

print(f"{'split':>7} {'divided by 2':>13} {'weighted by share':>18}")
for first in (1, 4, 8, 12, 15):
    print(
        f"{first:2} + {16 - first:2} {divided_error[first - 1]:13.1e} "
        f"{weighted_error[first - 1]:18.1e}"
    )

assert max(weighted_error) < 1e-12, "weighted by share, every split must be exact"
assert divided_error[7] < 1e-12, "8 + 8: dividing by two is right"
uneven = divided_error[:7] + divided_error[8:]
assert min(uneven) > 1e-3, "any other split: dividing by two must be wrong"

# %%
# Dividing by two is exact at one point. The last micro-batch of an epoch is usually the
# short one, so that is where an even split stops being even.

figure, axes = plt.subplots(figsize=(7, 4))
sizes = range(1, 16)
axes.plot(sizes, divided_error, "o-", color="C1", label="each loss divided by 2")
axes.plot(sizes, weighted_error, "s-", color="C0", label="each loss times its share")
axes.set_xlabel("examples in the first of two micro-batches, of 16")
axes.set_ylabel("relative error of the gradient")
axes.set_title("Error of the accumulated gradient for each split of a batch")
axes.legend()
plt.show()

# %%
# Sequences: count tokens, not sequences
# --------------------------------------
#
# Four sequences, padded to eight tokens; the loss ignores padding. Two micro-batches
# of two sequences look even, but the mean inside ``cross_entropy`` runs over tokens.
# The safe recipe sums, and divides by the number of tokens in the whole batch, so count
# them before the first ``backward()``.

vocabulary, padding = 11, -100
tokens = torch.randint(vocabulary, (4, 8))
labels = torch.randint(vocabulary, (4, 8))
for row, length in enumerate((8, 7, 2, 1)):
    labels[row, length:] = padding
reader = nn.Sequential(nn.Embedding(vocabulary, 6), nn.Linear(6, vocabulary))


def token_loss(rows: slice, reduction: str) -> torch.Tensor:
    """Return the loss of some sequences; padding does not count."""
    scores = reader(tokens[rows]).flatten(0, 1)
    return cross_entropy(scores, labels[rows].flatten(), reduction=reduction)


token_loss(slice(0, 4), "mean").backward()
whole = gradient(reader)
halves = (slice(0, 2), slice(2, 4))
counts = [(labels[rows] != padding).sum().item() for rows in halves]

for rows in halves:
    (token_loss(rows, "mean") / len(halves)).backward()
by_sequences = error(gradient(reader), whole)
for rows in halves:
    (token_loss(rows, "sum") / sum(counts)).backward()
by_tokens = error(gradient(reader), whole)

print(f"tokens that count, by half: {counts}")
print(f"mean of each half, divided by 2:   error {by_sequences:.1e}")
print(f"sum of each half / all {sum(counts)} tokens: error {by_tokens:.1e}")

assert by_sequences > 0.1, "equal numbers of sequences must not be enough"
assert by_tokens < 1e-12, "weighted by tokens, accumulation must be exact"

# %%
# What no weighting repairs
# -------------------------
#
# Batch normalisation in training mode subtracts the mean of the micro-batch it sees, so
# each example's output depends on its neighbours. The split is even and the weights are
# right, and the gradient differs all the same. Layer normalisation looks at one example
# at a time.

norm_error = {}
for norm in (nn.LayerNorm(8), nn.BatchNorm1d(8)):
    network = nn.Sequential(nn.Linear(4, 8), norm, nn.Tanh(), nn.Linear(8, 1))
    mse_loss(network(inputs), targets).backward()
    whole = gradient(network)
    for rows in (slice(0, 8), slice(8, 16)):
        (mse_loss(network(inputs[rows]), targets[rows]) / 2).backward()
    norm_error[type(norm).__name__] = error(gradient(network), whole)

for name, value in norm_error.items():
    print(f"8 + 8 with {name:11}  error {value:.1e}")

assert norm_error["LayerNorm"] < 1e-12, "one example at a time: must be exact"
assert norm_error["BatchNorm1d"] > 0.05, "statistics of the batch: must differ"

# %%
# None or zero: a layer frozen in mid-training
# --------------------------------------------
#
# Every optimizer here trains two layers for ten iterations. Then the first layer's
# ``requires_grad`` is switched off, and training goes on for thirty more. With zeros
# left in ``.grad``, ``step()`` still works on the frozen layer: momentum and Adam's
# averages carry it on, and weight decay shrinks it. With ``None`` it is passed over.

OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05),
    "SGD, momentum": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "SGD, weight decay": lambda params: torch.optim.SGD(
        params, lr=0.05, weight_decay=0.1
    ),
    "RMSprop": lambda params: torch.optim.RMSprop(params, lr=0.01),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.01),
}


def moved_after_freezing(make_optimizer: Callable, set_to_none: bool) -> list[float]:
    """Return how far a frozen weight moved, per iteration, as a share of its norm."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = make_optimizer(model.parameters())
    frozen, distances = model[0].weight, []
    for iteration in range(40):
        optimizer.zero_grad(set_to_none=set_to_none)
        if iteration == 10:
            model[0].requires_grad_(False)
            start = frozen.clone()
        mse_loss(model(inputs), targets).backward()
        optimizer.step()
        if iteration >= 10:
            distances.append(error(frozen, start))
    return distances


distances = {
    name: {choice: moved_after_freezing(make, choice) for choice in (True, False)}
    for name, make in OPTIMIZERS.items()
}
print(f"{'moved since frozen':18} {'None':>8} {'zeros':>8}")
for name, by_choice in distances.items():
    print(f"{name:18} {by_choice[True][-1]:8.4f} {by_choice[False][-1]:8.4f}")

for name, by_choice in distances.items():
    assert by_choice[True][-1] == 0.0, f"{name}: None must be passed over"
for name in ("SGD", "RMSprop"):
    assert distances[name][False][-1] == 0.0, f"{name}: a zero gradient moves nothing"
for name in ("SGD, momentum", "SGD, weight decay", "Adam", "AdamW"):
    assert distances[name][False][-1] > 1e-3, f"{name}: zeros must still move it"

# %%
# Momentum and Adam's averages fade; weight decay does not. With these settings it takes
# away 0.5 % of what is left, in every iteration.

lasting = distances["SGD, weight decay"][False][-1]
print(f"moved by weight decay: {lasting:.6f}   1 - 0.995**30: {1 - 0.995**30:.6f}")
assert abs(lasting - (1 - (1 - 0.05 * 0.1) ** 30)) < 1e-9, "decay must be geometric"
for name in ("SGD, momentum", "Adam"):
    start, *_, before_last, last = distances[name][False]
    assert last - before_last < start / 10, f"{name}: what it remembers must fade"

figure, axes = plt.subplots(figsize=(7, 4))
after = range(1, 31)
for colour, name in enumerate(("SGD, momentum", "SGD, weight decay", "Adam")):
    axes.plot(after, distances[name][False], color=f"C{colour}", label=f"{name}, zeros")
axes.plot(after, distances["Adam"][True], "--", color="C3", label="all of them, None")
axes.set_ylim(top=0.5)
axes.set_xlabel("iterations since requires_grad was switched off")
axes.set_ylabel("distance moved / norm of the weight")
axes.set_title("How far a frozen layer moves, by what zero_grad() left behind")
axes.legend()
plt.show()
