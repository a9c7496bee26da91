"""
What does detach() cut, and what does requires_grad_(False) freeze?
===================================================================

``y.detach()`` is a new tensor on the memory of ``y``, without its history: one path
of the graph ends there. ``p.requires_grad_(False)`` changes ``p`` itself: the leaf gets
no gradient any more, but gradients still pass through every operation that uses it.

The script shows both in the graph, measures what autograd keeps for backward in each
case, and overwrites one tensor in five ways to see which writes autograd notices.
"""

# %%
# Two cuts in one graph
# ---------------------
# A generator ``g`` makes a fake sample, a discriminator ``d`` scores it. Tracked in
# full, the score depends on both leaves.

import weakref

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torchviz import make_dot

g = torch.tensor(2.0, requires_grad=True)
d = torch.tensor(5.0, requires_grad=True)
noise = torch.tensor(3.0)

fake = g * noise
score = d * fake
both = make_dot(score, params={"g": g, "d": d, "score": score})

# %%
# **The discriminator's step** must not reach the generator. ``fake.detach()`` ends the
# path in front of ``d``: the leaf ``g`` is gone from the graph.

score = d * fake.detach()
detached = make_dot(score, params={"g": g, "d": d, "score": score})
score.backward()

print("detach():              ", "g.grad =", g.grad, "| d.grad =", d.grad)
assert g.grad is None, "detach() let a gradient through"
assert d.grad == 6, "d.grad is not the value of the fake sample"

# %%
# **The generator's step** must go through the discriminator without changing it. With
# the flag off, the leaf ``d`` is gone and the path through its multiplication stays.

d.grad = None
d.requires_grad_(False)
score = d * fake
frozen = make_dot(score, params={"g": g, "d": d, "score": score})
score.backward()

print("requires_grad_(False): ", "g.grad =", g.grad, "| d.grad =", d.grad)
assert g.grad == 15, "the gradient did not pass through the frozen factor"
assert d.grad is None, "a frozen leaf got a gradient"


# %%
# Four ways to leave an encoder as it is
# --------------------------------------
# A prompt is added to the input in front of a fixed encoder, and a head stands behind
# it. Which parameters get a gradient, and how many bytes does autograd keep?
#
# ``recorded`` counts every tensor that an operation saved during the forward pass.
# ``held`` counts those still alive when it ends. A tensor saved twice counts once;
# parameters, which exist anyway, do not count.


class Kept:
    """Holds one saved tensor, so that a weak reference tells when it is freed."""

    def __init__(self, tensor: Tensor) -> None:
        # An operation that saves its own output would otherwise keep itself alive.
        self.tensor = tensor.detach()


def distinct_bytes(tensors: list[Tensor], parameters: list[Tensor]) -> int:
    """Return the bytes of the distinct storages that hold no parameter."""
    known = {p.untyped_storage().data_ptr() for p in parameters}
    sizes = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors
    }
    return sum(size for pointer, size in sizes.items() if pointer not in known)


torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
head = nn.Linear(64, 1)
prompt = nn.Parameter(torch.zeros(64))
batch = torch.randn(128, 64)


def forward(way: str) -> Tensor:
    """Return the loss, with the encoder kept fixed in the way named."""
    hidden = batch + prompt
    if way == "no_grad()":
        with torch.no_grad():
            code = encoder(hidden)
    elif way == "detach()":
        code = encoder(hidden).detach()
    else:
        code = encoder(hidden)
    return head(code).sum()


def measure(way: str) -> tuple[int, int, list[str]]:
    """Return bytes recorded, bytes held, and the names of what got a gradient."""
    parts = {"prompt": prompt, "encoder": encoder[0].weight, "head": head.weight}
    parameters = [prompt, *encoder.parameters(), *head.parameters()]
    for parameter in parameters:
        parameter.grad = None
    encoder.requires_grad_(way != "requires_grad_(False)")

    recorded: list[Tensor] = []
    alive: weakref.WeakSet[Kept] = weakref.WeakSet()

    def pack(tensor: Tensor) -> Kept:
        kept = Kept(tensor)
        recorded.append(kept.tensor)
        alive.add(kept)
        return kept

    with saved_tensors_hooks(pack, lambda kept: kept.tensor):
        loss = forward(way)
    held = [kept.tensor for kept in alive]
    loss.backward()
    return (
        distinct_bytes(recorded, parameters),
        distinct_bytes(held, parameters),
        [name for name, part in parts.items() if part.grad is not None],
    )


ways = ("nothing", "detach()", "no_grad()", "requires_grad_(False)")
results = {way: measure(way) for way in ways}

print(f"{'way':22}{'recorded':>9}{'held':>9}  gradients reach")
for way, (recorded, held, reached) in results.items():
    print(f"{way:22}{recorded:9,}{held:9,}  {', '.join(reached)}")

# %%
# Of these, only the flag fixes the encoder and still trains the prompt. ``detach()``
# stops the gradient just as ``no_grad()`` does, but the encoder's graph is recorded
# first and thrown away at the cut: the forward pass needs the memory, backward does
# not.
#
# With nothing to train in front of the encoder, the flag alone is as cheap as
# ``no_grad()``: an operation records nothing if none of its inputs needs a gradient.

