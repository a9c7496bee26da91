"""
Which writes does autograd notice, and what do they save?
=========================================================

A node keeps a tensor by reference, so a later write into that memory changes what the
node will read. Autograd guards against it with a counter that writes raise. This script
tries fourteen ways to overwrite a value that a node keeps, and asserts which of them
backward refuses, which give a wrong gradient in silence and which do no harm. It then
tries for twenty operations whether input and output may be overwritten, and checks
that what a node keeps explains every answer. At the end, it counts the bytes that
writing in place saves.
"""

import linecache
import sys
import weakref
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch.autograd.graph import increment_version
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

device = torch.accelerator.current_accelerator(check_available=True)
device = device or torch.device("cpu")
print(f"torch {torch.__version__} on {device}")

# %%
# Fourteen ways to write
# ----------------------
#
# The product ``w * w`` keeps ``w``, and its gradient is ``2 * w``. With 3 in ``w`` it
# is 6. Each way then puts 10 where the 3 was, before backward. If the counter has
# moved, backward refuses. If it has not, backward reads the 10 and returns 20.


def step(w, **options):
    """Let an optimizer move w from 3 to 10."""
    w.grad = torch.full_like(w, -7.0)
    torch.optim.SGD([w], lr=1.0, **options).step()
    w.grad = None


def replace_data(w):
    """Give w other memory."""
    w.data = torch.full_like(w, 10.0)


def numpy_told(w):
    """Write through an array, and raise the counter by hand."""
    w.detach().numpy().fill(10.0)
    increment_version(w)


WAYS = {
    "no_grad()": torch.no_grad()(lambda w: w.fill_(10.0)),
    "inference_mode()": torch.inference_mode()(lambda w: w.fill_(10.0)),
    "a view": torch.no_grad()(lambda w: w[:1].fill_(10.0)),
    "detach()": lambda w: w.detach().fill_(10.0),
    "out=": lambda w: torch.add(w.detach(), 7.0, out=w.detach()),
    "SGD": lambda w: step(w, foreach=False),
    "SGD, foreach": lambda w: step(w, foreach=True),
    "SGD, fused": lambda w: step(w, fused=True),
    ".data": lambda w: w.data.fill_(10.0),
    ".data = new": replace_data,
    "DLPack": lambda w: torch.from_dlpack(w.detach()).fill_(10.0),
    "NumPy": lambda w: w.detach().numpy().fill(10.0),
    "NumPy, told": numpy_told,
    "clone()": lambda w: w.detach().clone().fill_(10.0),
}
if device.type != "cpu":
    del WAYS["NumPy"], WAYS["NumPy, told"]  # an array shares memory on the CPU only

outcomes = {}
print(f"{'way':17}{'w':>4}{'counter':>9}  backward")
for name, write in WAYS.items():
    w = torch.full((1,), 3.0, device=device, requires_grad=True)
    loss = (w * w).sum()
    before = w._version
    write(w)
    moved = w._version - before
    try:
        outcomes[name] = torch.autograd.grad(loss, w)[0].item()
    except RuntimeError:
        outcomes[name] = "refused"
    print(f"{name:17}{w.item():4.0f}{moved:+9}  {outcomes[name]}")
    if w == 10:
        assert (moved > 0) == (outcomes[name] == "refused"), "the counter decides"

silent = [name for name, outcome in outcomes.items() if outcome == 20.0]
print("wrong in silence:", ", ".join(silent))
expected = ["SGD, fused", ".data", ".data = new", "DLPack", "NumPy"]
assert silent == [name for name in expected if name in WAYS]
assert outcomes["clone()"] == 6.0, "a copy does no harm"

# %%
# Grad mode has no say: a write under ``no_grad()`` is not recorded, but it is counted.
# What escapes is a write through another tensor object with a counter of its own, or by
# code that does not tell torch. ``increment_version`` is how such code can tell it.

# %%
# Whose memory may be overwritten?
# --------------------------------
#
# For each operation, the input or the output is written to before backward. An
# operation refuses exactly the tensors that its node keeps, which
# ``saved_tensors_hooks`` counts without looking at any counter.

OPERATIONS = {
    "x + 1": lambda x: x + 1,
    "x * 3": lambda x: x * 3,
    "x * x": lambda x: x * x,
    "x ** 2": lambda x: x**2,
    "reciprocal": torch.reciprocal,
    "sum": torch.sum,
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "leaky_relu": F.leaky_relu,
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "x @ x.T": lambda x: x @ x.T,
    "cat": lambda x: torch.cat([x, x]),
    "clamp": lambda x: x.clamp(0, 1),
}


def kept(operation):
    """Return whether the node of an operation keeps its input, and its output."""
    addresses = set()

    def pack(tensor):
        addresses.add(tensor.untyped_storage().data_ptr())
        return tensor.detach()

    x = torch.full((4, 4), 0.5, device=device, requires_grad=True).clone()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = operation(x)
    return [t.untyped_storage().data_ptr() in addresses for t in (x, y)]


def refused(operation):
    """Return whether backward refuses a write to the input, and to the output."""
    answers = []
    for position in range(2):
        x = torch.full((4, 4), 0.5, device=device, requires_grad=True).clone()
        y = operation(x)
        total = y.sum()
        with torch.no_grad():
            (x, y)[position].mul_(2)
        try:
            total.backward()
            answers.append(False)
        except RuntimeError:
            answers.append(True)
    return answers


