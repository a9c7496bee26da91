"""
What does mixed precision shrink, and what does it stall?
=========================================================

Three ways to run the same training step: float32, ``autocast`` to bfloat16, and a model
that is bfloat16 throughout. The first half counts bytes. ``autocast`` keeps parameters,
gradients and optimizer state in float32, halves most of what backward needs, and adds a
16-bit copy of almost every weight; so below a certain number of rows it holds more than
float32, and that number grows with the width of the layers. Full bfloat16 halves
everything.

The second half trains a linear layer. In full bfloat16 its weights stop moving while
the gradients are far from zero; float32 master weights, Kahan summation and stochastic
rounding each mend that, at 4, 2 and 0 bytes a weight.
"""

import weakref

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MiB = 2**20
device = torch.accelerator.current_accelerator(check_available=True)
device = device or torch.device("cpu")
torch.set_num_threads(1)  # bytes do not depend on it, and small steps are quicker
print(f"torch {torch.__version__} on {device}")

# %%
# One step in three precisions
# ----------------------------
#
# Eight linear layers with GELU between them, cross-entropy and AdamW. ``autocast``
# covers the forward pass and the loss; full bfloat16 casts the model and the batch.

LAYERS = 8
PRECISIONS = ("float32", "autocast", "bfloat16")


class Step:
    """A model with optimizer and batch, after a first step that made the state."""

    def __init__(self, precision, rows, width=256):
        torch.manual_seed(0)
        self.amp = precision == "autocast"
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        with torch.device(device):
            blocks = [
                nn.Sequential(nn.Linear(width, width), nn.GELU())
                for _ in range(LAYERS - 1)
            ]
            self.model = nn.Sequential(*blocks, nn.Linear(width, width)).to(dtype)
            self.x = torch.randn(rows, width, dtype=dtype)
            self.y = torch.randint(width, (rows,))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=False)
        self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def loss(self):
        """Run forward and loss."""
        with torch.autocast(device.type, torch.bfloat16, enabled=self.amp):
            return F.cross_entropy(self.model(self.x), self.y)

    def tensors(self):
        """Return what is there before the step, by kind."""
        return {
            "parameters": list(self.model.parameters()),
            "state": [
                value
                for entry in self.optimizer.state.values()
                for value in entry.values()
            ],
            "batch": [self.x, self.y],
        }


# %%
# A dispatch mode sees every operator and notes the storage of its results, as in the
# script on memory. A cast of a parameter's storage is counted as a cast. What autograd
# saves and what becomes a gradient is told by hooks.


class Ledger(TorchDispatchMode):
    """Count live storage by kind, and remember its highest point."""

    def __init__(self, step):
        super().__init__()
        self.live = weakref.WeakKeyDictionary()  # storage -> [bytes, kind]
        self.peak, self.at_peak = 0, []
        for kind, tensors in step.tensors().items():
            for tensor in tensors:
                self.add(tensor, kind)

    def add(self, tensor, kind):
        """Note a tensor's storage; a kind replaces only "temporary"."""
        if tensor.device.type == device.type:
            storage = tensor.untyped_storage()
            entry = self.live.setdefault(storage, [storage.nbytes(), kind])
            if entry[1] == "temporary":
                entry[1] = kind

    def save(self, tensor):
        """Note what autograd saves."""
        self.add(tensor, "saved")
        return tensor

    def kinds(self, entries=None):
        """Return bytes by kind, of what is alive or of the given entries."""
        sums = {}
        for size, kind in entries or self.live.values():
            sums[kind] = sums.get(kind, 0) + size
        return sums

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        kind = "temporary"
        if func is torch.ops.aten._to_copy.default:
            source = self.live.get(args[0].untyped_storage(), [0, ""])
            kind = "casts" if source[1] == "parameters" else kind
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.add(tensor, kind)
        now = sum(size for size, _ in self.live.values())
        if now > self.peak:
            self.peak, self.at_peak = now, list(self.live.values())
        return out


def measure(precision, rows, width=256):
    """Return the bytes before backward and at the peak, and the gradients."""
    step = Step(precision, rows, width)
    ledger = Ledger(step)
    for p in step.model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: ledger.add(p.grad, "gradients"))
    with ledger, saved_tensors_hooks(ledger.save, lambda tensor: tensor):
        loss = step.loss()
        kept = ledger.kinds()
        loss.backward()
    return kept, ledger.kinds(ledger.at_peak), list(step.model.parameters())


# %%
# What each kind weighs
# ---------------------
#
# The peak of forward and backward, with 1024 rows and with 16.

