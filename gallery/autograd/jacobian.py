"""
What does a Jacobian cost?
==========================

Backward computes a row of the Jacobian a pass, forward mode a column. Both give the
same matrix, so the shape decides which is cheaper: for few outputs take rows, for few
inputs take columns. Per-sample gradients, mapped over the batch, are equal to a loop
and need the same arithmetic in far fewer calls. A Hessian-vector product costs a few
forward passes, the Hessian of 64 numbers more than a hundred.

Counted: floating-point operations of the matrix products, and the calls of operators.
"""

import warnings
from functools import partial

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

device = torch.accelerator.current_accelerator(check_available=True)
if device is None or device.type == "mps":  # MPS has no float64
    device = torch.device("cpu")
random = partial(torch.randn, device=device, dtype=torch.float64)
torch.manual_seed(0)
print(f"torch {torch.__version__} on {device}")

# The first use of forward mode compiles formulas of torch's own, which warns that
# torch.jit.script is deprecated.
with warnings.catch_warnings(action="ignore"):
    jvp(torch.sin, (random(1),), (random(1),))


class Calls(TorchDispatchMode):
    """Counts the operators that reach a device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def flops(function, *args):
    """Return the floating-point operations of the matrix products."""
    with FlopCounterMode(display=False) as counter:
        function(*args)
    return counter.get_total_flops()


def calls(function, *args):
    """Return how many operators ran."""
    with Calls() as counter:
        function(*args)
    return counter.count


# %%
# Rows or columns
# ---------------
#
# The network has a hidden layer of 32, and the number of its inputs and outputs varies.
# One backward pass with a unit vector gives one row. ``jacrev`` sends all unit vectors
# through at once, ``jacfwd`` all directions of the input.

HIDDEN = 32
shapes = [(64, 1), (64, 8), (64, 64), (8, 64), (1, 64)]
costs = {"jacrev": [], "jacfwd": []}
print("cost in forward passes\ninputs  outputs  rows  columns")
for inputs, outputs in shapes:
    first, second = random(inputs, HIDDEN), random(HIDDEN, outputs)

    def net(x, first=first, second=second):
        """Return the outputs for one row of inputs."""
        return (torch.tanh(x @ first) @ second).squeeze(0)

    x = random(1, inputs)
    leaf = x.clone().requires_grad_()
    y = net(leaf)
    units = torch.eye(outputs, device=device, dtype=x.dtype)
    rows = [torch.autograd.grad(y, leaf, v, retain_graph=True)[0] for v in units]
    reverse, forward = jacrev(net)(x), jacfwd(net)(x)
    torch.testing.assert_close(reverse, torch.stack(rows))
    torch.testing.assert_close(forward, reverse)

    once = flops(net, x)
    costs["jacrev"].append(flops(jacrev(net), x) / once)
    costs["jacfwd"].append(flops(jacfwd(net), x) / once)
    by_row, by_column = costs["jacrev"][-1], costs["jacfwd"][-1]
    print(f"{inputs:6}  {outputs:7}  {by_row:4.0f}  {by_column:7.0f}")
    assert by_row == 1 + outputs, "forward, and a pass for each row"
    assert 1 + inputs <= by_column <= 3 + inputs, "forward, and a pass for each column"

fig, ax = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
places = range(len(shapes))
ax.bar([p - 0.2 for p in places], costs["jacrev"], 0.4, label="jacrev: rows")
ax.bar([p + 0.2 for p in places], costs["jacfwd"], 0.4, label="jacfwd: columns")
ax.set_xticks(places, [f"{n} → {m}" for n, m in shapes])
ax.set(xlabel="inputs → outputs", ylabel="cost (forward passes)")
ax.set_title("The smaller side decides the cost of a Jacobian")
fig.legend(loc="outside lower center", ncols=2)

assert costs["jacrev"][0] < costs["jacfwd"][0] / 20, "one output: rows"
assert costs["jacfwd"][-1] < costs["jacrev"][-1] / 10, "one input: columns"
plt.show()

# %%
# Per-sample gradients
# --------------------
#
# ``grad`` makes the function that returns the gradient of one sample's loss with
# respect to all parameters; ``vmap`` maps it over the samples. The loop calls it once
# a sample. The mean over samples is the gradient that ``backward`` would give.

SAMPLES = 32
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(x)
params = {name: p.detach() for name, p in model.named_parameters()}
data, targets = random(SAMPLES, 1, 8), random(SAMPLES, 1, 1)


def loss(params, sample, target):
    """Return the loss of one sample."""
    return (functional_call(model, params, (sample,)) - target).square().sum()


def mapped():
    """Return the gradients of all samples from one call."""
    return vmap(grad(loss), in_dims=(None, 0, 0))(params, data, targets)


def loop():
    """Return the gradients of all samples, computed one by one."""
    each = [grad(loss)(params, *pair) for pair in zip(data, targets, strict=True)]
    return {name: torch.stack([g[name] for g in each]) for name in params}


together, single = mapped(), loop()
model(data).sub(targets).square().mean().backward()
for name, p in model.named_parameters():
    torch.testing.assert_close(together[name], single[name])
    torch.testing.assert_close(together[name].mean(0), p.grad)
    print(f"{name:9} {tuple(p.shape)!s:8} per sample {tuple(together[name].shape)}")

print(f"{'':6}  FLOPs  operators")
for way in (mapped, loop):
    print(f"{way.__name__:6}  {flops(way):5}  {calls(way):9}")
assert flops(mapped) == flops(loop), "the same arithmetic"
assert calls(mapped) < calls(loop) / 10, "in far fewer calls"

# %%
# A Hessian times a vector
# ------------------------
#
# The product needs no Hessian: push the vector forward through the gradient, or
# differentiate the gradient backward once more.

N = 64
first = random(N, HIDDEN)
x, v = random(1, N), random(1, N)


def energy(x):
    """Return a scalar function of 64 numbers."""
    return torch.tanh(x @ first).square().sum()


def full():
    """Build the Hessian, then multiply."""
    return (hessian(energy)(x).reshape(N, N) @ v[0]).reshape(1, N)


def forward_over_reverse():
    """Push the vector through the gradient."""
    return jvp(grad(energy), (x,), (v,))[1]


def double_backward():
    """Differentiate the gradient in the direction of the vector."""
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(energy(leaf), leaf, create_graph=True)
    return torch.autograd.grad(slope, leaf, v)[0]


once = flops(energy, x)
for way in (full, forward_over_reverse, double_backward):
    torch.testing.assert_close(way(), full())
    print(f"{way.__name__:20} {flops(way) / once:5.0f} forward passes")
assert flops(full) > 100 * once, "about two products for each column"
assert flops(forward_over_reverse) <= 8 * once, "independent of the size"
assert flops(double_backward) <= 8 * once
