"""
What does each recomputed operation buy?
========================================

Activation checkpointing gives bytes back and takes operations for them. Where you cut
decides the rate. Here the same training step runs under many cuts, and each run counts
both: the bytes alive at the peak, and the operations of its matrix products.

A chain of 16 layers that keep one tensor each does best with four segments, the square
root of 16. Sixteen blocks that keep ten times their input do best with sixteen
segments, one for each block. And a selective checkpoint that keeps one product of each
block, the one that is needed again, frees almost half of the bytes and recomputes no
product at all.
"""

import weakref
from functools import partial
from itertools import pairwise

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from torch.utils.flop_counter import FlopCounterMode

MiB = 2**20
device = torch.accelerator.current_accelerator(check_available=True)
device = device or torch.device("cpu")
torch.set_num_threads(1)  # bytes do not depend on it, and small steps are quicker
print(f"torch {torch.__version__} on {device}")

# %%
# A chain, and blocks that are wide inside
# ----------------------------------------
#
# Both models pass on a tensor of 256 rows and 64 columns, which is 64 KiB. A layer of
# the chain keeps its input and nothing else. A block normalizes its input, widens it
# four times, and adds the result to the input, as one half of a transformer layer does:
# it keeps two tensors of the narrow size and two of the wide one, ten inputs in all.

ROWS, WIDTH, DEPTH = 256, 64, 16
UNIT = ROWS * WIDTH * 4


class Block(nn.Module):
    """Normalize, widen, narrow, and add."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        """Return the block's result."""
        return x + self.down(F.gelu(self.up(self.norm(x))))


torch.manual_seed(0)
with torch.device(device):
    batch = torch.randn(ROWS, WIDTH)
    chain = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH)])
    blocks = nn.Sequential(*[Block() for _ in range(DEPTH)])

# %%
# The bytes come from a dispatch mode that notes the storage of every result and forgets
# it when torch frees it. Parameters, their gradients and the batch are there before the
# step and are not counted: checkpointing does not change them. One more mode counts the
# operations of the products.


class Live(TorchDispatchMode):
    """Count the bytes of live storage, but for some tensors, and remember the peak."""

    def __init__(self, known: list[torch.Tensor]) -> None:
        super().__init__()
        self.known = {t.untyped_storage().data_ptr() for t in known}
        self.sizes = weakref.WeakKeyDictionary()
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self.known:
                    self.sizes[storage] = storage.nbytes()
        self.peak = max(self.peak, sum(self.sizes.values()))
        return out


def flops(function, *args) -> int:
    """Count the floating-point operations of the matrix products in a call."""
    with FlopCounterMode(display=False) as counter:
        function(*args)
    return counter.get_total_flops()


forward = {model: flops(model, batch) for model in (chain, blocks)}


def measure(model: nn.Sequential, ends: list[int], **how) -> tuple[int, float]:
    """Run a step; each `end` closes a checkpointed segment, the rest is plain.

    Return the bytes at the peak, and the recomputed part of a forward pass.
    """
    x = batch.clone().requires_grad_()

    def step():
        out = x
        for start, end in zip([0, *ends], ends, strict=False):
            out = checkpoint(model[start:end], out, use_reentrant=False, **how)
        out = model[ends[-1] :](out) if ends else model(out)
        out.square().mean().backward()

    model.zero_grad()
    passes = flops(step) / forward[model]
    # the gradients are there now, and the next step adds to them in place
    with Live([t for p in (x, *model.parameters()) for t in (p, p.grad)]) as live:
        step()
    return live.peak, passes - 3  # one pass forward, two for backward


def cut(segments: int) -> list[int]:
    """Return the ends of all equal segments but the last, which stays plain."""
    size = DEPTH // segments
    return list(range(size, DEPTH, size))


def gradients(model: nn.Module) -> torch.Tensor:
    """Return all gradients in one vector."""
    return torch.cat([p.grad.flatten() for p in model.parameters()])


# %%
# How many segments?
# ------------------
#
# With ``s`` segments out of ``n``, backward finds ``s`` inputs and the inside of one
# segment, which is ``n / s`` times what a layer keeps. The chain's sum, ``s + n / s``,
# is least at the square root of ``n``. Where a layer keeps ``r`` times its input, the
# sum ``s + r * n / s`` is least at the square root of ``r * n``: for the blocks about
# 13, and of the divisors of 16 it is 16 itself.

counts = [1, 2, 4, 8, 16]
sweep = {
    "chain": [measure(chain, cut(s)) for s in counts],
    "blocks": [measure(blocks, cut(s)) for s in counts],
}
print(f"{'segments':>10}{'chain':>12}{'blocks':>12}")
for row in zip(counts, *sweep.values(), strict=True):
    print(f"{row[0]:10}" + "".join(f"{peak / MiB:8.2f} MiB" for peak, _ in row[1:]))

figure, axes = plt.subplots(figsize=(5.5, 3.4), layout="constrained")
for name, color in (("chain", "C0"), ("blocks", "C1")):
    peaks = [peak for peak, _ in sweep[name]]
    axes.plot(
        counts,
        [100 * peak / peaks[0] for peak in peaks],
        marker="o",
        color=color,
        label={"chain": "keeps its input", "blocks": "keeps ten times its input"}[name],
    )
axes.set_xscale("log", base=2)
axes.set_xticks(counts, [str(s) for s in counts])
axes.set(
    xlabel="segments",
    ylabel="peak, % of the plain step",
    ylim=(0, 105),
    title="The best number of segments, by what a layer keeps",
)
axes.legend(title="each of the 16 layers")

best = {
    name: counts[min(range(5), key=lambda i: points[i][0])]
    for name, points in sweep.items()
}
assert best == {"chain": 4, "blocks": 16}, best

