"""
Which rank gets which sample, and in which epoch?
=================================================

Claim: a :class:`~torch.utils.data.distributed.DistributedSampler` deals one shuffled
order to the ranks like cards. Without ``set_epoch`` that order never changes: a rank
keeps its samples, and the batches that all ranks form together keep theirs. With it,
samples wander. To make the shares equal some samples are dealt twice, or, with
``drop_last=True``, some not at all; which ones changes with the epoch, so it evens out
in training, and in evaluation, where the order is fixed, it does not.

The last part computes the accuracy of one model on 2 to 32 ranks in four ways. Three of
them depend on the number of ranks. No process group is needed, since a sampler sends
no messages, and nothing here uses a device.
"""

from collections import Counter

import matplotlib.pyplot as plt
import torch
from torch.utils.data import BatchSampler
from torch.utils.data.distributed import DistributedSampler

SIZE, RANKS, EPOCHS, BATCH = 18, 4, 6, 2
print(f"torch {torch.__version__}, {RANKS} ranks in one process")


def deal(epoch: int, **options: bool) -> list[list[int]]:
    """Return the indices of each rank."""
    shares = []
    for rank in range(RANKS):
        sampler = DistributedSampler(range(SIZE), RANKS, rank, **options)
        sampler.set_epoch(epoch)
        shares.append(list(sampler))
    return shares


# %%
# Four ways to deal eighteen samples
# ----------------------------------
#
# One column is an epoch, one row a sample, and the colour is the rank that gets it.
# A 2 marks a sample that is dealt twice in its epoch; its colour is that of the rank
# that has it in the regular place. An empty cell is a sample that nobody gets.

WAYS = {
    "without set_epoch": [deal(0) for epoch in range(EPOCHS)],
    "with set_epoch": [deal(epoch) for epoch in range(EPOCHS)],
    "drop_last=True": [deal(epoch, drop_last=True) for epoch in range(EPOCHS)],
    "shuffle=False": [deal(epoch, shuffle=False) for epoch in range(EPOCHS)],
}


def dealt(shares: list[list[int]]) -> list[tuple[int, int]]:
    """Return sample and rank in the order of the deal, which goes round the ranks."""
    rounds = zip(*shares, strict=True)
    return [(sample, rank) for turn in rounds for rank, sample in enumerate(turn)]


figure, panels = plt.subplots(
    2, 2, figsize=(5.5, 7.5), sharex=True, sharey=True, layout="constrained"
)
for axes, (name, epochs) in zip(panels.flat, WAYS.items(), strict=True):
    for epoch, shares in enumerate(epochs):
        seen = set()
        for sample, rank in dealt(shares):
            if sample in seen:
                axes.text(epoch, sample, "2", ha="center", va="center", size=8)
            else:
                axes.barh(sample, 0.9, 0.9, epoch - 0.45, color=f"C{rank}")
            seen.add(sample)
    axes.set(title=name, xticks=range(EPOCHS), yticks=range(0, SIZE, 2))
    axes.set_xlim(-0.6, EPOCHS - 0.4)
panels[0, 0].invert_yaxis()
for axes in panels[1]:
    axes.set_xlabel("epoch")
for axes in panels[:, 0]:
    axes.set_ylabel("sample")
handles = [plt.Rectangle((0, 0), 1, 1, color=f"C{rank}") for rank in range(RANKS)]
figure.legend(
    handles,
    [f"rank {rank}" for rank in range(RANKS)],
    loc="outside lower center",
    ncols=RANKS,
)
figure.suptitle("Which rank gets which sample in which epoch")
plt.show()

# %%
# The table counts over the six epochs: how many samples rank 0 has met, and how often
# each sample was dealt by all ranks together.

print(f"{'':19}rank 0 met   dealt at least  at most")
for name, epochs in WAYS.items():
    met = {sample for shares in epochs for sample in shares[0]}
    times = Counter(sample for shares in epochs for sample, _ in dealt(shares))
    counts = [times[sample] for sample in range(SIZE)]
    print(f"{name:19}{len(met):10}{min(counts):17}{max(counts):9}")
    if name in ("without set_epoch", "shuffle=False"):
        assert all(shares == epochs[0] for shares in epochs), "one order for ever"
        assert sorted(set(counts)) == [EPOCHS, 2 * EPOCHS], "always the same ones twice"
    else:
        assert len({tuple(shares[0]) for shares in epochs}) == EPOCHS, "a new order"
        assert len(met) > SIZE * 0.7, "rank 0 gets around"
    if name == "with set_epoch":
        assert max(counts) < 2 * EPOCHS, "nobody is doubled each time"
    if name == "drop_last=True":
        assert 0 < min(counts) < EPOCHS == max(counts), "nobody is left out each time"

