"""
Which fix makes the step fit?
=============================

A training step holds parameters, gradients, optimizer state and the activations that
autograd saves for backward. Each fix for "CUDA out of memory" shrinks one of these, so
it helps only if that kind of byte is alive when memory peaks. Here one step runs out of
memory under an enforced budget, twice: with a batch of 1024, where activations fill it,
and with a batch of 8, where the optimizer does. Of nine fixes, four make only the first
step fit, two only the second, three both.

Measured: live bytes by kind at the peak, the time of a step, and how far a fix moves
the gradients. The counted bytes are then compared with those of the allocator. When to
use which is told in the chapter 'Why "CUDA out of memory", and what helps?'.
"""

import os
import weakref
from time import perf_counter, process_time

os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # else the profiler writes to stderr

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.autograd.profiler import profile
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint_sequential

MiB = 2**20
device = torch.accelerator.current_accelerator(check_available=True)
device = device or torch.device("cpu")
torch.set_num_threads(1)  # bytes do not depend on it, and small steps are quicker
print(f"torch {torch.__version__} on {device}")

# %%
# A ledger of live storage
# ------------------------
#
# A dispatch mode sees every operator of forward, backward and the optimizer's step. The
# ledger notes the storage of each result. A view, or the result of an operator that
# works in place, shares a storage that it knows already. The keys are weak, so an entry
# goes when torch frees the storage. An entry may get its kind later than its bytes,
# when autograd saves the tensor or it becomes a gradient; the snapshot of the peak
# shares the entries, so it is right in the end.