assert results["requires_grad_(False)"][2] == ["prompt", "head"]
assert results["detach()"][2] == results["no_grad()"][2] == ["head"]
assert results["detach()"][0] == results["nothing"][0], "detach() recorded less"
assert results["detach()"][1] == results["no_grad()"][1], "detach() held the graph"
assert results["requires_grad_(False)"][0] < results["nothing"][0]

prompt.requires_grad_(False)
without_prompt = measure("requires_grad_(False)")
prompt.requires_grad_(True)
print("frozen encoder, frozen prompt:", f"{without_prompt[0]:,} bytes recorded")
assert without_prompt == results["no_grad()"], "a frozen encoder recorded something"

positions = range(len(ways))
plt.figure(figsize=(6.4, 3.2))
plt.barh(
    [p - 0.2 for p in positions],
    [results[way][0] / 1024 for way in ways],
    height=0.4,
    color="C0",
    label="recorded during forward",
)
plt.barh(
    [p + 0.2 for p in positions],
    [results[way][1] / 1024 for way in ways],
    height=0.4,
    color="C1",
    label="held when it ends",
)
plt.yticks(positions, ways)
plt.gca().invert_yaxis()
plt.xlabel("KiB kept for backward")
plt.title("Keeping an encoder fixed: what autograd saves")
plt.legend()
plt.tight_layout()
plt.show()

# %%
# Why freezing saves memory
# -------------------------
# For :math:`y = x W^T` the gradient of the weight needs the input, and the gradient of
# the input needs the weight. A linear layer saves what the gradients still wanted need,
# and no more. Not every layer is so careful: in evaluation mode a frozen BatchNorm is a
# fixed scaling, whose backward needs no input, and yet it saves its input.


def saved_by_linear(train_weight: bool, train_input: bool) -> list[str]:
    """Return which of its two operands a linear layer saves for backward."""
    layer = nn.Linear(4, 3, bias=False).requires_grad_(train_weight)
    x = torch.ones(2, 4, requires_grad=train_input)
    names = {x.data_ptr(): "input", layer.weight.data_ptr(): "weight"}
    saved: list[str] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(names[tensor.data_ptr()])
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(x)
    return sorted(saved)


print(f"{'weight':10}{'input':12}saved for backward")
for train_weight in (True, False):
    for train_input in (True, False):
        saved = saved_by_linear(train_weight, train_input)
        weight = "trained" if train_weight else "frozen"
        needs = "needs grad" if train_input else "constant"
        print(f"{weight:10}{needs:12}{' and '.join(saved) or 'nothing'}")

assert saved_by_linear(True, True) == ["input", "weight"]
assert saved_by_linear(True, False) == ["input"]
assert saved_by_linear(False, True) == ["weight"]
assert saved_by_linear(False, False) == []

norm = nn.BatchNorm1d(4).eval().requires_grad_(False)
x = torch.ones(2, 4, requires_grad=True)
pointers: list[int] = []
with saved_tensors_hooks(lambda t: pointers.append(t.data_ptr()), lambda t: t):
    norm(x)
assert x.data_ptr() in pointers, "a frozen BatchNorm no longer saves its input"

# %%
# One value, five ways to write
# -----------------------------
# ``z = y * y`` saves ``y``. Before backward runs, the value is then overwritten, each
# time in another way. With ``x = 2`` and ``y = x * x`` the true gradient is 32.
# Autograd compares the version counter of ``y`` with the number it noted when it saved
# ``y``; a write that does not raise the counter stays unseen.

TRUE_GRADIENT = 32.0


def overwrite_in_no_grad(y: Tensor) -> None:
    """Overwrite the tensor itself, with recording switched off."""
    with torch.no_grad():
        y.fill_(40.0)


edits = {
    "y under no_grad()": overwrite_in_no_grad,
    "y.detach()": lambda y: y.detach().fill_(40.0),
    "y.data": lambda y: y.data.fill_(40.0),
    "y.detach().numpy()": lambda y: y.detach().numpy().fill(40.0),
    "y.detach().clone()": lambda y: y.detach().clone().fill_(40.0),
}
outcomes = {}
print(f"{'written through':20}{'y is now':>9}{'version':>9}  backward")
for alias, edit in edits.items():
    x = torch.tensor(2.0, requires_grad=True)
    y = x * x
    z = y * y
    edit(y)
    try:
        z.backward()
        outcomes[alias] = x.grad.item()
        verdict = "right" if outcomes[alias] == TRUE_GRADIENT else "wrong, no error"
        text = f"{outcomes[alias]:g}, {verdict}"
    except RuntimeError:
        outcomes[alias] = None
        text = "RuntimeError"
    print(f"{alias:20}{y.item():9g}{y._version:9}  {text}")

# %%
# ``detach()`` shares memory and counter, so the write is caught. ``.data`` and a NumPy
# array share the memory only: the gradient is ten times too large and nothing says so.
# A clone shares neither.

assert outcomes["y under no_grad()"] is None, "the edit went unnoticed"
assert outcomes["y.detach()"] is None, "the edit went unnoticed"
assert outcomes["y.data"] == 320, "y.data shares the counter now"
assert outcomes["y.detach().numpy()"] == 320, "NumPy writes raise the counter now"
assert outcomes["y.detach().clone()"] == TRUE_GRADIENT, "the clone shares memory"
