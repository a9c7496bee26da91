"""
What does gradient accumulation change, and what does it save?
==============================================================

Sixteen sequences, long and short, in one batch or in sixteen micro-batches. Summed
losses divided by the number of all tokens give the batch's gradient and its training
run. Means divided by the number of micro-batches give another gradient, and train
another model, without a message. With equal lengths the two agree, so a test with equal
lengths does not find the mistake.

Then two limits. Memory falls with the micro-batch only down to a floor of parameters,
gradients and optimizer state. And a sum of gradients kept in bfloat16 gets worse with
the number of micro-batches, whatever the weights; one kept in float32 does not.
"""

import weakref
from collections.abc import Callable
from itertools import pairwise

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

device = torch.accelerator.current_accelerator(check_available=True)
device = device or torch.device("cpu")
torch.set_num_threads(1)  # small steps are quicker
print(f"torch {torch.__version__} on {device}")

# %%
# Sequences of two kinds
# ----------------------
#
# In a long sequence the next token is one more, in a short one three more. Padded
# positions have the label -100, which the loss ignores. The model sees one token and
# predicts the next, so it cannot tell the kinds apart: it must learn how often each
# step occurs, and that depends on what is counted.

VOCABULARY, ROWS, LENGTH, IGNORED = 16, 16, 32, -100


def sequences(lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and labels; the kinds alternate, as do the lengths."""
    start = torch.arange(len(lengths)).unsqueeze(1)
    stride = torch.tensor([1, 3]).repeat(len(lengths) // 2).unsqueeze(1)
    tokens = (start + stride * torch.arange(LENGTH)) % VOCABULARY
    labels = (tokens + stride) % VOCABULARY
    padding = torch.arange(LENGTH) >= torch.tensor(lengths).unsqueeze(1)
    return tokens.to(device), labels.masked_fill(padding, IGNORED).to(device)


def new_model() -> nn.Module:
    """Return the same small model each time."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, 32), nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 16)
    )
    return model.to(device)


def token_loss(model, tokens, labels, reduction="mean") -> torch.Tensor:
    """Return the loss over the labels that count."""
    scores = model(tokens).flatten(0, 1)
    return cross_entropy(scores, labels.flatten(), reduction=reduction)


# %%
# Three recipes
# -------------
#
# Each leaves its gradient in ``.grad``. The third needs no count before the loop: it
# divides at the end.


def one_batch(model, tokens, labels) -> None:
    """Do without accumulation."""
    token_loss(model, tokens, labels).backward()


def mean_of_means(model, tokens, labels) -> None:
    """Divide each mean by the number of micro-batches."""
    for part in zip(tokens.split(1), labels.split(1), strict=True):
        (token_loss(model, *part) / len(tokens)).backward()


def sum_by_tokens(model, tokens, labels) -> None:
    """Add up sums, and divide the gradients by the number of tokens."""
    for part in zip(tokens.split(1), labels.split(1), strict=True):
        token_loss(model, *part, reduction="sum").backward()
    count = (labels != IGNORED).sum()
    for parameter in model.parameters():
        parameter.grad /= count


RECIPES = {
    "one batch": one_batch,
    "sum / tokens": sum_by_tokens,
    "mean of means": mean_of_means,
}


def gradient(model: nn.Module, recipe: Callable, data) -> torch.Tensor:
    """Return all gradients of a model as one vector."""
    model.zero_grad()
    recipe(model, *data)
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the norm of the difference as a share of the wanted norm."""
    return ((found - wanted).norm() / wanted.norm()).item()


equal = sequences([LENGTH] * ROWS)
unequal = sequences([LENGTH, 4] * (ROWS // 2))
table = {}
for kind, data in {"equal": equal, "unequal": unequal}.items():
    wanted = gradient(new_model(), one_batch, data)
    for name, recipe in RECIPES.items():
        table[name, kind] = error(gradient(new_model(), recipe, data), wanted)

print(f"{'error of the gradient':22}{'equal':>9}{'unequal':>9}")
for name in list(RECIPES)[1:]:
    print(f"{name:22}{table[name, 'equal']:9.0e}{table[name, 'unequal']:9.0e}")

assert table["sum / tokens", "equal"] < 1e-5, "rounding"
assert table["sum / tokens", "unequal"] < 1e-5, "rounding"
assert table["mean of means", "equal"] < 1e-5, "equal counts: both are right"
assert table["mean of means", "unequal"] > 0.1, "unequal counts: only one is"

# %%
# What becomes of it in training
# ------------------------------
#
# One update from each group of sixteen micro-batches. Eight of nine tokens come from
# long sequences, but half of the sequences are short. The mean of means learns the
# halves. The best loss for tokens is the entropy of 8 : 1, that of even odds is log 2.

STEPS = 60
curves, weights = {}, {}
for name, recipe in RECIPES.items():
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        recipe(model, *unequal)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # once for each group
        optimizer.step()
        with torch.no_grad():
            losses.append(token_loss(model, *unequal))
    curves[name] = torch.stack(losses).cpu()
    weights[name] = nn.utils.parameters_to_vector(model.parameters()).detach()

odds = torch.tensor([8 / 9, 1 / 9])
best = -(odds * odds.log()).sum().item()
even = torch.tensor(2.0).log().item()
for name, losses in curves.items():
    print(
        f"{name:14} loss per token {losses[-1]:.4f}, weights differ by "
        f"{error(weights[name], weights['one batch']):.0e}"
    )
print(f"best possible  {best:.4f}, with even odds {even:.4f}")

assert abs(curves["one batch"][-1] - best) < 0.01, "the batch finds the best"
assert abs(curves["sum / tokens"][-1] - best) < 0.01, "and so does the sum"
assert abs(curves["mean of means"][-1] - even) < 0.01, "the means find even odds"
assert error(weights["sum / tokens"], weights["one batch"]) < 1e-2
assert error(weights["mean of means"], weights["one batch"]) > 0.1

figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
for name, style in zip(RECIPES, ("-", "--", "-"), strict=True):
    axes.plot(curves[name], style, label=name, linewidth=2.5 if style == "-" else 2)
edge = plt.rcParams["axes.edgecolor"]
axes.axhline(best, color=edge, linestyle=":", label="best possible")
axes.set(xlabel="updates", ylabel="loss per token, in nats", ylim=(0, 3))
axes.set_title("Loss of one batch and of two ways to accumulate")
axes.legend()
plt.show()

# %%
# What it saves, and the floor
# ----------------------------
#
# A dispatch mode counts the storage that is alive after each operator of a step with
# Adam. Twice as many micro-batches halve the activations, and nothing else. With one,
# the peak comes before there are gradients, 2 MiB, so the first halving saves less.

MiB, WIDTH, BATCH = 2**20, 256, 1024


class Live(TorchDispatchMode):
    """Count live storage, with what was there before; keep the peak."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self.sizes = weakref.WeakKeyDictionary()
        self.peak = 0
        self.add(tensors)

    def add(self, results) -> None:
        """Note the storage of each tensor in results."""
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == device.type:
                self.sizes[tensor.untyped_storage()] = tensor.untyped_storage().nbytes()
        self.peak = max(self.peak, sum(self.sizes.values()))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.add(out)
        return out