def tensors_in(tree) -> list[torch.Tensor]:
    """Return the tensors in nested tuples, lists and dicts."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


class Ledger(TorchDispatchMode):
    """Counts the bytes alive on a device, by kind, and enforces a budget.

    Inside ``with Ledger(limit):``, the operator that allocates the first byte over
    ``limit`` raises `torch.OutOfMemoryError`; a peak equal to ``limit`` passes. What a
    kernel allocates and frees before it returns is not seen.

    ``limit`` is in bytes, for the tensors of ``device``. Without it, nothing is
    refused. A limit of zero or below raises `ValueError`.

    ``start`` holds the bytes alive when the block was entered, ``peak`` the most
    that were, and ``at_peak`` the entries ``[bytes, kind]`` of that moment.
    """

    def __init__(
        self, limit: float = float("inf"), device: torch.device = device
    ) -> None:
        super().__init__()
        if not limit > 0:
            raise ValueError(
                f"limit is {limit}; give bytes above 0, or leave it out for no limit"
            )
        self.limit, self.device = limit, device
        self.live = weakref.WeakKeyDictionary()  # storage -> [bytes, kind]
        self.start, self.peak, self.at_peak = 0, 0, []

    def now(self) -> int:
        """Return the bytes alive."""
        return sum(size for size, _ in self.live.values())

    def add(self, tensor: torch.Tensor, kind: str = "temporary") -> bool:
        """Note a tensor's storage, and tell whether that added bytes.

        A storage that is known keeps its kind, unless that was "temporary".
        """
        if tensor.device.type != self.device.type:
            return False
        storage = tensor.untyped_storage()
        size, known = self.live.get(storage, (0, "temporary"))
        kind = kind if known == "temporary" else known
        if storage.nbytes() != size:  # new, or resized in place
            self.live[storage] = [storage.nbytes(), kind]
        elif size:
            self.live[storage][1] = kind
        return storage.nbytes() > size

    def __enter__(self):
        self.start = self.now()
        return super().__enter__()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        for tensor in tensors_in((args, kwargs)):
            self.add(tensor)  # was there before, so no allocation
        result = operator(*args, **(kwargs or {}))
        allocated = [self.add(tensor) for tensor in tensors_in(result)]
        if (now := self.now()) > self.peak:
            self.peak, self.at_peak = now, list(self.live.values())
        if any(allocated) and now > self.limit:
            del result  # what is refused is not there, not even in a traceback
            raise torch.OutOfMemoryError(
                f"{now / MiB:.2f} MiB live, the budget is {self.limit / MiB:.2f} MiB"
            )
        return result


# %%
# One step, and ten ways to run it
# --------------------------------
#
# Eight linear layers of width 256 with GELU between them, a batch of 1024: each
# activation is exactly 1 MiB. ``foreach=False``, the default on the CPU, updates one
# parameter after the other.


class Run:
    """A model with its optimizer and one batch, before its first step.

    ``parts``: micro-batches to accumulate over. ``amp``: autocast to bfloat16.
    ``segments``: of checkpointing; 1 for none. ``packed``: keep what autograd saves in
    bfloat16. ``dtype``: of the model and the batch. ``early``: update each parameter
    during backward, as soon as its gradient is there. ``kind`` and ``options``: the
    optimizer's.
    """

    def __init__(
        self,
        width: int = 256,
        batch: int = 1024,
        *,
        parts: int = 1,
        amp: bool = False,
        segments: int = 1,
        packed: bool = False,
        dtype: torch.dtype = torch.float32,
        early: bool = False,
        kind: type[torch.optim.Optimizer] = torch.optim.AdamW,
        **options: bool,
    ) -> None:
        torch.manual_seed(0)
        self.parts, self.amp, self.segments = parts, amp, segments
        self.packed, self.early = packed, early
        with torch.device(device):
            layers = [nn.Linear(width, width) for _ in range(8)]
            blocks = [nn.Sequential(layer, nn.GELU()) for layer in layers[:-1]]
            self.model = nn.Sequential(*blocks, layers[-1]).to(dtype)
            self.x = torch.randn(batch, width).to(dtype)
            self.y = torch.randint(width, (batch,))
        self.parameters = list(self.model.parameters())
        self.fixed = {t.untyped_storage() for t in (*self.parameters, self.x, self.y)}
        groups = [[p] for p in self.parameters] if early else [self.parameters]
        options = {"lr": 0.001, "foreach": False, **options}
        self.optimizers = [kind(group, **options) for group in groups]
        self.ledger = self.noted = None
        for number, parameter in enumerate(self.parameters):
            optimizer = self.optimizers[number if early else 0]
            parameter.register_post_accumulate_grad_hook(self.arrived(optimizer))

    def arrived(self, optimizer: torch.optim.Optimizer):
        """Return what is called when a gradient is there."""

        def hook(parameter):
            if self.ledger:
                self.ledger.add(parameter.grad, "gradients")
            if self.noted is not None:
                self.noted[parameter] = parameter.grad
            if self.early:
                optimizer.step()
                optimizer.zero_grad()

        return hook

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what is kept of a tensor that autograd saves."""
        if self.packed and tensor.untyped_storage() not in self.fixed:
            tensor = tensor.to(torch.bfloat16)
        if self.ledger:
            self.ledger.add(tensor, "saved")
        return tensor

    def unpack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what was kept as backward needs it."""
        packed = self.packed and tensor.dtype == torch.bfloat16
        return tensor.float() if packed else tensor

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self.model.zero_grad()

    def step(self) -> None:
        """Train on the batch once; gradients stay, unless the update came early."""
        self.zero_grad()
        parts = self.x.chunk(self.parts), self.y.chunk(self.parts)
        for x, y in zip(*parts, strict=True):
            with (
                torch.autocast(device.type, torch.bfloat16, enabled=self.amp),
                saved_tensors_hooks(self.pack, self.unpack),
            ):
                out = checkpoint_sequential(
                    self.model, self.segments, x, use_reentrant=False
                )
                loss = F.cross_entropy(out, y) / self.parts
            loss.backward()
        if not self.early:
            self.optimizers[0].step()

    def count(self, limit: float = float("inf")) -> Ledger:
        """Run one step under a ledger of `limit` bytes, and return the ledger."""
        self.zero_grad()
        self.ledger = ledger = Ledger(limit)
        for kind, tree in (
            ("parameters", self.parameters),
            ("state", [optimizer.state for optimizer in self.optimizers]),
            ("batch", (self.x, self.y)),
        ):
            for tensor in tensors_in(tree):
                ledger.add(tensor, kind)
        try:
            with ledger:
                self.step()
        finally:
            self.ledger = None
        return ledger


FIXES = {
    "plain": {},
    "2 micro-batches": {"parts": 2},
    "autocast, bf16": {"amp": True},
    "checkpointing": {"segments": 4},
    "bf16 saved": {"packed": True},
    "bf16 model": {"dtype": torch.bfloat16},
    "SGD": {"kind": torch.optim.SGD},
    "Adafactor": {"kind": torch.optim.Adafactor},
    "step in backward": {"early": True},
    "fused AdamW": {"fused": True},
}

# %%
# A budget of 22 MiB
# ------------------
#
# The plain step needs 25. Each fix starts from the same weights and the same batch, and
# takes two steps. The first makes the optimizer's state and is compared with the plain
# one: *grad* says how long the difference of the gradients is, relative to the plain
# gradient. The second step runs under the ledger. *Time* is that of a step without one,
# with the plain step's as 1. It was measured where this page was built, and varies with
# machine and load: bfloat16 is slow on processors without instructions for it.

KINDS = ("parameters", "gradients", "state", "saved", "other")


def by_kind(ledger: Ledger) -> dict[str, int]:
    """Return the bytes of each kind at the peak; batch and temporaries are "other"."""
    kinds = dict.fromkeys(KINDS, 0)
    for size, kind in ledger.at_peak:
        kinds[kind if kind in kinds else "other"] += size
    return kinds


def flat(tensors) -> torch.Tensor:
    """Return the numbers of some tensors in one float32 vector."""
    return torch.cat([tensor.detach().flatten().float() for tensor in tensors])


def seconds(run: Run) -> float:
    """Return how long a step takes."""
    clock = process_time if device.type == "cpu" else perf_counter
    start = clock()
    run.step()
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return clock() - start


def first_step(run: Run) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Run the first step; return its time, gradient and change of the weights."""
    before, run.noted = flat(run.parameters), {}
    time = seconds(run)
    gradient = flat(run.noted[parameter] for parameter in run.parameters)
    run.noted = None
    return time, gradient, flat(run.parameters) - before


