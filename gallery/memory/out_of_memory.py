"""
Which bytes does each memory fix remove?
========================================

A training step holds parameters, gradients, optimizer state and the activations that
autograd saves for backward. Each fix for "CUDA out of memory" shrinks one of the four,
so it helps only if that kind is alive when memory peaks. Here a plain step exceeds a
budget of 22 MiB, and four fixes bring it under that budget, each in its own way:
accumulation over two micro-batches, ``autocast``, checkpointing, and an optimizer
without state.

Measured: the live tensor storage after every operator, by kind, at the moment of the
peak; the work in floating-point operations; how far each fix moves the gradients. Then
the same step runs 1024 times larger on fake tensors, which allocate nothing.
"""

import weakref

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint_sequential
from torch.utils.flop_counter import FlopCounterMode

MiB, GiB = 2**20, 2**30
device = torch.accelerator.current_accelerator(check_available=True)
device = device or torch.device("cpu")
torch.set_num_threads(1)  # bytes do not depend on it, and small steps are quicker
print(f"torch {torch.__version__} on {device}")

# %%
# A ledger of live storage
# ------------------------
#
# A dispatch mode sees every operator, in forward, backward and the optimizer's step.
# The ledger notes the storage of each result: views and in-place results share one that
# it knows already. Weak keys drop a storage when torch frees it. An entry may get its
# kind later than its bytes, when autograd saves the tensor or it becomes a gradient;
# the snapshot of the peak shares the entries, so it is right in the end.
#
# What a kernel allocates and frees inside itself is not seen.


class Ledger(TorchDispatchMode):
    """Count live storage on a device by kind; raise if it grows past `limit` bytes."""

    def __init__(self, device: torch.device, limit: float = float("inf")) -> None:
        super().__init__()
        self.device, self.limit = device, limit
        self.live = weakref.WeakKeyDictionary()  # storage -> [bytes, kind]
        self.start, self.peak, self.at_peak = 0, 0, []

    def now(self) -> int:
        """Return the bytes alive."""
        return sum(size for size, _ in self.live.values())

    def add(self, tensor: torch.Tensor, kind: str) -> None:
        """Note a tensor's storage; a kind replaces only "temporary"."""
        if tensor.device.type == self.device.type:
            storage = tensor.untyped_storage()
            entry = self.live.setdefault(storage, [storage.nbytes(), kind])
            if entry[1] == "temporary":
                entry[1] = kind

    def save(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note what autograd saves; parameters, casts and the batch keep their kind."""
        self.add(tensor, "saved")
        return tensor

    def is_parameter(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor's storage is a parameter's."""
        return self.live.get(tensor.untyped_storage(), [0, ""])[1] == "parameters"

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = self.now()
        out = func(*args, **(kwargs or {}))
        cast = func is torch.ops.aten._to_copy.default and self.is_parameter(args[0])
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor, "casts" if cast else "temporary")
        if (now := self.now()) > self.peak:
            self.peak, self.at_peak = now, list(self.live.values())
        if now > max(before, self.limit):
            raise torch.OutOfMemoryError(
                f"{now / MiB:.2f} MiB live, the budget is {self.limit / MiB:.2f} MiB"
            )
        return out


# %%
# One step, four ways to change it
# --------------------------------
#
# Eight linear layers of width 256 with GELU between them, a batch of 1024: each
# activation is exactly 1 MiB. ``foreach=False`` keeps the optimizer's temporaries to
# one parameter at a time on every device; the default on CUDA needs about one more copy
# of all parameters.

LAYERS = 8


class Run:
    """A model with its optimizer and one batch, after a first step."""

    def __init__(
        self, width=256, batch=1024, parts=1, amp=False, segments=0, sgd=False
    ):
        torch.manual_seed(0)
        self.parts, self.amp, self.segments = parts, amp, segments
        with torch.device(device):
            blocks = [
                nn.Sequential(nn.Linear(width, width), nn.GELU())
                for _ in range(LAYERS - 1)
            ]
            self.model = nn.Sequential(*blocks, nn.Linear(width, width))
            self.x = torch.randn(batch, width)
            self.y = torch.randint(width, (batch,))
        kind = torch.optim.SGD if sgd else torch.optim.AdamW
        self.optimizer = kind(self.model.parameters(), lr=0.001, foreach=False)

    def step(self) -> None:
        """Train on the batch once, and leave the gradients in place."""
        self.optimizer.zero_grad()
        for x, y in zip(
            self.x.chunk(self.parts), self.y.chunk(self.parts), strict=True
        ):
            with torch.autocast(device.type, torch.bfloat16, enabled=self.amp):
                if self.segments:
                    out = checkpoint_sequential(
                        self.model, self.segments, x, use_reentrant=False
                    )
                else:
                    out = self.model(x)
                loss = F.cross_entropy(out, y) / self.parts
            loss.backward()
        self.optimizer.step()

    def state(self) -> list[torch.Tensor]:
        """Return the tensors of the optimizer's state."""
        return [
            value
            for entry in self.optimizer.state.values()
            for value in entry.values()
            if isinstance(value, torch.Tensor)
        ]

    def ledger(self, limit: float = float("inf")) -> Ledger:
        """Run one step with a ledger and return it."""
        self.optimizer.zero_grad()
        ledger = Ledger(device, limit)
        for kind, tensors in (
            ("parameters", self.model.parameters()),
            ("state", self.state()),
            ("batch", (self.x, self.y)),
        ):
            for tensor in tensors:
                ledger.add(tensor, kind)
        ledger.start = ledger.now()
        hooks = [
            p.register_post_accumulate_grad_hook(
                lambda p: ledger.add(p.grad, "gradients")
            )
            for p in self.model.parameters()
        ]
        try:
            with ledger, saved_tensors_hooks(ledger.save, lambda tensor: tensor):
                self.step()
        finally:
            for hook in hooks:
                hook.remove()
        return ledger


