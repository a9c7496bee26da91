"""
When does a training step need the most memory?
===============================================

Parameters, gradients and optimizer state are as large as the model makes them; saved
activations, temporaries and the batch grow with the batch. They do not all live at
once. This script draws two training steps, operator for operator and by kind, for a
large batch and a small one. The claim: the large batch peaks where backward begins and
the small one in Adam's ``step()``. With the large batch, the second step needs as much
more than the first as Adam's state is large.

Then it measures how each kind grows with batch, tokens, width and depth, what five
optimizers keep, and what no count of tensors sees: memory inside a kernel.
"""

import weakref
from itertools import accumulate, pairwise

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.autograd import profiler_legacy
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
# A ledger with a memory
# ----------------------
#
# A dispatch mode sees every operator of forward, backward and update. The ledger has an
# entry of bytes and kind for each live storage, and keeps the list of entries after
# every operator. A kind may become known later than the bytes: a result is a temporary
# until autograd saves it, or until it turns out to be a gradient or state. The lists
# share the entries, so the history is right in the end.

KINDS = ("parameters", "batch", "state", "gradients", "saved", "temporaries")


class Ledger(TorchDispatchMode):
    """Record the live storage on a device, by kind, after every operator."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.live = weakref.WeakKeyDictionary()  # storage -> [bytes, kind]
        self.history, self.calls = [], []  # lists of entries; (name, first operator)

    def add(self, tree, kind: str) -> None:
        """Note storages; a kind replaces only "temporaries"."""
        for tensor in tree_leaves(tree):
            if not isinstance(tensor, torch.Tensor):
                continue
            if tensor.device.type == self.device.type:
                storage = tensor.untyped_storage()
                entry = self.live.setdefault(storage, [storage.nbytes(), kind])
                if entry[1] == "temporaries":
                    entry[1] = kind

    def save(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note what autograd saves; parameters and the batch keep their kind."""
        self.add(tensor, "saved")
        return tensor.detach()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.add(out, "temporaries")
        self.history.append(list(self.live.values()))
        return out

    def sizes(self) -> list[dict[str, float]]:
        """Return MiB by kind after each operator."""
        rows = []
        for entries in self.history:
            row = dict.fromkeys(KINDS, 0.0)
            for size, kind in entries:
                row[kind] += size / MiB
            rows.append(row)
        return rows


def linear_layers(width: int, depth: int) -> nn.Sequential:
    """Return linear layers with Tanh between them."""
    parts = [(nn.Linear(width, width, bias=False), nn.Tanh()) for _ in range(depth)]
    return nn.Sequential(*[part for pair in parts for part in pair][:-1])


def train(model, x, y, kind=torch.optim.Adam, steps=2, **options):
    """Run steps under a ledger and return it."""
    parameters = list(model.parameters())
    optimizer = kind(parameters, lr=0.001, **{"foreach": False, **options})
    ledger = Ledger(x.device)
    ledger.add(parameters, "parameters")
    ledger.add((x, y), "batch")
    hooks = [
        p.register_post_accumulate_grad_hook(lambda p: ledger.add(p.grad, "gradients"))
        for p in parameters
    ]
    with ledger, saved_tensors_hooks(ledger.save, lambda tensor: tensor):
        for _ in range(steps):
            for call in ("forward", "backward", "step"):
                ledger.calls.append((call, len(ledger.history)))
                if call == "forward":
                    loss = F.cross_entropy(model(x), y)
                elif call == "backward":
                    loss.backward()
                else:
                    optimizer.step()
                    ledger.add(list(optimizer.state.values()), "state")
            optimizer.zero_grad()
    ledger.calls.append(("end", len(ledger.history)))
    for hook in hooks:
        hook.remove()
    return ledger


