"""
What breaks when one step of the training loop is missing?
==========================================================

A training loop repeats five steps: take a batch, run the model forward, clear the
gradients, call ``backward()``, call ``step()``. Leave out any one of them and the
program is wrong, yet only one omission raises an error. The others run to the end
and return a loss.

This script trains the same small network with each step left out in turn, then with
the right steps in a wrong order. It measures the loss on all data, how far the
weights moved, and the gradient left at the end.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn.functional import mse_loss

# %%
# The loop as data
# ----------------
#
# The order of the steps is a tuple, so that leaving one out is a change to data and
# not a second copy of the loop. Every run starts from the same weights and sees the
# same batches. The loss on all data is measured once after each iteration, outside
# the loop's own steps.

LOOP = ("batch", "forward", "zero_grad", "backward", "step")
ITERATIONS = 400

generator = torch.Generator().manual_seed(0)
inputs = torch.linspace(-3, 3, 256).unsqueeze(1)
targets = torch.sin(inputs) + 0.1 * torch.randn(256, 1, generator=generator)
batches = torch.randint(256, (ITERATIONS, 8), generator=generator)


def train(order: tuple[str, ...], retain_graph: bool = False) -> dict:
    """Run the steps of ``order`` in each iteration and report what became of it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

    rows = batches[0]
    loss = mse_loss(model(inputs[rows]), targets[rows])
    losses, error = [], ""
    for iteration in range(ITERATIONS):
        try:
            for step in order:
                if step == "batch":
                    rows = batches[iteration]
                elif step == "forward":
                    loss = mse_loss(model(inputs[rows]), targets[rows])
                elif step == "zero_grad":
                    optimizer.zero_grad()
                elif step == "backward":
                    loss.backward(retain_graph=retain_graph)
                elif step == "step":
                    optimizer.step()
        except RuntimeError as e:
            error = str(e)
            break
        with torch.no_grad():
            losses.append(mse_loss(model(inputs), targets).item())

    grads = [p.grad for p in model.parameters() if p.grad is not None]
    pairs = zip(model.parameters(), start, strict=True)
    return {
        "losses": losses,
        "batch loss": loss.item(),
        "moved": max((p - q).abs().max().item() for p, q in pairs),
        "grad": sum(g.square().sum().item() for g in grads) ** 0.5,
        "error": error,
    }


runs = {"nothing": train(LOOP)}
for missing in LOOP:
    runs[missing] = train(tuple(step for step in LOOP if step != missing))

print(f"{'left out':10} {'iterations':>10} {'last loss':>12} {'moved':>8} {'grad':>8}")
for name, run in runs.items():
    print(
        f"{name:10} {len(run['losses']):10} {run['losses'][-1]:12.3g} "
        f"{run['moved']:8.3g} {run['grad']:8.3g}"
    )

# %%
# The complete loop learns. Without ``backward()`` there is never a gradient, so
# ``step()`` skips every parameter. Without ``step()`` the gradient is computed each
# time and nobody reads it. The two look the same from outside: a loss that stays
# where it was, and no error. The last column tells them apart.

complete, flat = runs["nothing"]["losses"], runs["backward"]["losses"]
assert complete[-1] < complete[0] / 10, "the complete loop must learn"
for missing in ("backward", "step"):
    assert runs[missing]["moved"] == 0.0, f"weights moved without {missing}"
    assert len(set(runs[missing]["losses"])) == 1, "the loss must not change at all"
assert runs["backward"]["grad"] == 0.0, "no backward, no gradient"
assert runs["step"]["grad"] > 0.0, "without step the gradient is there, unread"

# %%
# The shapes of failure
# ---------------------
#
# Without ``zero_grad()`` each update uses the sum of all gradients so far. The weights
# swing across the minimum, here in ever wider swings that leave the frame. Without a
# new batch the loop fits eight points and knows nothing of the other 248, and the loss
# that the loop itself sees is the lowest of all.

