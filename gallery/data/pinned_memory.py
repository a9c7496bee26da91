"""
Asynchronous copies, and what a CPU can show of them
====================================================

Claim: with ``pin_memory=True`` no worker pins a batch. A thread of the main process
does if there are workers, and the loop itself if there are none. Without an accelerator
the loader pins nothing and warns.

A model with chosen durations then draws what overlaps: in one stream a copy cannot hide
behind the kernels, in two it can. On CUDA the script measures both; elsewhere it says
what was not run.
"""

import contextlib
import os
import threading
import warnings
from statistics import median
from time import perf_counter
from unittest import mock

import matplotlib.pyplot as plt
import torch
from torch.utils.data import DataLoader

device = torch.accelerator.current_accelerator(check_available=True)
device = device or torch.device("cpu")
print(f"torch {torch.__version__} on {device}")
# Two workers are needed here, also where the machine has one CPU and torch warns of it.
warnings.filterwarnings("ignore", "This DataLoader will create 2 worker processes")
# From 3.12 on, Python warns of a fork when the process has threads; torch starts some.
warnings.filterwarnings("ignore", "This process .* is multi-threaded")

# %%
# The loader without an accelerator
# ---------------------------------
#
# It warns in each epoch, and the batches are ordinary tensors. A non-blocking copy from
# the CPU to the CPU is an ordinary copy, or none at all. Pinning by hand raises.

x = torch.arange(4.0)
if device.type == "cpu":
    loader = DataLoader(x, batch_size=2, pin_memory=True)
    with warnings.catch_warnings(record=True, action="always") as caught:
        pinned = [batch.is_pinned() for _ in range(2) for batch in loader]
    print(f"{len(caught)} warnings in 2 epochs:\n  {caught[0].message}")
    print("pinned:", pinned)
    assert len(caught) == 2, "one an epoch"
    assert not any(pinned), "and nothing else happens"

    same = x.to("cpu", non_blocking=True)
    other = x.to(torch.float64, non_blocking=True)
    print("same object:", same is x, " copy:", other.tolist())
    assert same is x and other.tolist() == x.tolist(), "the flag is ignored"

    try:
        x.pin_memory()
    except RuntimeError as error:
        print(f"{type(error).__name__}: {error}")
    else:
        raise AssertionError("there is nothing to pin memory for")

# %%
# Who pins
# --------
#
# The loader calls the method ``pin_memory`` of a batch that has one; the one below
# notes where it is called. On a CPU the loader would not get so far. So without CUDA,
# and only in this cell, four functions of ``torch.accelerator`` are replaced by mocks
# that make the loader believe in an accelerator. Its workers, queues and thread are
# real, and nothing is pinned.


class Note:
    """A batch that notes which process and thread pin it."""

    def __init__(self, samples):
        self.made_in = os.getpid()
        self.samples = samples

    def pin_memory(self):
        """Note the caller, and return the batch, as the loader expects."""
        self.pinned_in = os.getpid()
        self.thread = threading.current_thread()
        return self


def believe():
    """Return a context in which the loader believes in an accelerator."""
    if device.type == "cuda":
        return contextlib.nullcontext()
    print("Without CUDA, four functions of torch.accelerator are mocks here.")
    return mock.patch.multiple(
        torch.accelerator,
        is_available=lambda: True,
        current_accelerator=lambda: None,
        current_device_index=lambda: 0,
        set_device_index=lambda index: None,
    )


# fork hands classes of a notebook to the workers; Windows has none.
two = {"num_workers": 2, "multiprocessing_context": "fork"}
here = {os.getpid(): "main process"}
notes = {}
with believe():
    for workers, options in {0: {}, 2: two}.items():
        loader = DataLoader(range(4), 2, collate_fn=Note, pin_memory=True, **options)
        notes[workers] = next(iter(loader))

print("workers  made in        pinned in      thread")
seen = {}
for workers, note in notes.items():
    made, pinned = (here.get(p, "worker") for p in (note.made_in, note.pinned_in))
    main = note.thread is threading.main_thread()
    seen[workers] = made, pinned, "the loop's" if main else "its own"
    print(f"{workers:<9}{made:15}{pinned:15}{seen[workers][2]}")

assert seen[0] == ("main process", "main process", "the loop's")
assert seen[2] == ("worker", "main process", "its own"), "no worker pins"

