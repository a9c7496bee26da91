"""
Which random numbers repeat in the workers?
===========================================

Claim: a worker of a :class:`~torch.utils.data.DataLoader` seeds ``random``, NumPy's
global generator and torch's when it starts, in its own way, so draws from these
differ between workers and epochs. A generator object that the dataset holds is copied
into each worker as it is, so the workers draw the same numbers from it, and new
workers in the next epoch draw them again. Persistent workers go on in their copies,
all in the same way. How many augmentations a training sees follows from that, and is
counted below, before and after each of the usual fixes.

Nothing is timed, and all is seeded: the tables come out the same on every machine.
"""

import random
import warnings
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

SAMPLES = 8
EPOCHS = 6
WORKERS = 2
LARGE = 2**40  # so large that two equal draws are no coincidence
# fork lets classes defined in a notebook reach the workers. Windows has no fork: there,
# put the classes in a module and use spawn.
FORK = torch.multiprocessing.get_context("fork")
# From 3.12 on, Python warns of a fork when the process has threads; torch starts some.
warnings.filterwarnings("ignore", "This process .* is multi-threaded")
# Two workers are needed here, also where the machine has one CPU and torch warns of it.
warnings.filterwarnings("ignore", "This DataLoader will create 2 worker processes")


def loader(dataset: Dataset, workers: int = WORKERS, **options) -> DataLoader:
    """Return a loader of single samples whose random numbers start from seed 0."""
    if workers:
        options |= {"num_workers": workers, "multiprocessing_context": FORK}
    options.setdefault("generator", torch.Generator().manual_seed(0))
    return DataLoader(dataset, batch_size=None, **options)


# %%
# Five sources, two epochs
# ------------------------
#
# Each sample brings home one number from each source. The loader deals the samples to
# the workers in turn, so of eight samples each worker makes four.

SOURCES = {
    "random": lambda _: random.randrange(LARGE),
    "numpy.random": lambda _: int(np.random.randint(LARGE)),
    "torch": lambda _: int(torch.randint(LARGE, ())),
    "default_rng held": lambda held: int(held.numpy.integers(LARGE)),
    "Generator held": lambda held: int(torch.randint(LARGE, (), generator=held.torch)),
}


class Draws(Dataset):
    """Samples that are a draw from every source, in the order of the sources."""

    def __init__(self) -> None:
        self.numpy = np.random.default_rng(0)
        self.torch = torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> list[int]:
        return [draw(self) for draw in SOURCES.values()]


def letters(numbers: list[int]) -> str:
    """Return a letter for each number, the same letter for the same number."""
    known = list(dict.fromkeys(numbers))
    return "".join(chr(ord("A") + known.index(number)) for number in numbers)


patterns = {}
print(f"{'':18}epoch 0    epoch 1")
print(f"{'':18}w0   w1    w0   w1")
for persistent in (False, True):
    print("persistent_workers =", persistent)
    loading = loader(Draws(), persistent_workers=persistent)
    epochs = [list(loading) for _ in range(2)]
    for place, name in enumerate(SOURCES):
        drawn = [
            sample[place]
            for epoch in epochs
            for worker in range(WORKERS)
            for sample in epoch[worker::WORKERS]
        ]
        text = letters(drawn)
        parts = [text[start : start + 4] for start in range(0, 16, 4)]
        print(f"{name:18}{parts[0]} {parts[1]}  {parts[2]} {parts[3]}")
        patterns[name, persistent] = parts

for name in ("random", "numpy.random", "torch"):
    for persistent in (False, True):
        assert patterns[name, persistent] == ["ABCD", "EFGH", "IJKL", "MNOP"]
for name in ("default_rng held", "Generator held"):
    assert patterns[name, False] == ["ABCD"] * 4, "a copy for each new worker"
    assert patterns[name, True] == ["ABCD", "ABCD", "EFGH", "EFGH"]

# %%
# The same letter is the same number. The three global generators never repeat. What the
# dataset holds repeats across workers always, and across epochs unless the workers
# persist.
#
# How many augmentations a training sees
# --------------------------------------
#
# Let each draw be an augmentation. The count of different ones grows with the epochs,
# or does not. ``np.random.seed(id)`` is a fix from old forum posts that does harm
# today: it gives each worker the same seed in every epoch.


class Augmented(Dataset):
    """Samples that are an augmentation, drawn by a function that gets the dataset."""

    def __init__(self, draw) -> None:
        self.draw = draw
        self.numpy = np.random.default_rng(0)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return self.draw(self)


def seed_by_id(worker: int) -> None:
    """Seed NumPy's global generator by the worker's number alone."""
    np.random.seed(worker)


shared = SOURCES["numpy.random"]
held = SOURCES["default_rng held"]
CASES = {
    "numpy.random": (shared, {}),
    "held, persistent": (held, {"persistent_workers": True}),
    "np.random.seed(id)": (shared, {"worker_init_fn": seed_by_id}),
    "held": (held, {}),
}