def data(rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a batch of rows and their classes."""
    return torch.rand(rows, width), torch.randint(width, (rows,))


# %%
# Two steps, operator for operator
# --------------------------------
#
# Each line is the moment of a call when most was alive, in MiB, and what it was. Four
# linear layers of width 256 are exactly 1 MiB of parameters. With 1024 rows each
# activation is 1 MiB, with 32 rows 1/32 MiB. ``foreach=False`` updates one parameter at
# a time on every device.

batches = {"large": 1024, "small": 32}
ledgers, peaks = {}, {}
print(f"{'':6}{'':9}  peak  param  batch  state   grad  saved   temp")
for name, rows in batches.items():
    torch.manual_seed(0)
    with torch.device(device):
        ledger = ledgers[name] = train(linear_layers(256, 4), *data(rows, 256))
    sizes = ledger.sizes()
    peaks[name] = []
    for (call, start), (_, end) in pairwise(ledger.calls):
        peak = max(sizes[start:end], key=lambda row: sum(row.values()))
        total = sum(peak.values())
        peaks[name].append((total, call, peak))
        parts = "".join(f"{size:7.2f}" for size in peak.values())
        print(f"{name:6}{call:9}{total:6.2f}{parts}")

# %%
# The order of the kinds in the drawing is that of their lifetimes: what stays at the
# bottom, what comes and goes on top.

figure, axes = plt.subplots(2, figsize=(5.5, 6), layout="constrained", sharex=True)
figure.suptitle("Live bytes after each operator of two steps")
edge = plt.rcParams["axes.edgecolor"]
for panel, (name, ledger) in zip(axes, ledgers.items(), strict=True):
    sizes = ledger.sizes()
    panel.stackplot(
        range(len(sizes)),
        *[[row[kind] for row in sizes] for kind in KINDS],
        labels=KINDS,
        colors=[f"C{number}" for number in range(len(KINDS))],
        step="post",
    )
    starts = [start for _, start in ledger.calls[:-1]]
    for start in starts:
        panel.axvline(start, color=edge, linewidth=0.8, linestyle=":")
    panel.set(title=f"{name} batch, {batches[name]} rows", ylabel="MiB alive")
    panel.set_xticks(starts, [call for call, _ in ledger.calls[:-1]], rotation=40)
    panel.margins(x=0)
axes[-1].set_xlabel("operators in order; each label marks where a call starts")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


def near(value: float, expected: float) -> bool:
    """Allow for labels, losses and step counters."""
    return abs(value - expected) < 0.05


def highest(name: str, step: int) -> tuple[float, str, dict[str, float]]:
    """Return the call of a step that peaks highest."""
    return max(peaks[name][3 * step : 3 * step + 3], key=lambda peak: peak[0])


for step in (0, 1):
    total, call, kinds = highest("large", step)
    assert call == "backward", "the large batch peaks in backward"
    assert kinds["gradients"] == 0, "at its beginning: no parameter has a gradient"
    assert near(kinds["saved"], 4), "three outputs of Tanh and the log-probabilities"
    assert near(kinds["temporaries"], 2), "two gradients of the logits' size"
    total, call, kinds = highest("small", step)
    assert call == "step", "the small batch peaks in the update"
    assert kinds["saved"] == 0, "after backward nothing saved is left"
    assert near(kinds["gradients"], 1) and near(kinds["state"], 2)
    assert near(kinds["temporaries"], 0.75), "three of one parameter's size"
grown = highest("large", 1)[0] - highest("large", 0)[0]
assert near(grown, 2), "the second step runs beside Adam's state"

# %%
# Where the peak changes sides
# ----------------------------
#
# Between the two batches there is one where the peaks of backward and of
# ``optimizer.step()`` meet. Tensors on the ``meta`` device have sizes and no data, so
# the count costs no memory. It may differ between the first step and the second, since
# backward meets Adam's state only in the second.

crossing = {}
print("rows   first step        second step")
for rows in (32, 64, 128, 256, 384, 512, 1024):
    with torch.device("meta"):
        ledger = train(linear_layers(256, 4), *data(rows, 256))
    totals = [sum(row.values()) for row in ledger.sizes()]
    by_call = [
        (max(totals[start:end]), call)
        for (call, start), (_, end) in pairwise(ledger.calls)
    ]
    first, second = max(by_call[:3]), max(by_call[3:])
    crossing[rows] = first[1], second[1]
    print(
        f"{rows:4}   {first[1]:9}{first[0]:5.2f} MiB   "
        f"{second[1]:9}{second[0]:5.2f} MiB"
    )
    if rows in batches.values():
        name = next(name for name in batches if batches[name] == rows)
        assert abs(first[0] - highest(name, 0)[0]) < 0.001, "meta is not real"

for which in (0, 1):
    sides = [calls[which] for calls in crossing.values()]
    assert sides == sorted(sides, reverse=True), "first step, then backward, once"
    assert set(sides) == {"step", "backward"}

# %%
# What grows with what
# --------------------
#
# A transformer's block: attention with four heads and an MLP, in float32. Each line
# doubles one size and prints each kind as a multiple of the base. *Saved* is printed
# twice, with attention written out and with ``scaled_dot_product_attention``.


class Block(nn.Module):
    """Attention and an MLP, each with a residual connection."""

    def __init__(self, width: int, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False),
            nn.GELU(),
            nn.Linear(4 * width, width, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, tokens, width) to the same shape."""
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, 4, width // 4)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = q @ k.mT / (width // 4) ** 0.5
            mixed = scores.softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(x)


def stack(fused: bool, batch=2, tokens=1024, width=256, depth=1):
    """Return blocks, input and classes on the default device."""
    blocks = [Block(width, fused) for _ in range(depth)]
    x, y = torch.rand(batch, tokens, width), torch.randint(width, (batch * tokens,))
    return nn.Sequential(*blocks, nn.Flatten(0, 1)), x, y


def step_sizes(**sizes) -> list[float]:
    """Return the largest MiB of parameters, gradients, state and saved in a step."""
    with torch.device("meta"):
        rows = train(*stack(fused=False, **sizes), steps=1).sizes()
    kinds = ("parameters", "gradients", "state", "saved")
    return [max(row[kind] for row in rows) for kind in kinds]


def saved_by(fused: bool, **sizes) -> float:
    """Return the MiB that a forward pass saves."""
    with FakeTensorMode():
        model, x, y = stack(fused, **sizes)
        ledger = Ledger(x.device)
        ledger.add(list(model.parameters()), "parameters")
        ledger.add((x, y), "batch")
        with ledger, saved_tensors_hooks(ledger.save, lambda tensor: tensor):
            loss = F.cross_entropy(model(x), y)
        del loss
    return ledger.sizes()[-1]["saved"]


base = [*step_sizes(), saved_by(fused=True)]
print("MiB      " + "".join(f"{size:7.0f}" for size in base))
print(f"{'doubled':9}{'param':>7}{'grad':>7}{'state':>7}{'saved':>7}{'fused':>7}")
ratios = {}
for name, change in {
    "batch": {"batch": 4},
    "tokens": {"tokens": 2048},
    "width": {"width": 512},
    "depth": {"depth": 2},
}.items():
    doubled = [*step_sizes(**change), saved_by(fused=True, **change)]
    ratios[name] = [a / b for a, b in zip(doubled, base, strict=True)]
    print(f"{name:9}" + "".join(f"{ratio:7.2f}" for ratio in ratios[name]))

for name, factor in {"batch": 1, "tokens": 1, "width": 4, "depth": 2}.items():
    assert all(abs(ratio - factor) < 0.001 for ratio in ratios[name][:3]), name
assert saved_by(fused=False) == base[3], "fake and meta agree"
assert all(abs(ratio[4] - 2) < 0.1 for ratio in ratios.values()), "fused: linear in all"
assert ratios["tokens"][3] > 2.5, "written out: more than linear in tokens"
assert ratios["width"][3] < 2, "the matrix of the scores does not depend on width"

# %%
# The tokens alone, ever longer: the quadratic part takes over.

print(f"{'tokens':>7}{'written out':>13}{'fused':>8}  MiB saved, one block")
saved = {}
for tokens in (1024, 4096, 16384, 65536):
    saved[tokens] = [saved_by(fused, batch=1, tokens=tokens) for fused in (False, True)]
    print(f"{tokens:7}{saved[tokens][0]:13.1f}{saved[tokens][1]:8.1f}")

steps = list(pairwise(saved.values()))
assert [round(b[1] / a[1]) for a, b in steps] == [4, 4, 4], "four times the tokens"
assert 15 < steps[-1][1][0] / steps[-1][0][0] < 16, "nearly sixteen times as much"

# %%
# What the optimizers keep
# ------------------------
#
# State in bytes a parameter, and the peak of the small batch, for the three
# implementations of each update. ``foreach`` works on lists of all parameters, so its
# temporaries are as large as all of them; ``fused`` has none that show.

optimizers = {
    "SGD": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "Adam": (torch.optim.Adam, {}),
    "AdamW": (torch.optim.AdamW, {}),
    "amsgrad": (torch.optim.Adam, {"amsgrad": True}),
}
ways = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"foreach": None, "fused": True},
}
kept, peak_of = {}, {}
print(f"{'':9}{'state':>6}" + "".join(f"{way:>9}" for way in ways))
for name, (kind, options) in optimizers.items():
    for way, choice in ways.items():
        torch.manual_seed(0)
        with torch.device(device):
            ledger = train(
                linear_layers(256, 4), *data(32, 256), kind=kind, **options, **choice
            )
        sizes = ledger.sizes()
        kept[name] = 4 * sizes[-1]["state"] / sizes[-1]["parameters"]
        peak_of[name, way] = max(sum(row.values()) for row in sizes)
    print(
        f"{name:9}{kept[name]:6.2f}"
        + "".join(f"{peak_of[name, way]:9.2f}" for way in ways)
    )

