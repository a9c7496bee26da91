"""
How many workers keep a training loop busy?
===========================================

Claim: an epoch is paced by the slower of two sides, the training step or the loading
of a batch divided by the number of workers. So workers help up to ``load / step`` of
them, and no further; if loading computes, not further than the CPUs either.
``prefetch_factor`` bridges one slow batch and cannot change the average, and
``persistent_workers`` pays the start of the workers once instead of in every epoch.

Each sample brings home the times between which a worker made it, and the loop notes
its own. The training step is a sleep, as the CPU sees a step that runs on a GPU. A busy
machine lengthens any time, so the asserts are about what no machine can undercut, and
about what ran at the same time.
"""

import os
import sys
import time
import warnings
from itertools import combinations

import matplotlib.pyplot as plt
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

# fork starts a worker as a copy of this process, so that classes defined in a
# notebook, or in a script without a __main__ guard, reach it. Windows has no fork:
# there, put the classes in a module, guard the script and use spawn.
FORK = torch.multiprocessing.get_context("fork")
# From 3.12 on, Python warns of a fork when the process has threads; torch starts some.
warnings.filterwarnings("ignore", "This process .* is multi-threaded")
# Four workers are needed here, also where there are fewer CPUs and torch warns of it.
warnings.filterwarnings("ignore", "This DataLoader will create . worker processes")

CPUS = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
print(f"torch {torch.__version__}, {CPUS} CPUs; times in milliseconds")


def worker_id() -> int:
    """Return the number of the worker that calls, -1 in the main process."""
    info = get_worker_info()
    return -1 if info is None else info.id


def as_is(samples: list) -> list:
    """Collate a batch by leaving it a list."""
    return samples


def wait(seconds: float) -> None:
    """Pass the time as a disk or a network does: without a CPU."""
    time.sleep(seconds)