# %%
# A model of three loops
# ----------------------
#
# The model has a host and a GPU that can copy and compute at once. A batch takes the
# host 4 ticks, its copy 2, the kernels 3; these numbers are chosen, not measured. From
# pageable memory the host waits for the copy. From pinned memory it goes on, but in one
# stream the copy waits for the kernels before it. In a second stream it does not.

LOAD, COPY, KERNEL = 4, 2, 3


def simulate(kind):
    """Return the bars (row, start, length) of three steps, and when all is done."""
    host = stream = copies = 0
    bars = []
    for _ in range(3):
        bars.append(("host", host, LOAD))
        host += LOAD
        queue = copies if kind == "second stream" else stream
        start = max(host, queue)
        bars.append(("copy", start, COPY))
        copies = start + COPY
        if kind == "pageable":
            host = copies
        start = max(copies, stream)
        bars.append(("kernels", start, KERNEL))
        stream = start + KERNEL
    return bars, stream


kinds = ("pageable", "pinned, non-blocking", "second stream")
figure, axes = plt.subplots(3, sharex=True, figsize=(5.5, 5), layout="constrained")
ends = {}
for axis, kind in zip(axes, kinds, strict=True):
    bars, ends[kind] = simulate(kind)
    for color, row in enumerate(("kernels", "copy", "host")):
        spans = [(start, length) for name, start, length in bars if name == row]
        edge = plt.rcParams["axes.facecolor"]
        axis.broken_barh(spans, (color - 0.4, 0.8), color=f"C{color}", edgecolor=edge)
    axis.set_yticks(range(3), ["kernels", "copy", "host"])
    axis.set_title(f"{kind}: done after {ends[kind]} ticks", fontsize="medium")
axes[-1].set_xlabel("ticks (chosen, not measured)")
figure.suptitle("What overlaps in three loops of three steps: a model")
plt.show()

print(ends)
assert list(ends.values()) == [21, 19, 17], "each loop hides more than the one before"

# %%
# Copies on CUDA
# --------------
#
# Two clocks for each copy of 64 MiB: until the call returns, and until the copy is
# done. Then a copy and a matrix product, alone, in one stream and in two, timed by
# events on the device.


def copy_times(source, non_blocking):
    """Return the milliseconds until the call returns and until the copy is done."""
    times = []
    for _ in range(10):
        torch.cuda.synchronize()
        start = perf_counter()
        target = source.to(device, non_blocking=non_blocking)
        returned = perf_counter()
        torch.cuda.synchronize()
        times.append((1e3 * (returned - start), 1e3 * (perf_counter() - start)))
        assert target[-1].item() == source[-1].item()
    return [median(column) for column in zip(*times, strict=True)]


def event_time(work):
    """Return the median of the milliseconds that the device needs for the work."""
    times = []
    for _ in range(10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return median(times)


if device.type == "cuda":
    pageable = torch.arange(2**24, dtype=torch.float32)
    pinned = pageable.pin_memory()
    assert pinned.is_pinned() and not pageable.is_pinned()
    rows = {}
    print("milliseconds          returned    done")
    for name, source in {"pageable": pageable, "pinned": pinned}.items():
        for flag in (False, True):
            rows[name, flag] = copy_times(source, flag)
            label = f"{name}{', non_blocking' if flag else ''}"
            print(f"{label:22}{rows[name, flag][0]:8.3f}{rows[name, flag][1]:8.3f}")
    returned, done = rows["pinned", True]
    assert returned < done / 2, "only here does the call return early for certain"

    matrix = torch.ones(4096, 4096, device=device)
    target = torch.empty_like(pinned, device=device)
    side = torch.cuda.Stream()

    def kernel():
        """Launch a matrix product in the current stream."""
        torch.mm(matrix, matrix)

    def copy():
        """Launch a copy in the current stream."""
        target.copy_(pinned, non_blocking=True)

    def one_stream():
        """Launch both in the current stream."""
        kernel()
        copy()

    def two_streams():
        """Launch the copy in a stream of its own."""
        current = torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            copy()
        kernel()
        current.wait_stream(side)

    both = {work.__name__: event_time(work) for work in (one_stream, two_streams)}
    alone = {work.__name__: event_time(work) for work in (kernel, copy)}
    for name, milliseconds in (alone | both).items():
        print(f"{name:22}{milliseconds:8.3f}")
    assert both["two_streams"] < both["one_stream"], "two streams overlap"
else:
    print(f"Ran on {device}. Not run here, for want of CUDA: pinning, the times of")
    print("copies from pageable and pinned memory, and their overlap with a kernel.")