def attempt(batch: int, budget: float) -> dict[str, dict]:
    """Run each fix under a budget in bytes; return what was measured, by fix."""
    table, reference = {}, ()
    for name, settings in FIXES.items():
        run = Run(batch=batch, **settings)
        time, *first = first_step(run)
        reference = reference or first
        error = ""
        try:
            ledger = run.count(budget)
        except torch.OutOfMemoryError as raised:
            error = str(raised)  # not the exception itself: it would hold the graph
        if error:
            ledger = run.count()  # without a budget, to see how high the peak is
        row = {**by_kind(ledger), "peak": ledger.peak, "error": error}
        for key, new, plain in zip(
            ("gradient", "update"), first, reference, strict=True
        ):
            row[key] = ((new - plain).norm() / plain.norm()).item()
        if time < 0.3:  # else once is enough
            time = min(seconds(run) for _ in range(3))
        table[name] = row | {"time": time}
    return table


def show(table: dict[str, dict]) -> None:
    """Print the measurements, one line a fix."""
    print(f"{'':16}{'MiB':>6}{'':5}{'time':>5}{'grad':>6}")
    for name, row in table.items():
        time, change = row["time"] / table["plain"]["time"], row["gradient"]
        print(
            f"{name:16}{row['peak'] / MiB:6.2f} {'over' if row['error'] else 'fits'}"
            f"{time:5.1f}{'same' if change == 0 else f'{change:.0e}':>6}"
        )
    print(f"\nplain, OutOfMemoryError:\n{table['plain']['error']}")


large = attempt(batch=1024, budget=22 * MiB)
show(large)

LATE = ("step in backward", "fused AdamW")  # they save where this peak is not
assert [name for name, row in large.items() if row["error"]] == ["plain", *LATE]

# %%
# What is alive at the peak, and what crosses the line:


def chart(table: dict[str, dict], budget: float, title: str) -> None:
    """Draw the bytes at the peak by kind, one bar a fix, and the budget as a line."""
    figure, axes = plt.subplots(figsize=(4.5, 4.8), layout="constrained")
    names = [f"{name}  {row['peak'] / MiB:.1f}" for name, row in table.items()]
    left = [0.0] * len(table)
    for number, kind in enumerate(KINDS):
        widths = [row[kind] / MiB for row in table.values()]
        axes.barh(names, widths, left=left, color=f"C{number}", label=kind)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    edge = plt.rcParams["axes.edgecolor"]
    axes.axvline(budget / MiB, color=edge, linestyle="--", label="budget")
    axes.set(xlabel="MiB alive at the peak")
    axes.invert_yaxis()
    figure.suptitle(title)
    figure.legend(loc="outside lower center", ncols=3)


chart(large, 22 * MiB, "Batch of 1024: past the line, out of memory")