peaks = {}
columns = ("parameters", "gradients", "state", "saved", "casts", "other")
titles = ("params", "grads", "state", "saved", "casts", "other", "peak")
print(f"{'MiB':17}" + "".join(f"{title:>7}" for title in titles))
for rows in (1024, 16):
    for precision in PRECISIONS:
        kept, kinds, parameters = measure(precision, rows)
        kinds["other"] = kinds.pop("temporary", 0) + kinds.pop("batch")
        peaks[rows, precision] = kinds
        print(
            f"{precision:10}{rows:5}  "
            + "".join(f"{kinds.get(name, 0) / MiB:7.2f}" for name in columns)
            + f"{sum(kinds.values()) / MiB:7.2f}"
        )
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        assert {p.dtype for p in parameters} == {dtype}
        assert {p.grad.dtype for p in parameters} == {dtype}, f"{precision}: gradients"

plain, amp, pure = (peaks[1024, precision] for precision in PRECISIONS)
for kind in ("parameters", "state"):
    assert amp[kind] == plain[kind], f"autocast leaves {kind} alone"
    assert pure[kind] - 4 * 2 * LAYERS <= plain[kind] / 2, f"bfloat16 halves {kind}"
assert plain["saved"] == 15 * MiB, "inputs and outputs of GELU, and log-probabilities"
assert pure["saved"] == plain["saved"] / 2
assert plain["saved"] / 2 < amp["saved"] < plain["saved"]
assert amp["casts"] == 7 / 8 * MiB, "each weight's but the first layer's"
assert sum(peaks[16, "autocast"].values()) > sum(peaks[16, "float32"].values())

# %%
# With 16 rows ``autocast`` peaks higher than float32: what it saves is small, and late
# in backward a bfloat16 gradient is alive beside its float32 copy.

figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
bars = [f"{precision}, {rows}" for rows, precision in peaks]
left = [0.0] * len(bars)
for number, kind in enumerate(columns):
    widths = [kinds.get(kind, 0) / MiB for kinds in peaks.values()]
    axes.barh(bars, widths, left=left, color=f"C{number}", label=kind)
    left = [a + b for a, b in zip(left, widths, strict=True)]
axes.set(xlabel="MiB at the peak", title="Bytes at the peak, by precision and rows")
axes.invert_yaxis()
figure.legend(loc="outside lower center", ncols=3)

# %%
# Where autocast costs more than it saves
# ---------------------------------------
#
# What is kept for backward tells it most clearly, since both parts are known. For each
# row float32 keeps 15 vectors of ``width`` float32 numbers. ``autocast`` keeps 14 of
# them and the batch in bfloat16, and the log-probabilities in float32: 8.5 vectors'
# worth. The casts cost the same for any number of rows: 2 bytes for each weight of
# seven layers. So the lines cross at
#
# .. math:: rows = \frac{7 \cdot 2\, width^2}{(15 - 8.5) \cdot 4\, width}
#           = \frac{7}{13}\, width
#
# A wider model needs more rows before ``autocast`` pays; tokens count as rows.


def kept_for_backward(precision, rows, width=256):
    """Return the bytes of saved tensors and casts after the forward pass."""
    kept, _, _ = measure(precision, rows, width)
    return kept.get("saved", 0) + kept.get("casts", 0)


crossings = {}
for width in (128, 256, 512):
    few, many = (
        kept_for_backward("autocast", rows, width)
        - kept_for_backward("float32", rows, width)
        for rows in (32, 64)
    )
    crossings[width] = 32 + 32 * few / (few - many)  # where the difference is zero
    print(f"width {width:3}: the lines cross at {crossings[width]:5.1f} rows")
    assert abs(crossings[width] - 7 / 13 * width) < 1, "7/13 of the width"

rows = [16, 64, 128, 192, 256, 384]
lines = {
    precision: [kept_for_backward(precision, n) / MiB for n in rows]
    for precision in PRECISIONS
}
assert lines["autocast"][1] > lines["float32"][1], "64 rows: autocast keeps more"
assert lines["autocast"][3] < lines["float32"][3], "192 rows: it keeps less"

figure, axes = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
for precision, line in lines.items():
    axes.plot(rows, line, marker="o", markersize=3, label=precision)
edge = plt.rcParams["axes.edgecolor"]
axes.axvline(crossings[256], color=edge, linestyle="--", linewidth=1)
axes.set(
    xlabel="rows in the batch (width 256)",
    ylabel="MiB kept for backward",
    title="autocast pays above 7/13 of the width",
)
axes.legend()

# %%
# Weights that stop moving
# ------------------------
#
# A linear layer with 64 inputs learns an exactly linear target by gradient descent, in
# steps of 1/32 of the gradient. The bfloat16 layer computes the same bfloat16 gradient
# in all four of its rows below; what differs is how the update enters the weight.
# ``float32`` and ``autocast`` are there to compare.