def step(parts: int) -> tuple[int, int]:
    """Return the peak of a step, and the floor under it."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(8)]
    model = nn.Sequential(*blocks).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, foreach=False)
    x = torch.randn(BATCH, WIDTH, device=device)
    for rows in (x[:8], x):  # the first step creates the optimizer's state
        before = [*model.parameters(), optimizer.state, x]
        with Live(before) as live:
            for part in rows.chunk(parts):
                (model(part).square().mean() / parts).backward()
            optimizer.step()
        gradients = sum(p.grad.nbytes for p in model.parameters())
        state = [t for t in tree_leaves(optimizer.state) if isinstance(t, torch.Tensor)]
        floor = sum(t.nbytes for t in [*model.parameters(), *state, x]) + gradients
        optimizer.zero_grad()
    return live.peak, floor


PARTS = [1, 2, 4, 8, 16, 32]
peaks, floors = zip(*(step(parts) for parts in PARTS), strict=True)
print(f"{'micro-batches':14}{'peak, MiB':>10}{'above floor':>13}")
for parts, peak, floor in zip(PARTS, peaks, floors, strict=True):
    print(f"{parts:<14}{peak / MiB:10.2f}{(peak - floor) / MiB:13.2f}")

assert len(set(floors)) == 1, "the floor does not depend on the number"
assert all(a >= b for a, b in pairwise(peaks)), "peaks only fall"
assert peaks[0] - peaks[1] > 3 * MiB, "the first halving saves most"
assert peaks[4] - peaks[5] < 0.5 * MiB, "the last saves next to nothing"
assert peaks[-1] > floors[-1], "no number of micro-batches goes below the floor"

figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
axes.plot(PARTS, [peak / MiB for peak in peaks], "o-", label="peak of the step")
axes.axhline(
    floors[0] / MiB,
    color=edge,
    linestyle="--",
    label="parameters, gradients, state, batch",
)
axes.set_xscale("log", base=2)
axes.set_xticks(PARTS, PARTS)
axes.set(xlabel="micro-batches", ylabel="MiB alive at the peak", ylim=(0, None))
axes.set_title("Peak memory against the number of micro-batches")
axes.legend()
plt.show()

# %%
# The sum in bfloat16
# -------------------
#
# The same gradients of micro-batches, weighted right, and added up in float32, in
# bfloat16, which rounds to 8 significant bits, and in float32 for a bfloat16 parameter,
# which rounds each of them but not the sum. With many micro-batches the sum in bfloat16
# stops growing: a share is then no more than half of the sum's last bit.

float32, bfloat16 = torch.float32, torch.bfloat16
KINDS = [(float32, float32), (bfloat16, bfloat16), (bfloat16, float32)]
generator = torch.Generator().manual_seed(0)
gradients = 1 + 0.25 * torch.randn(1024, 1000, generator=generator)
rounding = {}
print(f"{'parameter':14}{'float32':>9}{'bfloat16':>10}{'bfloat16':>10}")
print(f"{'sum':14}{'float32':>9}{'bfloat16':>10}{'float32':>10}")
for parts in (4, 16, 64, 256, 1024):
    shares = gradients[:parts].to(device) / parts
    wanted = shares.sum(0)
    for kind in KINDS:
        weight = nn.Parameter(torch.zeros(1000, dtype=kind[0], device=device))
        weight.grad_dtype = kind[1]
        for share in shares.to(kind[0]):
            weight.backward(share)  # adds share to weight.grad
        rounding[parts, kind] = error(weight.grad.float(), wanted)
    plain, coarse, mixed = (rounding[parts, kind] for kind in KINDS)
    print(f"{f'{parts} parts':14}{plain:9.0e}{coarse:10.4f}{mixed:10.4f}")

plain, coarse, mixed = KINDS
assert max(rounding[parts, plain] for parts in (4, 16, 64, 256, 1024)) < 1e-5
assert rounding[4, coarse] < 0.01, "a few additions: rounding"
assert rounding[1024, coarse] > 0.2, "many: a good part is missing"
assert rounding[1024, mixed] < 0.01, "in float32 roundings average out"