KINDS = ("parameters", "gradients", "state", "saved", "casts", "other")


def by_kind(ledger: Ledger) -> dict[str, int]:
    """Return the bytes of each kind at the peak; batch and temporaries are "other"."""
    kinds = dict.fromkeys(KINDS, 0)
    for size, kind in ledger.at_peak:
        kinds[kind if kind in kinds else "other"] += size
    return kinds


plain = Run()
plain.step()  # AdamW makes its state here
gradients = [p.grad for p in plain.model.parameters()]
ledger = plain.ledger()
kinds = by_kind(ledger)
gradient_bytes = sum(g.nbytes for g in gradients)
print(f"parameters       {kinds['parameters'] / MiB:6.3f} MiB")
print(f"gradients        {gradient_bytes / MiB:6.3f} MiB after backward")
print(f"optimizer state  {kinds['state'] / MiB:6.3f} MiB")
print(f"saved            {kinds['saved'] / MiB:6.3f} MiB at the peak")
print(f"peak             {ledger.peak / MiB:6.3f} MiB")

parameters = LAYERS * (256 * 256 + 256)
assert kinds["parameters"] == gradient_bytes == 4 * parameters
assert 0 <= kinds["state"] - 8 * parameters <= 4 * 2 * LAYERS, (
    "AdamW keeps two float32 numbers a parameter, and a step counter a tensor"
)
assert kinds["saved"] == 15 * MiB, (
    "seven GELU inputs, seven GELU outputs and the log-probabilities"
)
assert kinds["gradients"] == 0, "the peak comes before the first gradient"

# %%
# The four fixes
# --------------
#
# Two micro-batches, ``autocast`` and checkpointing (in four segments) each shrink the
# saved activations in another way; SGD shrinks state. Sharding and 8-bit state do so
# too, but need several processes or another package. Bytes are those alive at the
# peak, in MiB; *other* is the batch and temporaries. *Work* counts the operations of
# matrix products, with one forward pass of the plain step as 1. *Change* is the largest
# change of a gradient, relative to the largest gradient.

fixes = {
    "plain": {},
    "2 micro-batches": {"parts": 2},
    "autocast, bf16": {"amp": True},
    "checkpointing": {"segments": 4},
    "SGD": {"sgd": True},
}


def flops(function) -> int:
    """Count the floating-point operations of the matrix products in a call."""
    with FlopCounterMode(display=False) as counter:
        function()
    return counter.get_total_flops()


forward = flops(lambda: plain.model(plain.x))
reference = torch.cat([g.flatten() for g in gradients])
runs, table = {}, {}
for name, settings in fixes.items():
    run = runs[name] = Run(**settings)  # the same seed: the same weights and batch
    run.step()
    parts = [p.grad.flatten() for p in run.model.parameters()]
    assert all(part.dtype == torch.float32 for part in parts), f"{name}: not float32"
    change = (torch.cat(parts) - reference).abs().max() / reference.abs().max()
    ledger = run.ledger()
    table[name] = {
        **by_kind(ledger),
        "peak": ledger.peak,
        "work": flops(run.step) / forward,
        "change": change.item(),
    }

titles = ("params", "grads", "state", "saved", "casts", "other", "peak")
print(f"{'':15}" + "".join(f"{t:>7}" for t in titles) + f"{'work':>7}{'change':>9}")
for name, row in table.items():
    *sizes, work, change = row.values()
    print(
        f"{name:15}"
        + "".join(f"{size / MiB:7.2f}" for size in sizes)
        + f"{work:7.3f}{change:9.1e}"
    )

# %%
# Two micro-batches halve what is saved. But the gradients of the first are alive while
# the second runs forward, so 2 MiB of the saving are lost again.
#
# ``autocast`` saves bfloat16 where it computes in bfloat16, the batch too. The
# log-probabilities stay float32, and 0.88 MiB of weight casts come on top. Parameters
# and gradients are float32 as before.
#
# Checkpointing in four segments keeps the inputs of three, the first of which is the
# batch, and all that the last one saves. The three run forward a second time: three
# quarters of a forward pass more work.
#
# SGD without momentum has no state. It changes no gradient, but what it does with the
# gradient differs.

row = table["2 micro-batches"]
assert row["saved"] == table["plain"]["saved"] / 2
assert row["gradients"] == table["plain"]["parameters"], "kept from the first part"
assert 0 < row["change"] < 1e-6, "the same sum in another order"