curves, per_sample = {}, {}
for name, (draw, options) in CASES.items():
    loading = loader(Augmented(draw), **options)
    epochs = [list(loading) for _ in range(EPOCHS)]
    curves[name] = [
        len({number for epoch in epochs[:count] for number in epoch})
        for count in range(1, EPOCHS + 1)
    ]
    per_sample[name] = [len(set(seen)) for seen in zip(*epochs, strict=True)]

fig, ax = plt.subplots(figsize=(5.5, 3.5))
for name, counts in curves.items():
    ax.plot(range(1, EPOCHS + 1), counts, marker="o", label=name)
ax.set_ylim(0, SAMPLES * EPOCHS + 4)
ax.set_xlabel("epochs")
ax.set_ylabel("different augmentations")
ax.set_title("8 samples, 2 workers: different augmentations seen")
ax.legend()
plt.show()

print(f"{EPOCHS} epochs of {SAMPLES}    all  each sample")
for name, counts in curves.items():
    print(f"{name:18}{counts[-1]:5}{per_sample[name][0]:13}")

assert curves["numpy.random"][-1] == SAMPLES * EPOCHS
assert curves["held, persistent"][-1] == SAMPLES * EPOCHS // WORKERS
assert curves["np.random.seed(id)"][-1] == SAMPLES
assert curves["held"][-1] == SAMPLES // WORKERS
for name, repeats in (("numpy.random", False), ("held", True)):
    assert per_sample[name] == [1 if repeats else EPOCHS] * SAMPLES

# %%
# With the held generator there are as many augmentations as one worker draws in one
# epoch, here four, however long the training takes. Without shuffling each sample gets
# the same one in all epochs: the augmented dataset is a fixed dataset. More workers
# make it worse.
#
# Fixes, and what each keeps
# --------------------------
#
# A generator made from the worker's seed repeats nothing. But which number a sample
# gets still depends on how many workers there are, and on what they drew before. A
# generator made from the sample's key (a seed, the epoch, the index) depends on nothing
# else. The sampler yields the epoch as a part of the key: so it reaches persistent
# workers, too, which would not see a change of an attribute.


def reseed_held(worker: int) -> None:
    """Give the worker's copy of the dataset a generator of its own."""
    info = get_worker_info()
    info.dataset.numpy = np.random.default_rng(info.seed)


class Late(Augmented):
    """Samples from a generator that is made on first use."""

    def __init__(self) -> None:
        self.numpy = None

    def __getitem__(self, index: int) -> int:
        if self.numpy is None:
            self.numpy = np.random.default_rng(torch.initial_seed())
        return held(self)


class Keyed(Augmented):
    """Samples from a generator that is made from their key."""

    def __getitem__(self, key: tuple[int, int]) -> int:
        self.numpy = np.random.default_rng([0, *key])
        return held(self)


class Keys:
    """A sampler of keys: the epoch, set from outside, and the index."""

    epoch = 0

    def __iter__(self):
        return ((self.epoch, index) for index in range(SAMPLES))


def count_and_compare(make, **options) -> tuple[int, bool]:
    """Return how many numbers differ, and whether workers make no difference."""
    runs = []
    for workers in (0, 1, WORKERS):
        torch.manual_seed(0)
        np.random.seed(0)
        loading = loader(make(), workers, **options)
        run = []
        for epoch in range(3):
            loading.sampler.epoch = epoch  # the others do not look
            run += loading
        runs.append(run)
    return len(set(runs[-1])), runs[0] == runs[1] == runs[2]


FIXES = {
    "none": (partial(Augmented, held), {}),
    "global NumPy": (partial(Augmented, shared), {}),
    "worker_init_fn": (partial(Augmented, held), {"worker_init_fn": reseed_held}),
    "made on first use": (Late, {}),
    "made from the key": (partial(Keyed, held), {"sampler": Keys()}),
}

print("fix, 3 epochs     different  for any num_workers")
for name, (make, options) in FIXES.items():
    different, same = count_and_compare(make, **options)
    print(f"{name:18}{different:3} of {SAMPLES * 3}  {'same' if same else 'others'}")
    assert same == (name == "made from the key")
    if name != "none":
        assert different == SAMPLES * 3, "nothing repeats"

# %%
# Two ranks with one seed
# -----------------------
#
# In distributed training each rank has its own loader. If all ranks are seeded alike,
# their loaders draw the same base seed, and worker 0 of one rank augments as worker 0
# of the other. A generator for each rank parts them. The ranks are taken in turn here.


def rank_draws(rank: int, own: bool) -> list[int]:
    """Return the numbers of a rank, whose loader has a generator of its own or not."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(rank) if own else None
    return list(loader(Augmented(shared), generator=generator))


for own in (False, True):
    both = rank_draws(0, own) + rank_draws(1, own)
    print(f"own generator: {own!s:6}{len(set(both)):3} different of {len(both)}")
    assert len(set(both)) == SAMPLES * (2 if own else 1)