# %%
# Seven of nine fit.
#
# **2 micro-batches** halve what is saved. But the gradients of the first are alive
# while the second runs, so 2 MiB of the saving are lost again.
#
# **autocast** saves bfloat16 where it computes in bfloat16: the activations, and copies
# of the batch and the weights. The log-probabilities stay float32, and so do parameters
# and gradients.
#
# **Checkpointing** in four segments keeps the inputs of three, the first of which is
# the batch, and all that the last one saves. The three run forward a second time: more
# time, the same gradients.
#
# **bf16 saved** computes in float32. A pair of hooks turns what autograd saves into
# bfloat16, and back when backward asks for it. Half of the 15 MiB is gone, but the
# tensor that backward works on is there twice, once in each type.
#
# **A bf16 model** halves everything: parameters, gradients, state, what is saved.
#
# **SGD** without momentum has no state, **Adafactor** next to none. They change no
# gradient, but what is done with it.
#
# A **step in backward** and the **fused** kernel save where the optimizer works, and
# this peak comes before.

plain = large["plain"]
assert plain["saved"] == 15 * MiB, (
    "seven GELU inputs, seven GELU outputs and the log-probabilities"
)
assert plain["gradients"] == 0, "the peak comes before the first gradient"

row = large["2 micro-batches"]
assert row["saved"] == plain["saved"] / 2
assert row["gradients"] == plain["parameters"], "kept from the first part"
assert 0 < row["gradient"] < 1e-5, "the same sum in another order"

row = large["autocast, bf16"]
assert row["saved"] == (8.5 + 7 / 8) * MiB, (
    "in half: 14 at the GELUs, the batch, the weights but the first layer's;"
    " whole: the log-probabilities"
)
assert row["parameters"] == plain["parameters"], "float32"
assert 1e-4 < row["gradient"] < 0.1, "bfloat16 has 8 significant bits"

row = large["checkpointing"]
assert row["saved"] == 6 * MiB, "two inputs; the last segment and the loss save four"

row = large["bf16 saved"]
assert row["saved"] == plain["saved"] / 2
assert row["other"] == plain["other"] + MiB, "the log-probabilities, in float32 again"
assert 1e-4 < row["gradient"] < 0.1

row = large["bf16 model"]
assert row["peak"] < 0.501 * plain["peak"], "but the targets, which are integers"
assert 1e-4 < row["gradient"] < 0.1

row = large["SGD"]
assert row["state"] == 0
assert row["peak"] == plain["peak"] - plain["state"]
assert large["Adafactor"]["state"] < plain["state"] / 100

same = 0 if device.type == "cpu" else 0.01  # CUDA may add in another order
for name in ("checkpointing", "SGD", "Adafactor", *LATE):
    assert large[name]["gradient"] <= same, f"{name}: another gradient"
for name in ("checkpointing", "step in backward"):
    assert large[name]["update"] <= same, f"{name}: another update"
assert large["fused AdamW"]["update"] < 1e-5, "the same rule"
assert min(large["SGD"]["update"], large["Adafactor"]["update"]) > 0.5, "another rule"

# %%
# Another peak, other fixes
# -------------------------
#
# With a batch of 8 the activations are small, and memory peaks in the update:
# parameters, gradients, state, and the temporaries of one parameter. Nothing that
# autograd saved is alive then, so four of the seven change next to nothing. The two
# that did nothing above bring the step under 8.25 MiB: the first frees each gradient as
# soon as it is used, the second needs no temporaries.

small = attempt(batch=8, budget=8.25 * MiB)
show(small)
chart(small, 8.25 * MiB, "Batch of 8: past the line, out of memory")

EARLY = ("2 micro-batches", "autocast, bf16", "checkpointing", "bf16 saved")
assert [name for name, row in small.items() if row["error"]] == ["plain", *EARLY]
first = small["plain"]["peak"]
for name in EARLY:
    assert small[name]["saved"] == 0, f"{name}: nothing saved is alive at the peak"
    assert abs(small[name]["peak"] - first) < first / 100, f"{name}: the peak moved"
assert small["step in backward"]["gradients"] < small["plain"]["gradients"] / 3
assert small["SGD"]["peak"] < first / 2, "without state less than half is left"
both = [name for name in FIXES if not large[name]["error"] + small[name]["error"]]
assert both == ["bf16 model", "SGD", "Adafactor"]