def compute(seconds: float) -> None:
    """Use a CPU for so many seconds of its time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Timed(Dataset):
    """Samples that tell their number, who made them, and from when to when."""

    def __init__(self, loads: list[float], spend=wait) -> None:
        self.loads = loads
        self.spend = spend

    def __len__(self) -> int:
        return len(self.loads)

    def __getitem__(self, index: int) -> tuple[int, int, float, float]:
        start = time.monotonic()
        self.spend(self.loads[index])
        return index, worker_id(), start, time.monotonic()


def train(loader: DataLoader, step: float) -> dict[str, list]:
    """Run one epoch; return all its intervals, counted from the call of iter()."""
    begin = time.monotonic()
    made, waits, steps = [], [], []
    iterator = iter(loader)
    while True:
        asked = time.monotonic() if steps else begin
        batch = next(iterator, None)
        got = time.monotonic()
        if batch is None:
            break
        [(index, worker, start, end)] = batch
        made.append((index, worker, start - begin, end - begin))
        waits.append(got - asked)
        time.sleep(step)
        steps.append((got - begin, time.monotonic() - begin))
    return {"made": made, "waits": waits, "steps": steps, "total": steps[-1][1]}


def overlap(some: list, others: list) -> float:
    """Return how long intervals of one list coincide with intervals of the other."""
    return sum(
        max(0.0, min(end, other_end) - max(start, other_start))
        for start, end in some
        for other_start, other_end in others
    )


def draw(ax, run: dict[str, list], num_workers: int, mark: int = -1) -> None:
    """Draw one row for the training loop and one for each worker; mark one batch."""
    for index, worker, start, end in run["made"]:
        ax.barh(
            worker + 1,
            end - start,
            left=start,
            color="C3" if index == mark else "C1",
            alpha=(1.0, 0.6)[index // max(num_workers, 1) % 2],
            height=0.8,
        )
    for start, end in run["steps"]:
        ax.barh(0, end - start, left=start, color="C0", height=0.8)
    ax.set_yticks(range(num_workers + 1))
    ax.set_yticklabels(["loop", *(f"w{worker}" for worker in range(num_workers))])
    ax.invert_yaxis()


# %%
# A model in ten lines
# --------------------
#
# Batch ``i`` belongs to worker ``i % workers``. The worker starts it when the batch
# has been dealt and the batch before is finished; it is dealt as soon as the loop has
# taken the batch that is one window, ``workers * prefetch`` batches, older.


def predicted(
    workers: int, loads: list[float], step: float, prefetch: int = 2
) -> float:
    """Return how long an epoch takes if nothing but loads and steps takes time."""
    if workers == 0:
        return sum(loads) + step * len(loads)
    done = [0.0] * workers
    taken, now = [], 0.0
    for i, load in enumerate(loads):
        dealt = taken[i - workers * prefetch] if i >= workers * prefetch else 0.0
        done[i % workers] = max(done[i % workers], dealt) + load
        now = max(now, done[i % workers])
        taken.append(now)
        now += step
    return now


# %%
# Loading that waits, loading that computes
# -----------------------------------------
#
# Loading a batch takes 45 ms, the step 20 ms: two workers are too few, three would do.
# On the left loading waits, as for a disk; on the right it keeps a CPU busy.
#
# The sampler is a list that the script changes. A first epoch, of one batch for each
# worker, only starts the workers; ``persistent_workers`` keeps them for the second.

LOAD, STEP, BATCHES = 0.045, 0.020, 8
loads = [LOAD] * BATCHES
fig, axes = plt.subplots(
    4, 2, figsize=(5.5, 6), sharex=True, height_ratios=[2, 2, 3, 5]
)
print("loading   num_workers  predicted  measured")
for column, spend in enumerate((wait, compute)):
    for row, num_workers in enumerate((0, 1, 2, 4)):
        order = list(range(num_workers))
        loader = DataLoader(
            Timed(loads, spend),
            sampler=order,
            collate_fn=as_is,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            multiprocessing_context=FORK if num_workers else None,
        )
        warm_up = list(loader)
        order[:] = range(BATCHES)
        run = train(loader, STEP)
        model = predicted(num_workers, loads, STEP)
        draw(axes[row, column], run, num_workers)
        print(
            f"{spend.__name__:8}{num_workers:13}{1000 * model:11.0f}"
            f"{1000 * run['total']:10.0f}"
        )
        loading = [(start, end) for _, _, start, end in run["made"]]
        hidden = overlap(loading, run["steps"])
        at_once = sum(
            overlap([one], [other]) for one, other in combinations(loading, 2)
        )
        assert (hidden > 0) == (num_workers > 0), (
            "one worker loads while the loop steps"
        )
        assert (at_once > 0) == (num_workers > 1), "two of them load at the same time"
        assert run["total"] > 0.98 * model, "no epoch beats the model"
        if spend is compute:
            bound = LOAD * BATCHES / min(max(num_workers, 1), CPUS)
            assert run["total"] > 0.98 * bound, "CPUs bound what workers can do"
axes[0, 0].set_title("loading waits", fontsize="medium")
axes[0, 1].set_title("loading computes", fontsize="medium")
for ax in axes[-1]:
    ax.set_xlabel("seconds since iter()")
    ax.set_xlim(left=0)
fig.suptitle("One epoch with 0, 1, 2 and 4 workers")
fig.tight_layout()
plt.show()

none, one, two, three, four = (predicted(n, loads, STEP) for n in range(5))
assert none > one > two > three == four, "three workers help, and the fourth has no use"

# %%
# Orange is loading, in two shades to tell the batches apart; blue is the step.
# Without workers the loop loads and steps in turn. One worker loads while the loop
# steps, which hides the shorter of the two. Two halve the loading. With four, the row
# of the loop has hardly a gap: now the step is the limit, and the workers wait for it.
#
# Where loading computes, a worker needs a CPU. With fewer CPUs than workers the bars
# grow longer instead of overlapping, and the model, which knows no CPUs, promises too
# much.
#
# What prefetch_factor buys
# -------------------------
#
# Two workers that load a batch in 10 ms are faster than a loop that needs 15 ms for
# each. One batch in the middle takes 150 ms.

STEP, BATCHES, SLOW = 0.015, 20, 12
loads = [0.010] * BATCHES
loads[SLOW] = 0.150
fig, axes = plt.subplots(3, 1, figsize=(5.5, 5), sharex=True)
runs = []
print("prefetch_factor  in_order  longest wait  place of the slow batch")
for ax, (prefetch, in_order) in zip(
    axes, ((1, True), (8, True), (1, False)), strict=True
):
    loader = DataLoader(
        Timed(loads),
        collate_fn=as_is,
        num_workers=2,
        prefetch_factor=prefetch,
        in_order=in_order,
        multiprocessing_context=FORK,
    )
    run = train(loader, STEP)
    order = [index for index, *_ in run["made"]]
    longest = max(run["waits"][1:])  # the first also waits for the workers to start
    runs.append((run, order))
    draw(ax, run, 2, mark=SLOW)
    ax.set_title(f"prefetch_factor={prefetch}, in_order={in_order}", fontsize="medium")
    print(
        f"{prefetch:15}  {in_order!s:8}  {1000 * longest:12.0f}  {order.index(SLOW):23}"
    )
axes[-1].set_xlabel("seconds since iter()")
fig.suptitle("One slow batch: who waits for it?")
fig.tight_layout()
plt.show()

(shallow, first), (deep, second), (_, third) = runs
assert first == second == list(range(BATCHES)), "by default the order is kept"
assert sorted(third) == first, "without it, every batch comes once"
_, asked = shallow["steps"][SLOW - 3]  # then the loop asks for batch SLOW - 2
_, _, start, _ = shallow["made"][SLOW]
assert start > asked, "a window of two deals the slow batch no sooner"
short, long = (predicted(2, loads, STEP, prefetch) for prefetch in (1, 8))
assert long < short, "a deep window bridges more of the slow batch"
assert shallow["total"] > 0.98 * short, "no epoch beats the model"
assert deep["total"] > 0.98 * long, "nor here"

# %%
# The slow batch is red. With a small window the other worker soon has nothing left to
# do: its batches are done and wait for the slow one, whose turn it is. A deep window
# has let both work ahead, and the loop lives on the batches that were ready.
# ``in_order=False`` takes the other worker's batches at once, and the slow one comes
# late; then the order depends on who was slow.
#
# What a start costs
# ------------------
#
# Here each worker needs 120 ms before its first sample, in ``worker_init_fn``: opening
# an archive, say, or what ``spawn`` takes to import torch. Three epochs of 8 batches.

STARTS = FORK.Value("i", 0)  # shared memory: the workers count in it


def start_up(worker: int) -> None:
    """Count this start, and let it take its time."""
    with STARTS.get_lock():
        STARTS.value += 1
    time.sleep(0.120)


fig, axes = plt.subplots(2, 1, figsize=(5.5, 3.8), sharex=True)
print("persistent_workers  starts  time to the first batch, by epoch")
first_waits = {}
for ax, persistent in zip(axes, (False, True), strict=True):
    STARTS.value = 0
    loader = DataLoader(
        Timed([0.020] * 8),
        collate_fn=as_is,
        num_workers=2,
        persistent_workers=persistent,
        worker_init_fn=start_up,
        multiprocessing_context=FORK,
    )
    zero = time.monotonic()
    first_waits[persistent] = []
    for _ in range(3):
        shift = time.monotonic() - zero
        run = train(loader, STEP)
        first_waits[persistent].append(run["waits"][0])
        run["made"] = [(i, w, s + shift, e + shift) for i, w, s, e in run["made"]]
        run["steps"] = [(s + shift, e + shift) for s, e in run["steps"]]
        draw(ax, run, 2)
    ax.set_ylim(2.5, -0.5)
    ax.set_title(f"persistent_workers={persistent}", fontsize="medium")
    times = "  ".join(f"{1000 * seconds:4.0f}" for seconds in first_waits[persistent])
    print(f"{persistent!s:18}  {STARTS.value:6}  {times}")
    assert STARTS.value == (2 if persistent else 6), "starts: two a loader or an epoch"
axes[-1].set_xlabel("seconds since the first iter()")
axes[-1].set_xlim(left=0)
fig.suptitle("Three epochs: the gaps are workers that start")
fig.tight_layout()
plt.show()

assert min(first_waits[False]) > 0.120, "every epoch begins with a start"
assert first_waits[True][0] > 0.120, "with workers that persist, the first one does"

# %%
# The gap does not depend on how long the epoch is: short epochs, and a validation loop
# after each of them, feel it most.