expected = {"SGD": 0, "momentum": 4, "Adam": 8, "AdamW": 8, "amsgrad": 12}
assert {name: round(size) for name, size in kept.items()} == expected
for name in ("Adam", "AdamW", "amsgrad"):
    loop, foreach, fused = (peak_of[name, way] for way in ways)
    assert near(foreach - fused, 1), "foreach: one copy of the parameters"
    assert near(loop - fused, 0.75), "the loop: three times one of four parameters"

# %%
# What no count of tensors sees
# -----------------------------
#
# A kernel may allocate for itself and free it again before it returns. The convolution
# for float64 on a CPU does: it copies each window of 3 × 3 into a row of a matrix, nine
# times its input, and multiplies. The ledger sees the output; a profiler sees each
# request to the CPU's allocator.

image, weight = (
    torch.rand(shape).double() for shape in ((1, 8, 128, 128), (8, 8, 3, 3))
)
ledger = Ledger(torch.device("cpu"))
with ledger:
    output = F.conv2d(image, weight, padding=1)
counted = max(sum(size for size, _ in entries) for entries in ledger.history) / MiB
del output

config = profiler_legacy.profile(profile_memory=True).config()
torch.autograd._enable_profiler_legacy(config)
output = F.conv2d(image, weight, padding=1)
threads = torch.autograd._disable_profiler_legacy()
requests = [
    event.cpu_memory_usage() / MiB
    for events in threads
    for event in events
    if event.kind() == "memory_alloc"
]
print(f"input {image.nbytes / MiB:g} MiB, output {output.nbytes / MiB:g} MiB")
print(
    f"peak: the ledger {counted:g} MiB, the allocator {max(accumulate(requests)):g} MiB"
)

