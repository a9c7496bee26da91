"""
Which worker loads which batch, and when?
=========================================

Claim: a :class:`~torch.utils.data.DataLoader` deals whole batches to its workers in
turn, keeps ``prefetch_factor * num_workers`` of them in flight, and delivers them in
order even when they are finished out of order. The workers are processes with copies
of the dataset: streams repeat unless they are sharded, changes stay in the worker
unless they go to shared memory, and a random generator that the dataset carries is
copied with it.

Every sample below brings home a note from the process that made it. Nothing is timed:
the figure and the tables count batches, so they come out the same on every machine.
"""

import os
import random
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

WORKERS = 2
# fork starts a worker as a copy of this process, so that classes defined in a
# notebook, or in a script without a __main__ guard, reach it. The other start methods
# pickle them by module and name; forkserver is Linux's default from Python 3.14 on.
# Windows has no fork: there, put the classes in a module and use spawn.
FORK = torch.multiprocessing.get_context("fork")
# From 3.12 on, Python warns of a fork when the process has threads; torch starts some.
warnings.filterwarnings("ignore", "This process .* is multi-threaded")
# Two workers are needed here, also where the machine has one CPU and torch warns of it.
warnings.filterwarnings("ignore", "This DataLoader will create 2 worker processes")


def worker_id() -> int | None:
    """Return the number of the worker that calls, None in the main process."""
    info = get_worker_info()
    return None if info is None else info.id


def as_is(samples: list) -> list:
    """Collate a batch by leaving it a list."""
    return samples


# %%
# Which process runs what
# -----------------------
#
# A sampler names the samples, ``__getitem__`` makes each of them, ``collate_fn``
# joins them. All three note the process they run in.


class Pids(Dataset):
    """Samples that are the process that made them."""

    def __getitem__(self, index: int) -> int:
        return os.getpid()


def eight_indices(asked_by: set[int]):
    """Yield 0 to 7 and add the process that asks for them to the set."""
    for index in range(8):
        asked_by.add(os.getpid())
        yield index


def join(makers: list[int]) -> tuple[set[int], int]:
    """Return who made the samples of a batch and who joined them."""
    return set(makers), os.getpid()


MAIN = os.getpid()
print("num_workers  sampler  __getitem__  collate_fn")
for num_workers in (0, WORKERS):
    askers = set()
    batches = list(
        DataLoader(
            Pids(),
            batch_size=2,
            sampler=eight_indices(askers),
            collate_fn=join,
            num_workers=num_workers,
            multiprocessing_context=FORK if num_workers else None,
        )
    )
    makers = set().union(*(made_by for made_by, _ in batches))
    joiners = {joined_by for _, joined_by in batches}
    columns = [
        "main" if pids == {MAIN} else f"{len(pids)} workers"
        for pids in (askers, makers, joiners)
    ]
    print(f"{num_workers:11}  {columns[0]:7}  {columns[1]:11}  {columns[2]}")
    assert askers == {MAIN}, "the sampler stays in the main process"
    assert all(made == {joined} for made, joined in batches), "one process a batch"
    assert len(makers) == max(num_workers, 1), "every worker takes part"
    assert (MAIN in makers) == (num_workers == 0), "workers do all of the loading"

# %%
# The sampler never leaves the main process: there is one order, and workers are told
# what to load. One process makes a batch, from its first sample to its collation, so
# more workers do not make the first batch come sooner.
#
# How far ahead the workers are
# -----------------------------
#
# This time the sampler notes during which call of ``next()`` each batch is dealt, 0
# being ``iter()``. The bar of a batch runs from there to the call that returns it.


class WhoLoads(Dataset):
    """Samples that tell their index and the worker that made them."""

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, worker_id()


PREFETCH = 2
BATCHES = 10
call = 0
dealt_in = []


def deal():
    """Yield batches of one index each."""
    for index in range(BATCHES):
        dealt_in.append(call)
        yield [index]


loader = DataLoader(
    WhoLoads(),
    batch_sampler=deal(),
    collate_fn=as_is,
    num_workers=WORKERS,
    prefetch_factor=PREFETCH,
    multiprocessing_context=FORK,
)
iterator = iter(loader)
window = len(dealt_in)
loaded_by = []
for batch in range(BATCHES):
    call += 1
    [(index, worker)] = next(iterator)
    assert index == batch, "batches come in the sampler's order"
    loaded_by.append(worker)

