"""
Does a Module compute anything that a function does not?
========================================================

No. A ``Module`` is a place to keep tensors and a way to find them again; the numbers
come from the same operations. This script writes one network three times, as a
``Module``, as a plain function of a dict of tensors, and as the ``Module`` called
through ``torch.func.functional_call`` with that dict. All three start from the same
values and are trained on the same data. The losses are equal to the last bit in every
step, and so are the trained weights.

What a ``Module`` does add is that it finds its tensors. The second half measures what
happens to a layer that it cannot find: the network runs, the loss falls, no error is
raised, and the layer never trains.
"""

import math

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

STEPS = 300
inputs = torch.linspace(-math.pi, math.pi, 64).unsqueeze(1)
targets = torch.sin(2 * inputs)

# %%
# The same network, twice
# -----------------------
#
# The ``Module`` creates its weights and keeps them. The function is told which weights
# to use. Both call ``F.linear`` and ``torch.tanh`` in the same order, on the CPU. That
# is what makes equality to the last bit a fair demand: the same formula from other
# operations may round differently.


class Network(nn.Module):
    """Three linear layers with tanh between them, kept in the given container."""

    def __init__(self, container=nn.ModuleList):
        super().__init__()
        self.hidden = container([nn.Linear(1, 16), nn.Linear(16, 16)])
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        """Map (batch, 1) to (batch, 1)."""
        for layer in self.hidden:
            x = torch.tanh(layer(x))
        return self.head(x)


def network(params, x):
    """Map (batch, 1) to (batch, 1) with the weights in params."""
    for layer in ("hidden.0", "hidden.1"):
        x = torch.tanh(F.linear(x, params[f"{layer}.weight"], params[f"{layer}.bias"]))
    return F.linear(x, params["head.weight"], params["head.bias"])


def build(container=nn.ModuleList):
    """Return a Network that starts from the same weights each time."""
    torch.manual_seed(0)
    return Network(container)


def copy_of(module):
    """Return the parameters of a module by name, as leaf tensors of their own."""
    return {
        name: parameter.detach().clone().requires_grad_()
        for name, parameter in module.named_parameters()
    }


# %%
# Three trainings
# ---------------
#
# The optimizer takes a list of tensors and does not ask where they come from. Nothing
# else in the loop knows a ``Module`` either.