# %%
# Beside the allocator
# --------------------
#
# The ledger looks at tensors. The allocator is asked for memory by whoever needs some,
# kernels included, and keeps a record: on the CPU in the profiler, on CUDA in a memory
# snapshot. Here is the peak of its record of a step beside the count, in bytes.


def allocations(function) -> list[int]:
    """Return the bytes of each allocation in a call, those of a free as negative."""
    if device.type == "cuda":
        record = torch.cuda.memory._record_memory_history
        record(context=None, clear_history=True)
        function()
        snapshot = torch.cuda.memory._snapshot()
        record(enabled=None)
        signs = {"alloc": 1, "free_requested": -1}
        trace = snapshot["device_traces"][torch.cuda.current_device()]
        return [signs[e["action"]] * e["size"] for e in trace if e["action"] in signs]
    with profile(profile_memory=True) as profiler:
        function()
    events = profiler.kineto_results.events()
    return [event.nbytes() for event in events if event.name() == "[memory]"]


print(f"{'bytes':16}{'counted':>10}{'allocator':>11}")
random = 3 * torch.get_rng_state().nbytes
for name, settings in FIXES.items():
    if name in ("autocast, bf16", "bf16 model"):
        continue
    run = Run(**settings)
    run.step()
    ledger = run.count()
    run.zero_grad()
    level = peak = ledger.start
    for size in allocations(run.step):
        level += size
        peak = max(peak, level)
    apart = peak - ledger.peak
    print(f"{name:16}{ledger.peak:10}{peak:11}")
    if device.type == "cpu":
        assert apart == (random if name == "checkpointing" else 0)

# %%
# On the CPU the two agree to the byte where the step computes in float32. For
# checkpointing they differ by three copies of the random generator's state, one for
# each segment that runs again; they are made without an operator. The two that compute
# in bfloat16 are left out: their kernels may take scratch space while they run, more or
# less by processor.
#
# The same budget, enforced by the CUDA allocator
# -----------------------------------------------
#
# On CUDA ``memory_stats()`` tells three sizes apart. *Requested* is what was asked for,
# *allocated* is that with each block rounded up to 512 bytes, and *reserved* the
# segments that the blocks lie in. ``set_per_process_memory_fraction`` limits what is
# reserved. For requests below 10 MiB that is segments of 2 or 20 MiB, too coarse for a
# budget of 22, so the step is 64 times larger here: width and batch eight times. What
# is reserved may have gaps between tensors, so a fix that fits by the count can still
# fail; only the failure of the plain step is certain.


def under_the_allocator(settings: dict) -> tuple[list[int], str]:
    """Return how far a step counts up from its start, four ways, and its outcome."""
    memory = torch.cuda.memory
    card = torch.cuda.get_device_properties(device).total_memory
    keys = ("requested_bytes", "allocated_bytes", "reserved_bytes")
    memory.empty_cache()
    others = memory.memory_reserved()
    run = Run(width=8 * 256, batch=8 * 1024, **settings)
    run.step()
    ledger = run.count()
    run.zero_grad()
    memory.empty_cache()
    before = memory.memory_stats()
    memory.reset_peak_memory_stats()
    run.step()
    after = memory.memory_stats()
    grown = [after[f"{key}.all.peak"] - before[f"{key}.all.current"] for key in keys]
    run.zero_grad()
    memory.empty_cache()
    memory.set_per_process_memory_fraction((others + 64 * 22 * MiB) / card)
    try:
        run.step()
        outcome = "fits"
    except torch.OutOfMemoryError as error:
        outcome = str(error).partition(" GPU")[0]
    memory.set_per_process_memory_fraction(1.0)
    return [ledger.peak - ledger.start, *grown], outcome


if device.type == "cuda":
    print(f"{'MiB':16}{'count':>7}{'request':>8}{'alloc':>7}{'reserve':>8}")
    outcomes = {}
    for name, settings in FIXES.items():
        sizes, outcomes[name] = under_the_allocator(settings)
        a, b, c, d = (size / MiB for size in sizes)
        print(f"{name:16}{a:7.0f}{b:8.0f}{c:7.0f}{d:8.0f}\n  {outcomes[name]}")
    assert outcomes["plain"] != "fits"
else:
    print(f"Ran on {device}: no CUDA allocator to ask.")