# %%
# Without ``set_epoch``, rank 0 sees five of the eighteen samples, however long training
# lasts. The model does learn from all of them, through the other ranks; what is missing
# is the new mixture of each step.
#
# Who shares a step
# -----------------
#
# A step averages over one batch of each rank. Here are the samples that the first step
# of each epoch uses, two a rank.


def first_step(shares: list[list[int]]) -> list[int]:
    """Return the samples of the first batch of all ranks."""
    batches = [
        next(iter(BatchSampler(mine, BATCH, drop_last=False))) for mine in shares
    ]
    return sorted(sample for batch in batches for sample in batch)


for name in ("without set_epoch", "with set_epoch"):
    print(name)
    steps = [first_step(shares) for shares in WAYS[name][:3]]
    print(*steps, sep="\n")
    assert all(len(step) == RANKS * BATCH for step in steps), "the batches of all ranks"
    assert len({tuple(step) for step in steps}) == (1 if "out" in name else 3)

# %%
# ``batch_size`` is that of one rank: a step uses four times as many samples.
#
# One model, many accuracies
# --------------------------
#
# A test set of 100 samples, of which the model gets all but the first ten right, as may
# happen where the samples are sorted by class. Its accuracy is 0.9. Each rank sees its
# share in order, and a number is made of all shares in four ways.

right = (torch.arange(100) >= 10).double()


def accuracies(ranks: int) -> dict[str, float]:
    """Return the accuracy as four recipes compute it."""
    padded, dropped = (
        [
            right[list(DistributedSampler(right, ranks, rank, False, drop_last=drop))]
            for rank in range(ranks)
        ]
        for drop in (False, True)
    )
    shards = [right[rank::ranks] for rank in range(ranks)]
    totals = torch.stack([torch.tensor([s.sum(), len(s)]) for s in shards]).sum(0)
    return {
        "padded": torch.cat(padded).mean().item(),
        "drop_last": torch.cat(dropped).mean().item(),
        "mean of shards": torch.stack([s.mean() for s in shards]).mean().item(),
        "sums and counts": (totals[0] / totals[1]).item(),
    }


numbers = range(2, 33)
results = {ranks: accuracies(ranks) for ranks in numbers}
print("ranks  " + "  ".join(results[2]))
for ranks in (2, 3, 8, 16, 24, 32):
    row = "  ".join(f"{v:{len(k)}.4f}" for k, v in results[ranks].items())
    print(f"{ranks:5}  {row}")

figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
markers = dict(zip(results[2], "v^sx", strict=True))
for name, marker in markers.items():
    values = [row[name] for row in results.values()]
    axes.plot(numbers, values, marker, markersize=4, label=name)
axes.set(
    xlabel="ranks", ylabel="accuracy", title="Accuracy of one model on 100 samples"
)
figure.legend(loc="outside lower center", ncols=2)
plt.show()

# %%
# Where the ranks divide 100, all four agree, so a test with a convenient number of
# ranks finds nothing. Elsewhere padding repeats the first samples, which are the ones
# that the model gets wrong, and dropping leaves out the last ones, which it gets right:
# both make it look worse. The mean of shards weighs a sample of a short shard more.
# Sums and counts are right for every number of ranks.

assert all(abs(row["sums and counts"] - 0.9) < 1e-12 for row in results.values())
for ranks, row in results.items():
    if 100 % ranks == 0:
        assert max(row.values()) - min(row.values()) < 1e-12, "equal shares hide it"
    else:
        assert row["padded"] < 0.9 - 1e-3, "the first samples count twice"
        assert row["drop_last"] < 0.9 - 1e-4, "the last samples are missing"
assert max(abs(row["mean of shards"] - 0.9) for row in results.values()) > 1e-3