row = table["autocast, bf16"]
assert row["saved"] == 8.5 * MiB, (
    "in half: 14 at the GELUs, the batch; whole: the log-probabilities"
)
assert row["casts"] == 7 / 8 * MiB, "one for each weight but the first layer's"
assert row["parameters"] == table["plain"]["parameters"], "float32"
assert 1e-4 < row["change"] < 5e-2, "bfloat16 has 8 significant bits"

row = table["checkpointing"]
assert row["saved"] == 6 * MiB, "two inputs; the last segment and the loss save four"
assert row["work"] - table["plain"]["work"] == 0.75, "three of four segments again"
assert row["change"] == 0 if device.type == "cpu" else row["change"] < 1e-6

row = table["SGD"]
assert row["state"] == 0
assert row["peak"] == table["plain"]["peak"] - table["plain"]["state"]
assert row["change"] == 0 if device.type == "cpu" else row["change"] < 1e-6

# %%
# The budget
# ----------
#
# The dashed line is the budget that the next block enforces.

BUDGET = 22 * MiB

figure, axes = plt.subplots(figsize=(5.5, 4.2), layout="constrained")
names = [f"{name}\n{row['peak'] / MiB:.1f} MiB" for name, row in table.items()]
left = [0.0] * len(table)
for number, kind in enumerate(KINDS):
    widths = [row[kind] / MiB for row in table.values()]
    axes.barh(names, widths, left=left, color=f"C{number}", label=kind)
    left = [a + b for a, b in zip(left, widths, strict=True)]
edge = plt.rcParams["axes.edgecolor"]
axes.axvline(BUDGET / MiB, color=edge, linestyle="--", label="budget, 22 MiB")
axes.set(xlabel="MiB alive at the peak", title="Live bytes at the peak, by kind")
axes.invert_yaxis()
figure.legend(loc="outside lower center", ncols=3)

# %%
# The same five steps, with a ledger that raises ``torch.OutOfMemoryError`` at the first
# operator after which more than the budget is alive. The plain step does not finish.

outcome = {}
for name, run in runs.items():
    try:
        outcome[name] = f"fits, peak {run.ledger(BUDGET).peak / MiB:.2f} MiB"
    except torch.OutOfMemoryError as error:
        outcome[name] = f"OutOfMemoryError: {error}"
for name, text in outcome.items():
    print(f"{name:15} {text}")

assert outcome["plain"].startswith("OutOfMemoryError"), "the plain step must not fit"
assert all(
    text.startswith("fits") for name, text in outcome.items() if name != "plain"
), "each fix must make the step fit"

# %%
# 1024 times larger, on fake tensors
# ----------------------------------
#
# A fake tensor has shape, dtype and device, and no data, so the count costs no memory.
# At the small size it agrees with the real run to the byte. Width and batch 32 times
# larger make every matrix and activation 1024 times larger: the table above, in GiB.

for name, settings in fixes.items():
    with FakeTensorMode():
        small = Run(**settings)
        small.step()
        large = Run(width=32 * 256, batch=32 * 1024, **settings)
        large.step()
        peak = large.ledger().peak
        assert small.ledger().peak == table[name]["peak"], f"{name}: fake is not real"
    print(f"{name:15} {peak / GiB:6.2f} GiB")
    assert abs(peak / GiB - table[name]["peak"] / MiB) < 0.05, "only biases scale less"

# %%
# Where three of the fixes do nothing
# -----------------------------------
#
# With a batch of 8, the activations are small and the peak moves into
# ``optimizer.step()``: parameters, gradients, state, and the temporaries of one update.
# What is saved for backward is gone by then, so shrinking it changes next to nothing.

for name, settings in fixes.items():
    run = Run(batch=8, **settings)
    run.step()
    ledger = run.ledger()
    kinds = by_kind(ledger)
    print(
        f"{name:15} peak {ledger.peak / MiB:5.2f} MiB, "
        f"of it saved {kinds['saved'] / MiB:4.2f}"
    )
    if name == "plain":
        first = ledger.peak
    elif name == "SGD":
        assert ledger.peak < first / 2, "without state less than half is left"
    else:
        assert kinds["saved"] == 0, f"{name}: nothing saved is alive at the peak"
        assert abs(ledger.peak - first) < first / 100, f"{name}: the peak moved"

# %%
# Beside the CUDA allocator
# -------------------------
#
# The allocator rounds each block up to 512 bytes and also serves scratch space of
# kernels and libraries, which no dispatch mode sees. Both columns give what the step
# adds to the memory in use before it.

if device.type == "cuda":
    print(f"{'MiB':15}{'counted':>9}{'allocator':>11}")
    for name, settings in fixes.items():
        run = Run(**settings)
        run.step()
        run.optimizer.zero_grad()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        ledger = run.ledger()
        grown = torch.cuda.max_memory_allocated() - before
        counted = ledger.peak - ledger.start
        print(f"{name:15}{counted / MiB:9.2f}{grown / MiB:11.2f}")
else:
    print(f"Ran on {device}: torch.cuda.max_memory_allocated() was not compared.")