# %%
# Bytes against recomputation
# ---------------------------
#
# The same blocks, with both prices. Besides the number of segments, three other ways to
# spend less: checkpoint some of the blocks, each by itself; keep the results of both
# products of a block; keep only the first, which is wide. The second product's result
# goes into a sum, whose backward needs no values. Nobody asks for it again, so the
# recomputation stops before it, and to keep it buys nothing.

mm = torch.ops.aten.mm.default


def keep_wide(context, func, *args, **kwargs):
    """Keep the product that GELU needs, recompute the rest."""
    wide = func == mm and context.op_output.shape[-1] > WIDTH
    return CheckpointPolicy.MUST_SAVE if wide else CheckpointPolicy.PREFER_RECOMPUTE


def selective(policy):
    """Return the argument that gives a checkpoint its policy."""
    return {"context_fn": partial(create_selective_checkpoint_contexts, policy)}


some = {f"{k} of 16 blocks": list(range(1, k + 1)) for k in (4, 8, 12)}
segments = {f"{s} segments": cut(s) for s in counts[1:]}
points = {"plain": measure(blocks, [])}
reference, change = gradients(blocks), 0.0
for name, ends, how in (
    ("one checkpoint", [DEPTH], {}),
    *((name, ends, {}) for name, ends in {**segments, **some}.items()),
    ("keep products", cut(DEPTH), selective([mm])),
    ("keep wide product", cut(DEPTH), selective(keep_wide)),
):
    points[name] = measure(blocks, ends, **how)
    change = max(change, (gradients(blocks) - reference).abs().max().item())

print(f"{'':18}{'peak':>11}{'recomputed':>12}")
for name, (peak, again) in points.items():
    print(f"{name:18}{peak / MiB:7.2f} MiB{again:12.3f}")
print(f"largest change of a gradient: {change}")

assert change == 0 if device.type == "cpu" else change < 1e-6

# %%
# Down is fewer bytes, left is less work, so nothing beats the points that have no
# other below and to the left of them.

figure, axes = plt.subplots(figsize=(5.5, 4.4), layout="constrained")


def draw(names, title, labels=(), **style):
    """Draw some points, with a label beside each."""
    x = [points[name][1] for name in names]
    y = [points[name][0] / MiB for name in names]
    axes.plot(x, y, label=title, **style)
    for label, *where in zip(labels, x, y, strict=False):
        axes.annotate(label, where, xytext=(6, 5), textcoords="offset points")


draw(["plain", *segments], "segments", ["plain", "2", "4", "8", "16"], marker="o")
draw(some, "blocks checkpointed", ["4", "8", "12"], marker="s", ls="")
draw(["one checkpoint"], "one checkpoint", marker="X", ls="")
draw(["keep products"], "16, products kept", marker="^", ls="")
draw(["keep wide product"], "16, wide product kept", marker="v", ls="")
axes.set(
    xlabel="recomputed, in forward passes",
    ylabel="MiB alive at the peak",
    xlim=(-0.05, 1.05),
    ylim=(0, 1.1 * points["plain"][0] / MiB),
    title="Bytes against recomputation, 16 blocks",
)
figure.legend(loc="outside lower center", ncols=2)

# %%
# One checkpoint around everything is the worst point of all: it recomputes nearly a
# forward pass, and then holds what the plain step holds. Sixteen segments do no more
# work than two, since early stop skips the second product of each segment's last block.
# The blocks checkpointed are a dial from plain to sixteen segments: four more take the
# same work and free the same bytes each time. The wide product kept lies below that
# line, with no product recomputed.

peaks = {name: peak for name, (peak, _) in points.items()}
again = {name: work for name, (_, work) in points.items()}
assert peaks["one checkpoint"] >= peaks["plain"], "all is there again"
assert again["one checkpoint"] > 0.9, "all but the last product"
for name in ("2 segments", "4 segments", "8 segments"):
    assert peaks["16 segments"] < peaks[name], name
    assert again["16 segments"] <= again[name], name
dial = ["plain", "4 of 16 blocks", "8 of 16 blocks", "12 of 16 blocks"]
assert len({peaks[a] - peaks[b] for a, b in pairwise(dial)}) == 1
assert [again[name] for name in dial] == [0, 1 / 8, 1 / 4, 3 / 8]
assert again["16 segments"] == 15 / 16 / 2, "the first product of all blocks but one"
assert again["keep products"] == again["keep wide product"] == 0
saved = peaks["keep products"] - peaks["keep wide product"]
assert 14 * UNIT <= saved <= 16 * UNIT, "one input a block, kept for nothing"
assert peaks["keep wide product"] < peaks["plain"] * 0.6

# %%
# More than twice
# ---------------
#
# What a nested checkpoint saves comes back in two steps. The outer function runs again
# and makes the inner input, which calls the inner function, too. Then that runs once
# more, to bring back what it saves: three times in all, and the outer twice.

calls = {"outer": 0, "inner": 0}


def inner(x):
    """Count the call."""
    calls["inner"] += 1
    return x.exp().sin()


def outer(x):
    """Count the call, and checkpoint the inner function."""
    calls["outer"] += 1
    return checkpoint(inner, x.cos(), use_reentrant=False).cos()


x = torch.ones(1, device=device, requires_grad=True)
checkpoint(outer, x, use_reentrant=False).backward()
print(calls)
assert calls == {"outer": 2, "inner": 3}

# %%
# Nor does a checkpoint keep what it recomputed: a second backward runs it once more.

calls["inner"] = 0
out = checkpoint(inner, x, use_reentrant=False)
out.backward(retain_graph=True)
out.backward()
print(calls["inner"], "calls for two backward passes")
assert calls["inner"] == 3
