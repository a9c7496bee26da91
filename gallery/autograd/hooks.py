"""
In which order do hooks fire?
=============================

A model of two layers gets a hook at every place that takes one, and one training step
writes down who was called. Forward, a module's hooks enclose its ``forward``. Backward,
each tensor hook runs before the node that its tensor came from, a parameter's ``.grad``
is ready as soon as its own path is done, and a module's full backward hook waits for
the gradient of the module's input. The order does not depend on the order of
registration between kinds.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge, register_multi_grad_hook

device = torch.accelerator.current_accelerator(check_available=True)
device = device or torch.device("cpu")
print(f"torch {torch.__version__} on {device}")

# %%
# A hook at every place
# ---------------------
#
# ``note`` makes a hook that writes its name to a log and changes nothing. Node hooks
# are registered first and tensor hooks last, the reverse of the order in which they
# fire. The nodes of the leaves are kept in a list: a parameter does not own its
# ``AccumulateGrad``, so without the list it would go, and its hook with it.

log = []


def note(place, kind):
    """Return a hook that logs where it sits and of what kind it is."""

    def hook(*args):
        log.append((place, kind))

    return hook


model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False)).to(device)
x = torch.ones(1, 2, device=device, requires_grad=True)
params = {"W1": model[0].weight, "b1": model[0].bias, "W2": model[1].weight}
handles, nodes = [], []

for place, p in params.items():
    nodes.append(get_gradient_edge(p).node)
    handles += [
        nodes[-1].register_hook(note(place, "node hook")),
        p.register_post_accumulate_grad_hook(note(place, "post-accumulate")),
        p.register_hook(note(place, "tensor hook")),
    ]
for place, layer in (("layer 1", model[0]), ("layer 2", model[1])):
    handles += [
        layer.register_full_backward_hook(note(place, "full backward")),
        layer.register_full_backward_pre_hook(note(place, "full backward pre")),
        layer.register_forward_hook(note(place, "forward")),
        layer.register_forward_pre_hook(note(place, "forward pre")),
    ]
handles += [
    register_multi_grad_hook([x, *params.values()], note("all leaves", "multi-grad")),
    x.register_post_accumulate_grad_hook(note("x", "post-accumulate")),
    x.register_hook(note("x", "tensor hook")),
]

y = model(x)
handles += [
    y.grad_fn.register_hook(note("y", "node hook")),
    y.grad_fn.register_prehook(note("y", "node pre-hook")),
    y.register_hook(note("y", "tensor hook")),
]
forward_calls = len(log)
y.sum().backward()

for number, (place, kind) in enumerate(log, 1):
    print(f"{number:2}  {place:10}  {kind}")
assert len(log) == len(handles), "each hook fired once"

# %%
# As a timeline
# -------------
#
# One row for each place, one column for each call. Forward is on the left of the line,
# backward on the right.

places = ["x", "layer 1", "W1", "b1", "layer 2", "W2", "y", "all leaves"]
kinds = list(dict.fromkeys(kind for _, kind in log))
marks = dict(zip(kinds, "<>Ds^ovPX*", strict=False))
fig, ax = plt.subplots(figsize=(5.5, 4.6), layout="constrained")
for kind in kinds:
    calls = [(i, places.index(p)) for i, (p, k) in enumerate(log, 1) if k == kind]
    ax.plot(*zip(*calls, strict=True), marks[kind], label=kind)
ax.axvline(forward_calls + 0.5, linestyle=":")
ax.set_yticks(range(len(places)), places)
ax.invert_yaxis()
ax.set(xlabel="call (number)", ylabel="place of the hook")
ax.set_title("Hooks in the order they fire")
fig.legend(loc="outside lower center", ncols=3, fontsize="small")
plt.show()

# %%
# What holds
# ----------


def order(*calls):
    """Return whether the calls came in this order."""
    positions = [log.index(call) for call in calls]
    return positions == sorted(positions)


# %%
# Forward hooks enclose each layer, and layer 1 is done before layer 2 starts.

assert log[:forward_calls] == [
    ("layer 1", "forward pre"),
    ("layer 1", "forward"),
    ("layer 2", "forward pre"),
    ("layer 2", "forward"),
]

# %%
# A tensor hook runs first, then the hooks of the node, in whatever order they were
# registered. A leaf's ``.grad`` is filled between its tensor hook and its
# post-accumulate hook, and the node hook of its ``AccumulateGrad`` is last.

assert order(("y", "tensor hook"), ("y", "node pre-hook"), ("y", "node hook"))
for place in params:
    kinds_in_order = ("tensor hook", "post-accumulate", "node hook")
    assert order(*[(place, kind) for kind in kinds_in_order])

# %%
# A full backward hook waits for the gradient of its module's input: the parameters of
# the layer are finished by then, and the tensor hook of the input is still to come.

for name in ("W1", "b1"):
    assert order((name, "post-accumulate"), ("layer 1", "full backward"))
assert order(("layer 1", "full backward"), ("x", "tensor hook"))

# %%
# The last layer's weight is finished before the first layer begins: an optimizer in a
# post-accumulate hook can step and free it while backward is still running.

assert order(("W2", "post-accumulate"), ("layer 1", "full backward pre"))
assert order(("layer 2", "full backward"), ("layer 1", "full backward pre"))

# %%
# The multi-grad hook fires when the last gradient is computed, before it is stored: the
# post-accumulate hook of ``x`` comes later.

assert order(("all leaves", "multi-grad"), ("x", "post-accumulate"))

# %%
# Without hooks
# -------------
#
# ``forward`` called directly skips the hooks of the module it is called on, not those
# of the layers inside. After ``remove`` nothing is left.

log.clear()
handles.append(model.register_forward_hook(note("model", "forward")))
model(x)
assert ("model", "forward") in log
log.clear()
model.forward(x)
print("model.forward(x):", *log, sep="\n  ")
assert ("model", "forward") not in log
assert ("layer 1", "forward") in log

for handle in handles:
    handle.remove()
log.clear()
model(x).sum().backward()
print("after remove:", log)
assert log == []