table = {name: refused(operation) for name, operation in OPERATIONS.items()}
for name, operation in OPERATIONS.items():
    assert table[name] == kept(operation), f"{name}: what is kept must explain it"

figure, axes = plt.subplots(figsize=(4.2, 5.4), layout="constrained")
for row, answers in enumerate(table.values()):
    for column, answer in enumerate(answers):
        color, text = ("C1", "refused") if answer else ("C0", "fine")
        axes.barh(row, 0.94, 0.86, left=column + 0.03, color=color, alpha=0.35)
        axes.text(column + 0.5, row, text, ha="center", va="center", fontsize=9)
axes.set_yticks(range(len(table)), list(table))
axes.set_xticks([0.5, 1.5], ["its input", "its output"])
axes.set_ylim(len(table) - 0.5, -0.5)
axes.set_xlim(0, 2)
axes.set_xlabel("overwritten before backward")
axes.set_ylabel("operation")
axes.set_title("What backward refuses")
plt.show()

neither = [name for name, answers in table.items() if not any(answers)]
print("both may be overwritten:", ", ".join(neither))
inputs = [name for name, answers in table.items() if answers == [False, True]]
print("only the input may be:", ", ".join(inputs))

# %%
# Who wrote?
# ----------
#
# If a node kept its own output, the error names that node, and anomaly mode shows where
# it was made. Neither names the write. A function mode can: it sees every call of a
# torch function, and looks at the counter before and after.


TORCH = str(Path(torch.__file__).parent)


class Writers(TorchFunctionMode):
    """Prints each torch function that raises the counter of a tensor, and its line."""

    def __init__(self, tensor):
        super().__init__()
        self.tensor, self.found = tensor, []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        before = self.tensor._version
        result = func(*args, **(kwargs or {}))
        if self.tensor._version != before:
            frame = sys._getframe(1)
            while frame.f_code.co_filename.startswith(TORCH):
                frame = frame.f_back
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            self.found.append(func.__name__)
            print(f"{before} -> {self.tensor._version}  {func.__name__:12}{line}")
        return result


x = torch.ones(3, device=device, requires_grad=True)
y = x.exp()
with Writers(y) as writers:
    alias = y.detach()[1:]
    z = y * 2
    alias += 1
    y[0] = 0.0
    F.relu(y, inplace=True)
assert writers.found == ["add_", "__setitem__", "relu"]

# %%
# How many bytes does it save?
# ----------------------------
#
# A dispatch mode notes the storages that are alive after each operator. Eight
# scalings of 1 MiB keep nothing for backward. GELU keeps its input, so of four times
# GELU and a scaling, only the scaling may write in place. Out of place, the name is
# bound again each time, and the old result goes if no node keeps it.

MiB = 2**20


class Alive(TorchDispatchMode):
    """Notes how many MiB, of what operators made, are alive after each operator."""

    def __init__(self):
        super().__init__()
        self.storages, self.curve = weakref.WeakSet(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == device.type:
                self.storages.add(leaf.untyped_storage())
        self.curve.append(sum(s.nbytes() for s in self.storages) / MiB)
        return result


def scalings(y, in_place):
    """Scale eight times."""
    for _ in range(8):
        y = y.mul_(1.5) if in_place else y * 1.5
    return y


def activations(y, in_place):
    """Apply GELU and scale, four times."""
    for _ in range(4):
        y = F.gelu(y)
        y = y.mul_(1.5) if in_place else y * 1.5
    return y


def alive(function, in_place, trained):
    """Return the MiB alive after each operator, and how many were of the forward."""
    x = torch.full((MiB // 4,), 0.5, device=device, requires_grad=trained)
    with Alive() as mode:
        out = function(x + 0, in_place)
        forward = len(mode.curve)
        if trained:
            out.sum().backward()
    return mode.curve, forward


figure, axes = plt.subplots(2, 1, figsize=(5.0, 5.4), layout="constrained")
print(f"{'MiB at the peak':15}{'no grad':>9}{'forward':>9}{'backward':>9}")
peaks = {}
for axis, function, title in (
    (axes[0], scalings, "Bytes alive: eight scalings"),
    (axes[1], activations, "Bytes alive: four times GELU and a scaling"),
):
    for in_place, style in ((False, "-"), (True, "--")):
        label = "in place" if in_place else "out of place"
        curve, forward = alive(function, in_place, trained=True)
        without, _ = alive(function, in_place, trained=False)
        parts = without, curve[:forward], curve[forward:]
        peak = [round(max(part)) for part in parts]
        peaks[function, in_place] = peak
        row = f"  {label}" if in_place else function.__name__
        print(f"{row:15}" + "".join(f"{value:9}" for value in peak))
        axis.plot(range(1, len(curve) + 1), curve, style, label=label)
    axis.axvline(forward + 0.5, color="C7", linewidth=1)
    axis.set_title(title)
    axis.set_ylabel("alive (MiB)")
    axis.set_ylim(bottom=0)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.legend()
axes[1].set_xlabel("operators: forward left of the line, backward right")
plt.show()

assert peaks[scalings, False] == [2, 2, 3]
assert peaks[scalings, True] == [1, 1, 3], "one result less, not seven"
assert peaks[activations, False] == [2, 6, 7]
assert peaks[activations, True] == [2, 5, 7], "GELU itself holds two without grad"

# %%
# Writing in place saves one result, and only while that result would have stood beside
# the one it replaces. In training the peak lies in backward, where gradients come on
# top of the result and of what is still kept. Here it is the same either way.