fig, ax = plt.subplots(figsize=(7, 4))
for worker in range(WORKERS):
    mine = [batch for batch in range(BATCHES) if loaded_by[batch] == worker]
    ax.barh(
        mine,
        [batch + 1 - dealt_in[batch] for batch in mine],
        left=[dealt_in[batch] for batch in mine],
        color=f"C{worker}",
        label=f"worker {worker}",
    )
ax.invert_yaxis()
ax.set_yticks(range(BATCHES))
ax.set_xticks(range(BATCHES + 1))
ax.set_xlabel("calls of next()")
ax.set_ylabel("batch")
ax.set_title("From dealt to returned: 2 workers x 2 batches in flight")
ax.legend()
plt.show()

in_flight = [
    sum(start <= calls < batch + 1 for batch, start in enumerate(dealt_in))
    for calls in range(BATCHES)
]
print("in flight after 0, 1, ... calls:   ", in_flight)
print("worker that loaded batch 0, 1, ...:", loaded_by)
assert window == WORKERS * PREFETCH, "iter() deals the whole window, before any next()"
assert in_flight == [4] * 7 + [3, 2, 1], "the window stays full to the end"
assert loaded_by == [batch % WORKERS for batch in range(BATCHES)], "dealt in turn"

# %%
# ``iter()`` alone deals four batches, and each batch returned makes room for one more.
# So prefetching takes the memory of ``prefetch_factor * num_workers`` batches. The
# sampler runs ahead of the loop by as many: a checkpoint that counts what the sampler
# has yielded counts batches that no step has used.
#
# One slow batch holds up the others
# ----------------------------------
#
# Batch 0 waits until worker 1 is through with its two batches. A shared counter
# notes in which order the batches are finished.
#
# With ``in_order=False`` (it exists since 2.6) the loop takes what is ready. There,
# batch 0 waits for the loop to have received batch 3.

WAIT = 60  # seconds; only a broken run gets there


class SlowStart(Dataset):
    """Four samples, the first of which waits for a gate that the last may open."""

    def __init__(self, last_opens: bool) -> None:
        self.gate = FORK.Event()
        self.finished = FORK.Value("i", 0)
        self.last_opens = last_opens

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[int, int]:
        if index == 0:
            assert self.gate.wait(WAIT), "nobody opened the gate"
        with self.finished.get_lock():
            place = self.finished.value
            self.finished.value += 1
        if index == 3 and self.last_opens:
            self.gate.set()
        return index, place


print("in_order  finished      delivered")
for in_order in (True, False):
    dataset = SlowStart(last_opens=in_order)
    loader = DataLoader(
        dataset,
        collate_fn=as_is,
        num_workers=WORKERS,
        multiprocessing_context=FORK,
        in_order=in_order,
    )
    delivered, places = [], []
    for [(index, place)] in loader:
        delivered.append(index)
        places.append(place)
        if index == 3:
            dataset.gate.set()
    finished = [index for _, index in sorted(zip(places, delivered, strict=True))]
    print(f"{in_order!s:8}  {finished}  {delivered}")
    assert finished == [1, 3, 0, 2], "worker 1 is done before batch 0"
    expected = [0, 1, 2, 3] if in_order else finished
    assert delivered == expected, "in_order decides whose order the loop sees"

# %%
# By default the loop waits for batch 0 while batches 1 and 3 lie ready, because the
# order of training must not depend on which process the machine favours. One slow
# sample in every few batches thus stalls a loader that is fast on average.
#
# Streams: every worker reads all of it
# -------------------------------------
#
# An iterable dataset has no indices to deal, so each worker iterates over its own
# copy from the start. Dividing the work is the dataset's business.


class Stream(IterableDataset):
    """The numbers 0 to 9; sharded, each worker takes every second one."""

    def __init__(self, sharded: bool) -> None:
        self.sharded = sharded

    def __iter__(self):
        info = get_worker_info()
        if info is None or not self.sharded:
            return iter(range(10))
        return iter(range(info.id, 10, info.num_workers))