assert counted == output.nbytes / MiB == 1
assert max(accumulate(requests)) == counted + 9 * image.nbytes / MiB

# %%
# Beside the CUDA allocator
# -------------------------
#
# ``torch.cuda.max_memory_allocated()`` after each call, beside the ledger's peak. What
# the allocator has more is rounding, scratch space, and the workspaces of cuBLAS, which
# stay when all tensors are gone. The rest of what the card lost is the CUDA context and
# other processes.

if device.type == "cuda":
    torch.manual_seed(0)
    model = linear_layers(256, 4).to(device)
    x, y = (tensor.to(device) for tensor in data(1024, 256))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    state = {}
    print(f"{'call':10}{'counted':>9}{'allocator':>11}  MiB")
    for peak, call, _ in peaks["large"]:
        torch.cuda.reset_peak_memory_stats()
        if call == "forward":
            state["loss"] = F.cross_entropy(model(x), y)
        elif call == "backward":
            state["loss"].backward()
        else:
            optimizer.step()
        top = torch.cuda.max_memory_allocated() / MiB
        print(f"{call:10}{peak:9.2f}{top:11.2f}")
        assert top > peak - 0.05, "the allocator holds at least the tensors"
        if call == "step":
            optimizer.zero_grad()
    del model, optimizer, x, y, state
    left = torch.cuda.memory_allocated() / MiB
    print(f"allocated when all is deleted: {left:.2f} MiB")
    print(
        f"cuBLAS workspace: {torch.backends.cuda.cublas_workspace_size() / MiB:.2f} MiB"
    )
    free, total = torch.cuda.mem_get_info()
    outside = (total - free - torch.cuda.memory_reserved()) / MiB
    print(f"outside the allocator: {outside:.0f} MiB")
    statistics = torch.cuda.memory_stats()
    print("allocations so far:", statistics["allocation.all.allocated"])
else:
    print(f"Ran on {device}: torch.cuda.max_memory_allocated() was not compared.")
