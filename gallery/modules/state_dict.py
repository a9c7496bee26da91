"""
What does "best = model.state_dict()" hold when training ends?
==============================================================

A small network is fitted to few noisy points, so that it soon learns them by heart and
its validation loss rises again. Whenever that loss is at a new minimum, the weights are
kept in four ways: the state dict itself, its ``copy()``, its values after ``.cpu()``,
and a deep copy. After each epoch the kept weights are tried out.

Those of the deep copy stay at the minimum. The state dict and its ``copy()`` share the
storage of the model and follow it up the hill, and on the CPU so does ``.cpu()``; on a
GPU it is a copy. What is restored at the end is the last epoch, without a message. The
optimizer's state dict is half of each kind.
"""

import copy

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

EPOCHS = 250
device = torch.accelerator.current_accelerator(check_available=True)
device = device or torch.device("cpu")
torch.set_num_threads(1)  # the network is tiny, and small steps are quicker
print(f"torch {torch.__version__} on {device}")

# %%
# A training run that gets worse
# ------------------------------
#
# Sixteen points of a sine with noise train the network, 64 others judge it.

torch.manual_seed(0)


def points(count):
    """Return inputs and noisy targets."""
    x = torch.rand(count, 1) * 2 - 1
    return x.to(device), (torch.sin(3 * x) + 0.4 * torch.randn(count, 1)).to(device)


train, validation = points(16), points(64)
model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
model = model.append(nn.Linear(64, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

WAYS = {
    "state_dict()": lambda state: state,
    "copy()": lambda state: state.copy(),
    "cpu()": lambda state: {name: value.cpu() for name, value in state.items()},
    "deepcopy()": copy.deepcopy,
}


def judge(state):
    """Return the validation loss of the model with the weights of a state."""
    weights = {name: value.to(device) for name, value in state.items()}
    with torch.no_grad():
        return F.mse_loss(
            functional_call(model, weights, validation[0]), validation[1]
        ).item()


live, best, best_epoch = [], {}, 0
held = {way: [] for way in WAYS}
for epoch in range(EPOCHS):
    optimizer.zero_grad()
    F.mse_loss(model(train[0]), train[1]).backward()
    optimizer.step()
    live.append(judge(model.state_dict()))
    if live[-1] == min(live):
        best_epoch = epoch
        best = {way: keep(model.state_dict()) for way, keep in WAYS.items()}
    for way in WAYS:
        held[way].append(judge(best[way]))

print(f"lowest validation loss {min(live):.4f} in epoch {best_epoch}")
print(f"last validation loss   {live[-1]:.4f}")
assert best_epoch < EPOCHS / 2, "the run is past its best for long"
assert live[-1] > 1.2 * min(live), "and has become worse"

# %%
# Storages shared with the model
# ------------------------------
#
# Whether a way of keeping makes a copy can be seen at once, without training: compare
# the storages.


def storages(state):
    """Return the storages of a state."""
    return {value.untyped_storage().data_ptr() for value in state.values()}


mine = storages(model.state_dict())
print(f"{'kept by':14}{'shared':>8}{'loss now':>11}")
for way, state in best.items():
    shared = len(storages(state) & mine)
    print(f"{way:14}{shared:4} of {len(mine)}{judge(state):11.4f}")
    copies = way == "deepcopy()" or (way == "cpu()" and device.type != "cpu")
    assert shared == (0 if copies else len(mine)), f"{way}: shares {shared}"

# %%
# The best that drifts
# --------------------
#
# From the best epoch on, three of the curves are the model's own (two, if it is on a
# GPU). Only a copy keeps what it was given.

figure, axes = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
styles = zip(WAYS, (9, 5.5, 2, 2), strict=True)
for number, (way, width) in enumerate(styles):
    axes.plot(held[way], color=f"C{number}", linewidth=width, label=way)
axes.axvline(best_epoch, color=plt.rcParams["axes.edgecolor"], linestyle=":")
axes.set(xlabel="epoch", ylabel="validation loss (mean squared error)")
axes.set(title='Validation loss of the weights kept as "best"')
axes.set(xlim=(0, EPOCHS), ylim=(0, 2 * live[-1]))
axes.legend(title="kept by")
plt.show()

for way in WAYS:
    copies = way == "deepcopy()" or (way == "cpu()" and device.type != "cpu")
    expected = [min(live)] * EPOCHS if copies else live
    rest = slice(best_epoch, EPOCHS)
    torch.testing.assert_close(held[way][rest], expected[rest], atol=1e-6, rtol=1e-4)

# %%
# Restoring
# ---------
#
# Loading the reference copies each tensor onto itself. It reports success and changes
# nothing.

before = judge(model.state_dict())
print("reference:", model.load_state_dict(best["state_dict()"]))
assert judge(model.state_dict()) == before, "nothing has changed"
print("deep copy:", model.load_state_dict(best["deepcopy()"]))
restored = judge(model.state_dict())
print(f"validation loss {before:.4f}, after the deep copy {restored:.4f}")
assert abs(restored - min(live)) < 1e-6, "the best epoch is back"

# %%
# The optimizer's half
# --------------------
#
# ``optimizer.state_dict()`` copies the options of each group and refers to the tensors
# of the state. After one more step at a lower rate it holds what never was together:
# the old learning rate and the new moments.

state = optimizer.state_dict()
exact = copy.deepcopy(state)
optimizer.param_groups[0]["lr"] /= 10
optimizer.zero_grad()
F.mse_loss(model(train[0]), train[1]).backward()
optimizer.step()

print(f"{'':12}{'lr':>7}{'step':>6}")
for name, kept in {"state_dict()": state, "deepcopy()": exact}.items():
    rate, steps = kept["param_groups"][0]["lr"], int(kept["state"][0]["step"])
    print(f"{name:12}{rate:7}{steps:6}")
    assert rate == 0.01, "options are copied"
    assert steps == EPOCHS + (kept is state), "tensors are not"
now = optimizer.state[model[0].weight]
assert torch.equal(state["state"][0]["exp_avg"], now["exp_avg"]), "the moments follow"
assert not torch.equal(exact["state"][0]["exp_avg"], now["exp_avg"]), "unless copied"