def plain_update(p, update, state):
    """Add in bfloat16; what does not fit is lost."""
    p += update


def master_update(p, update, state):
    """Add to a float32 copy, and round the result into the weight."""
    master = state.setdefault("master", p.float())
    master += update
    p.copy_(master)


def kahan_update(p, update, state):
    """Carry what the addition lost in a second bfloat16 number."""
    lost = state.setdefault("lost", torch.zeros_like(p))
    lost += update
    new = p + lost
    lost -= new - p
    p.copy_(new)


def stochastic_update(p, update, state):
    """Round up or down at random, with probabilities that are right on average."""
    exact = p.float() + update.float()
    noise = torch.randint_like(exact, 2**16, dtype=torch.int32)
    p.copy_(((exact.view(torch.int32) + noise) & -(2**16)).view(torch.float32))


def gap(values):
    """Return the distance from each bfloat16 value to the next larger one."""
    _, exponent = torch.frexp(values.float())
    return torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent - 8)


def train(dtype, update_rule, amp=False, steps=240):
    """Return each step's loss and share of moved weights, the layer, and rule state."""
    torch.manual_seed(0)
    x = torch.randn(256, 64).to(device)
    y = x @ torch.randn(64, 1).to(device)
    layer = nn.Linear(64, 1).to(device, dtype)
    states = {p: {} for p in layer.parameters()}
    losses, moved = [], []
    for _ in range(steps):
        layer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=amp):
            loss = F.mse_loss(layer(x.to(dtype)).float(), y)
        loss.backward()
        before = [p.detach().clone() for p in layer.parameters()]
        with torch.no_grad():
            for p, state in states.items():
                update_rule(p, p.grad / -32, state)
        changed = [
            (p != old).sum().item() for p, old in zip(states, before, strict=True)
        ]
        losses.append(loss.item())
        moved.append(sum(changed) / 65)
    return losses, moved, layer, states


runs = {
    "float32": train(torch.float32, plain_update),
    "autocast": train(torch.float32, plain_update, amp=True),
    "bf16, plain": train(torch.bfloat16, plain_update),
    "bf16, master": train(torch.bfloat16, master_update),
    "bf16, Kahan": train(torch.bfloat16, kahan_update),
    "bf16, stochastic": train(torch.bfloat16, stochastic_update),
}
print(f"{'':17}{'loss':>9}{'of weights moved':>18}")
for name, (losses, moved, *_) in runs.items():
    print(f"{name:17}{losses[-1]:9.5f}{moved[-1]:18.0%}")

stalled = runs["bf16, plain"][0][-1]
for name, (losses, *_) in runs.items():
    assert losses[0] > 50, "all start at the same loss"
    if name != "bf16, plain":
        assert losses[-1] < stalled / 20, f"{name} gets much further"
assert stalled > 0.05, "plain bfloat16 stops early"

# %%
# At the end no weight of the plain bfloat16 layer moves any more. The gradients are not
# zero; each update is at most half the gap between its weight and the next number.

losses, moved, layer, _ = runs["bf16, plain"]
for p in layer.parameters():
    update = (p.grad / 32).float().abs()
    assert (update <= gap(p.detach()) / 2).all(), "at most half the gap"
largest = max(p.grad.abs().max().item() for p in layer.parameters())
print(f"largest gradient {largest:.3f}, weights moved {moved[-1]:.0%}")
assert moved[-1] == 0 and largest > 0.01, "a gradient without a move"

# %%
# The remedies end at a floor, as ``autocast`` does: their forward pass is bfloat16,
# too, and its rounding alone makes a loss of about 0.001 here. That is noise in each
# step; the stall of the plain rule is a loss that no further step can reduce.

figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
for name, (losses, *_) in runs.items():
    style = "--" if name == "float32" else "-"
    width = 2.5 if name == "bf16, plain" else 1
    axes.plot(losses, style, linewidth=width, label=name)
axes.set_yscale("log")
axes.set(
    xlabel="step",
    ylabel="mean squared error",
    title="Plain bfloat16 stalls, three remedies do not",
)
axes.legend()

# %%
# What a weight costs in each: parameter, gradient and what the rule carries along.
# State of an optimizer comes on top; so does, under ``autocast``, the cached cast while
# it is alive.

bytes_each = {}
for name, (_, _, layer, states) in runs.items():
    p = layer.weight
    tensors = [p, p.grad, *states[p].values()]
    bytes_each[name] = sum(tensor.element_size() for tensor in tensors)
    print(f"{name:17}{bytes_each[name]:3} bytes")
assert bytes_each["bf16, stochastic"] == bytes_each["bf16, plain"] == 4
assert bytes_each["bf16, Kahan"] == 6
assert bytes_each["bf16, master"] == bytes_each["float32"] == 8