def train(predict, tensors):
    """Fit the targets with Adam and return the loss before each step."""
    optimizer = torch.optim.Adam(tensors, lr=0.01)
    losses = []
    for _ in range(STEPS):
        loss = F.mse_loss(predict(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


module = build()
by_hand = copy_of(module)
bridged = copy_of(module)
skeleton = build()

losses = {
    "Module": train(module, module.parameters()),
    "function": train(lambda x: network(by_hand, x), by_hand.values()),
    "functional_call": train(
        lambda x: functional_call(skeleton, bridged, (x,)), bridged.values()
    ),
}

print(f"{'written as':17}{'step 0':>12}{'step 100':>12}{'step 299':>12}")
for name, values in losses.items():
    print(f"{name:17}{values[0]:12.8f}{values[100]:12.8f}{values[-1]:12.8f}")

# %%
# The curves lie on one another, so the figure draws them in falling width.

styles = {"Module": "C0", "function": "C1", "functional_call": "C2"}
for width, (name, color) in zip((8, 4, 1.5), styles.items(), strict=True):
    plt.semilogy(losses[name], color=color, linewidth=width, label=name)
plt.title("One network written three ways: one loss curve")
plt.xlabel("step")
plt.ylabel("mean squared error")
plt.legend()
plt.show()

assert losses["Module"] == losses["function"], "equal to the last bit"
assert losses["Module"] == losses["functional_call"], "equal to the last bit"
for name, trained in module.named_parameters():
    assert torch.equal(trained, by_hand[name]), f"{name}: trained to other values"
    assert torch.equal(trained, bridged[name]), f"{name}: trained to other values"
assert losses["Module"][-1] < losses["Module"][0] / 20, "and it does learn"

# %%
# ``functional_call`` swapped the tensors of the dict in for the length of each call.
# The module that lent its ``forward`` has kept the weights it was built with.

untouched = build().state_dict()
for name, value in skeleton.state_dict().items():
    assert torch.equal(value, untouched[name]), "the skeleton must not change"
print("weights of the skeleton: unchanged")

# %%
# Why the bridge is worth having
# ------------------------------
#
# A transformation such as ``grad`` or ``vmap`` wants a function of the weights. Here it
# gives the gradient of each of the 64 examples by itself, where one ``backward`` of the
# batch gives their mean.


def loss_of_one(params, x, y):
    """Return the loss of a single example."""
    return F.mse_loss(functional_call(skeleton, params, (x,)), y)


weights = {name: value.detach() for name, value in skeleton.named_parameters()}
each = vmap(grad(loss_of_one), in_dims=(None, 0, 0))(weights, inputs, targets)

print(f"{'parameter':17}{'shape':12}one gradient per example")
for name, value in each.items():
    print(f"{name:17}{tuple(weights[name].shape)!s:12}{tuple(value.shape)}")

F.mse_loss(skeleton(inputs), targets).backward()
for name, parameter in skeleton.named_parameters():
    gap = (each[name].mean(0) - parameter.grad).abs().max().item()
    assert gap < 1e-6, f"{name}: the mean of all must be the gradient of the batch"

# %%
# A layer that the Module cannot find
# -----------------------------------
#
# The same network again, with the hidden layers in a Python list. A list is neither a
# ``Module`` nor a ``Parameter``, so assigning it to an attribute registers nothing. The
# head is registered, hence the optimizer is content with two of the six tensors.

containers = {"nn.ModuleList": nn.ModuleList, "list": list}
report = {}
for name, container in containers.items():
    net = build(container)
    start = [layer.weight.detach().clone() for layer in net.hidden]
    curve = train(net, net.parameters())
    steps = [
        (layer.weight - old).abs().max().item()
        for layer, old in zip(net.hidden, start, strict=True)
    ]
    report[name] = {
        "curve": curve,
        "found": len(list(net.parameters())),
        "saved": len(net.state_dict()),
        "moved": max(steps),
    }

print(f"{'hidden layers in':18}{'found':>7}{'saved':>7}{'moved by':>10}{'loss':>10}")
for name, row in report.items():
    print(
        f"{name:18}{row['found']:7}{row['saved']:7}"
        f"{row['moved']:10.4f}{row['curve'][-1]:10.6f}"
    )

# %%
# The loss falls in both, since the head can still fit what the random hidden layers
# offer it. That is what makes the mistake hard to see.

for (name, row), color in zip(report.items(), ("C0", "C3"), strict=True):
    plt.semilogy(row["curve"], color=color, label=f"hidden layers in {name}")
plt.title("Layers in a Python list never train, and no error says so")
plt.xlabel("step")
plt.ylabel("mean squared error")
plt.legend()
plt.show()

good, bad = report["nn.ModuleList"], report["list"]
assert good["curve"][0] == bad["curve"][0], "both start from the same network"
assert (good["found"], good["saved"]) == (6, 6)
assert (bad["found"], bad["saved"]) == (2, 2), "the list hides four of six tensors"
assert good["moved"] > 0.01 and bad["moved"] == 0, "hidden layers stay as they were"
assert bad["curve"][-1] < bad["curve"][0], "the loss falls nevertheless"
assert bad["curve"][-1] > 5 * good["curve"][-1], "but not nearly as far"

# %%
# What calling the Module adds
# ----------------------------
#
# ``net(x)`` is ``Module.__call__``, which runs the hooks around ``forward``. Calling
# ``forward`` yourself gives the same numbers and skips them.

calls = []
module.head.register_forward_hook(lambda *_: calls.append("head"))
module.register_forward_hook(lambda *_: calls.append("network"))
seen = {}
for name, call in (("net(x)", module), ("net.forward(x)", module.forward)):
    calls.clear()
    call(inputs)
    seen[name] = list(calls)
    print(f"{name:16}hooks that ran: {', '.join(calls)}")

assert seen["net(x)"] == ["head", "network"]
assert seen["net.forward(x)"] == ["head"], "only the outermost call is bypassed"