print("num_workers  sharded  samples  different  batches")
for num_workers, sharded, samples, different in (
    (0, False, 10, 10),
    (WORKERS, False, 20, 10),
    (WORKERS, True, 10, 10),
):
    loader = DataLoader(
        Stream(sharded),
        batch_size=4,
        num_workers=num_workers,
        multiprocessing_context=FORK if num_workers else None,
    )
    got = [batch.tolist() for batch in loader]
    flat = [sample for batch in got for sample in batch]
    print(f"{num_workers:11}  {sharded!s:7}  {len(flat):7}  {len(set(flat)):9}  {got}")
    assert len(flat) == samples, "only unsharded workers repeat the stream"
    assert len(set(flat)) == different, "no sample is lost"

# Each worker has a last, shorter batch of its own: 4 + 4 + 2 became 4 + 4 + 1 + 1.
assert [len(batch) for batch in got] == [4, 4, 1, 1], "one short batch a worker"

loader = DataLoader(
    Stream(sharded=True),
    batch_size=4,
    num_workers=WORKERS,
    multiprocessing_context=FORK,
    drop_last=True,
)
print("with drop_last:", [batch.tolist() for batch in loader])
assert len(list(loader)) == 2, "both short batches are dropped"

# %%
# Sharding leaves one more trace: batches are filled within a worker, so there are two
# short ones instead of one, and ``drop_last=True`` drops both.
#
# What a worker changes stays there
# ---------------------------------
#
# Each sample counts itself on the dataset. Between the epochs the main process sets
# ``epoch`` on its own copy.


class Counting(Dataset):
    """Two samples; counts how many it has made in this process."""

    def __init__(self) -> None:
        self.made = 0
        self.epoch = 0

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.made += 1
        return self.epoch, self.made


print("persistent_workers  epoch: seen in the worker  count there  count in main")
for persistent in (False, True):
    dataset = Counting()
    loader = DataLoader(
        dataset,
        batch_size=2,
        collate_fn=as_is,
        num_workers=1,
        multiprocessing_context=FORK,
        persistent_workers=persistent,
    )
    seen = []
    for epoch in range(3):
        dataset.epoch = epoch
        [batch] = loader
        seen.append(batch[-1])
        print(
            f"{persistent!s:18}  {epoch:5}: {seen[-1][0]:18}  {seen[-1][1]:11}"
            f"  {dataset.made:13}"
        )
    assert dataset.made == 0, "no change made in a worker reaches the main process"
    if persistent:
        assert seen == [(0, 2), (0, 4), (0, 6)], "one copy, made in the first epoch"
    else:
        assert seen == [(0, 2), (1, 2), (2, 2)], "a fresh copy in each epoch"

# %%
# A worker is born with a copy of the dataset as it is at that moment. Without
# ``persistent_workers`` that happens in each epoch: a cache filled by the worker is
# lost, a new ``epoch`` arrives. With it, the cache lives and the news does not arrive.
# Only shared memory, such as the counter of the section on slow batches, is not copied.
#
# Which random numbers repeat
# ---------------------------
#
# Two workers draw two numbers each, in two epochs: eight draws from each source.


class Draws(Dataset):
    """Draws from the global generators, from one made early, and from one made late."""

    def __init__(self) -> None:
        self.early = np.random.default_rng(0)
        self.late = None

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> list[int]:
        if self.late is None:
            self.late = np.random.default_rng(get_worker_info().seed)
        return [
            random.randrange(10**9),
            int(np.random.randint(10**9)),
            int(torch.randint(10**9, ())),
            int(self.early.integers(10**9)),
            int(self.late.integers(10**9)),
        ]


torch.manual_seed(0)
loader = DataLoader(
    Draws(), collate_fn=as_is, num_workers=WORKERS, multiprocessing_context=FORK
)
draws = [sample for epoch in range(2) for [sample] in loader]
different = [len(set(column)) for column in zip(*draws, strict=True)]
names = (
    "random.randrange",
    "numpy.random.randint",
    "torch.randint",
    "default_rng made in __init__",
    "default_rng made in the worker",
)
for name, count in zip(names, different, strict=True):
    print(f"{name:31}{len(draws)} draws, {count} different")
assert different == [8, 8, 8, 2, 8], "only the generator that was copied repeats"

# %%
# A worker seeds the three global generators when it starts, from a base seed that the
# loader draws whenever it starts workers. It cannot know of a generator that lies
# inside the dataset: that is copied in its present state, to every new worker. Make it
# in the worker, from ``get_worker_info().seed``.