figure, axes = plt.subplots(figsize=(7, 4.2))
labels = {
    "nothing": "complete loop",
    "zero_grad": "no zero_grad()",
    "batch": "no new batch",
    "backward": "no backward(), or no step()",
}
for colour, (missing, label) in enumerate(labels.items()):
    axes.plot(runs[missing]["losses"], label=label, color=f"C{colour}")
axes.set_yscale("log")
axes.set_ylim(0.01, 30)
axes.set_xlabel("iteration")
axes.set_ylabel("mean squared error on all data")
axes.set_title("Loss on all data with one step left out")
axes.legend()
plt.show()

one_batch = runs["batch"]
print(f"no new batch: loss the loop sees {one_batch['batch loss']:.4f}")
print(f"no new batch: loss on all data   {one_batch['losses'][-1]:.4f}")
print(f"no zero_grad: highest loss       {max(runs['zero_grad']['losses']):.3g}")

assert one_batch["batch loss"] < one_batch["losses"][-1] / 3, "one batch must mislead"
lowest = min(runs, key=lambda name: runs[name]["batch loss"])
assert lowest == "batch", "the loop without a new batch must see the lowest loss"
assert one_batch["losses"][-1] > 1.5 * complete[-1], "one batch must generalise worse"
assert runs["zero_grad"]["losses"][-1] > flat[0], "no zero_grad: worse than untrained"
assert len(batches[0].unique()) == 8, "the one batch must hold eight different points"
swings = [max(runs["zero_grad"]["losses"][i : i + 100]) for i in range(0, 400, 100)]
assert swings == sorted(swings), "no zero_grad: the swings must grow"
assert swings[-1] > 30, "no zero_grad: the curve must leave the frame"

# %%
# The one omission that raises
# ----------------------------
#
# Without a new forward pass, ``backward()`` meets a graph whose saved tensors the
# first ``backward()`` freed. The message suggests ``retain_graph=True``. Following
# that advice here leads to the next error: ``step()`` has changed in place a weight
# that the old graph saved. Autograd compares version counters and refuses to compute
# a gradient from values that are gone. The cure is a new forward pass.

no_forward = tuple(step for step in LOOP if step != "forward")
retained = train(no_forward, retain_graph=True)
for advice, run in (("as it is", runs["forward"]), ("retain_graph", retained)):
    print(f"{advice} (stopped after {len(run['losses'])} iteration):")
    print(f"  {run['error'].partition(':')[0].partition(' (')[0]}")

raising = [name for name, run in runs.items() if run["error"]]
assert raising == ["forward"], "no other omission may raise"
assert "backward through the graph a second time" in runs["forward"]["error"]
assert "modified by an inplace operation" in retained["error"]

# %%
# The right steps in the wrong order
# ----------------------------------
#
# All five steps are there in each row below. ``zero_grad()`` between ``backward()``
# and ``step()`` throws the gradient away before it is read. ``step()`` right after
# ``zero_grad()`` finds nothing. ``step()`` between forward and ``backward()`` works
# once, and in the second iteration it changes weights that the graph still needs.

orders = {
    "as above": LOOP,
    "zero_grad first": ("zero_grad", "batch", "forward", "backward", "step"),
    "zero_grad last": ("batch", "forward", "backward", "step", "zero_grad"),
    "zero_grad before step": ("batch", "forward", "backward", "zero_grad", "step"),
    "step before backward": ("batch", "forward", "zero_grad", "step", "backward"),
    "step, zero, backward": ("batch", "forward", "step", "zero_grad", "backward"),
}
reordered = {name: train(order) for name, order in orders.items()}
for name, run in reordered.items():
    verdict = "raises" if run["error"] else f"{run['losses'][-1]:.6f}"
    print(f"{name:22} iterations {len(run['losses']):3}   last loss {verdict}")

for name in ("zero_grad first", "zero_grad last"):
    assert reordered[name]["losses"] == complete, f"{name}: must equal the first loop"
for name in ("zero_grad before step", "step before backward"):
    assert reordered[name]["losses"] == flat, f"{name}: nothing may be learnt"
assert "inplace" in reordered["step, zero, backward"]["error"]
