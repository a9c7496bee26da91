"""
What does it cost to differentiate a gradient?
==============================================

With ``create_graph=True`` the backward pass is recorded like any computation, so the
gradient has a graph and can be differentiated again. This script draws that graph,
walks a cubic down to its last derivative, and shows which functions lose the graph or
send back zeros on the way. It counts what a gradient penalty saves and computes beyond
plain training, and finds the step size at which gradient descent diverges from
Hessian-vector products alone.
"""

import matplotlib.pyplot as plt
import torch
from torch.autograd import grad
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode
from torchviz import make_dot

device = torch.accelerator.current_accelerator(check_available=True)
if device is None or device.type == "mps":  # MPS has no float64
    device = torch.device("cpu")
torch.manual_seed(0)
print(f"torch {torch.__version__} on {device}")


def nodes(result):
    """Return the nodes that a backward pass from result visits."""
    found, waiting = [], [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.append(node)
            waiting.extend(below for below, _ in node.next_functions)
    return found


# %%
# A gradient with a graph
# -----------------------
#
# The derivative of :math:`x^3` is computed as :math:`g \cdot 3 x^2`, with :math:`g = 1`
# from above. Recorded, that is a power and two products, and they lead to the same
# leaf. The node of the forward pass is not among them: the gradient was computed from
# what that node had saved, which is ``x`` itself.

x = torch.tensor(2.0, requires_grad=True)
cube = x**3
(slope,) = grad(cube, x, create_graph=True)
graph_of_slope = make_dot(slope, params={"x": x, "slope": slope})

print("without create_graph:", grad(x**3, x)[0])
print("with create_graph:   ", slope)
assert not grad(x**3, x)[0].requires_grad, "as a rule a gradient is a constant"
assert slope == 12 and slope.requires_grad
assert cube.grad_fn not in nodes(slope), "the first graph is not part of the second"

# %%
# Four derivatives of a cubic
# ---------------------------
#
# Each derivative can be differentiated in turn. Written as a power, the graph keeps its
# size, as the derivative of a power is a power. Written as a product of three, it
# grows, since the product rule makes two terms of one. And the third derivative, 6 both
# times, has a graph in one spelling only: torch records a power of 0 like any other,
# but the product has run out of factors.

print("              order  value  nodes")
spellings = {"x**3": lambda x: x**3, "x * x * x": lambda x: x * x * x}
sizes = {}
for name, function in spellings.items():
    result, sizes[name] = function(x), []
    for order in range(5):
        sizes[name].append(len(nodes(result)))
        print(f"{name:12}  {order:5}  {result.item():5}  {sizes[name][-1]:5}")
        assert result.item() == [8, 12, 12, 6, 0][order]
        if not result.requires_grad:
            break
        (result,) = grad(result, x, create_graph=True)

assert sizes["x**3"] == [2, 4, 4, 4, 0], "the graph of a power keeps its size"
assert sizes["x * x * x"] == [3, 8, 14, 0], "the product rule doubles terms"

# %%
# No graph, or a graph of zeros
# -----------------------------
#
# A second derivative that is zero comes in two kinds. If the backward pass uses ``x``
# at most through a mask, which has no history, the gradient is a constant without a
# graph, and asking again raises. If it computes with the sign of ``x`` or with the
# result, there is a graph, and it sends back zeros. Three spellings of ReLU are of both
# kinds.

functions = {
    "3 * x": lambda x: 3 * x,
    "x.clamp(min=0)": lambda x: x.clamp(min=0),
    "where(x > 0, x, 0)": lambda x: torch.where(x > 0, x, 0.0),
    "x.relu()": torch.relu,
    "x.abs()": torch.abs,
    "F.softplus(x)": F.softplus,
    "x.exp()": torch.exp,
}
print(f"{'function':20}{'first':>7}  second")
second = {}
for name, function in functions.items():
    (first,) = grad(function(x), x, create_graph=True)
    if first.requires_grad:
        second[name] = grad(first, x)[0].item()
        print(f"{name:20}{first.item():7.4f}  {second[name]:.4f}")
    else:
        second[name] = None
        print(f"{name:20}{first.item():7.4f}  no graph")

assert second["3 * x"] is second["x.clamp(min=0)"] is None
assert second["x.relu()"] == second["x.abs()"] == 0
assert second["F.softplus(x)"] > 0.1, "a smooth activation bends"

# %%
# Asking again for the derivative of a constant raises.

(first,) = grad(3 * x, x, create_graph=True)
try:
    grad(first, x)
except RuntimeError as error:
    message = f"{type(error).__name__}: {error}"
print(message)
assert "does not require grad" in message

# %%
# What a gradient penalty saves and computes
# ------------------------------------------
#
# The penalty asks that the slope of the output with respect to the input has length 1.
# Its first backward pass costs one product a layer, since only the input's gradient is
# asked for. The second walks back over both, with two products for each recorded one.
# In forward passes that is 1 + 1 + 2 + 2, against up to 3 for a plain loss. Of each
# ``tanh`` the forward pass saves the result. The recorded pass saves two more tensors,
# the gradient that enters the ``tanh`` on the way back and the one that leaves. Counted
# are the products, and the bytes that autograd saves, without parameters and input.

BATCH, WIDTH = 64, 64


def weights_of(depth):
    """Return the matrices of a multilayer perceptron with one output."""
    shapes = [(WIDTH, WIDTH)] * depth + [(WIDTH, 1)]
    scale = WIDTH**-0.5
    return [(torch.randn(s, device=device) * scale).requires_grad_() for s in shapes]


def outputs(weights, points):
    """Return the network's output for each point."""
    for weight in weights[:-1]:
        points = torch.tanh(points @ weight)
    return points @ weights[-1]


def plain_loss(weights, points):
    """Return a loss on the outputs."""
    return outputs(weights, points).square().mean()


def penalty(weights, points):
    """Return the mean squared distance of the slopes' lengths from 1."""
    (slopes,) = grad(outputs(weights, points).sum(), points, create_graph=True)
    return (slopes.norm(dim=1) - 1).square().mean()


def saved_kib(loss, weights, points):
    """Return the KiB that autograd saves while loss is computed."""
    known = {tensor.untyped_storage().data_ptr() for tensor in [points, *weights]}
    alive = {}  # holds the tensors, so that no address is used twice

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in known:
            alive[tensor.untyped_storage().data_ptr()] = tensor.detach()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss(weights, points)
    return sum(tensor.untyped_storage().nbytes() for tensor in alive.values()) / 1024


def step(loss, weights, points):
    """Compute a loss and its gradients."""
    loss(weights, points).backward()


def flops(function, *args):
    """Return the floating-point operations of the matrix products."""
    with FlopCounterMode(display=False) as counter:
        function(*args)
    return counter.get_total_flops()


depths = [1, 2, 4, 8]
plain, with_penalty = [], []
print("       saved KiB       forward passes\ndepth  loss  penalty  loss  penalty")
for depth in depths:
    weights = weights_of(depth)
    points = torch.randn(BATCH, WIDTH, device=device, requires_grad=True)
    plain.append(saved_kib(plain_loss, weights, points))
    with_penalty.append(saved_kib(penalty, weights, points))

    once = flops(outputs, weights, points)
    usual = flops(step, plain_loss, weights, points.detach()) / once
    twice = flops(step, penalty, weights, points) / once
    kib = f"{plain[-1]:4.0f}  {with_penalty[-1]:7.0f}"
    print(f"{depth:5}  {kib}  {usual:4.1f}  {twice:7.1f}")
    assert with_penalty[-1] > 3 * plain[-1], "1 a layer forward, and 2 on the way back"
    assert usual <= 3, "forward, and at most two products a layer on the way back"
    assert abs(twice - 6) < 0.1, "forward 1, backward 1, and 2 for each of them"

fig, ax = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
places = range(len(depths))
ax.bar(places, plain, tick_label=depths, label="saved for the loss")
added = [both - loss for both, loss in zip(with_penalty, plain, strict=True)]
ax.bar(places, added, bottom=plain, label="added by the penalty")
ax.set(xlabel="hidden layers", ylabel="saved tensors (KiB)")
ax.set_title("A gradient penalty saves a multiple of plain training")
fig.legend(loc="outside lower center", ncols=2)
plt.show()

# %%
# The Hessian's largest eigenvalue, without a Hessian
# ---------------------------------------------------
#
# The gradient of ``slope · v`` is the Hessian times ``v``, for the price of one more
# backward pass. Repeated and normalised, the product turns ``v`` to the direction of
# the strongest curvature :math:`\lambda`. Gradient descent with a step above
# :math:`2 / \lambda` overshoots in that direction more each time, and diverges. The
# loss is that of a linear regression, whose Hessian is the same everywhere; for a
# network the same lines measure the curvature at the current weights.

inputs = torch.randn(256, 20, device=device, dtype=torch.float64)
inputs *= torch.linspace(0.2, 2, 20, device=device, dtype=torch.float64)
targets = inputs.sum(1)


def loss_at(weights):
    """Return the loss of a linear regression."""
    return (inputs @ weights - targets).square().mean()


weights = torch.zeros(20, device=device, dtype=torch.float64, requires_grad=True)
(slope,) = grad(loss_at(weights), weights, create_graph=True)
v = torch.ones_like(weights)
for _ in range(100):
    (product,) = grad(slope, weights, v, retain_graph=True)
    curvature = product.norm()
    v = product / curvature

hessian = torch.autograd.functional.hessian(loss_at, weights.detach())
largest = torch.linalg.eigvalsh(hessian)[-1]
print(f"by products {curvature:.4f}, from the whole Hessian {largest:.4f}")
torch.testing.assert_close(curvature, largest, rtol=1e-3, atol=0)


def descend(rate, steps=60):
    """Return the losses of gradient descent from zero."""
    position, losses = torch.zeros_like(weights, requires_grad=True), []
    for _ in range(steps):
        loss = loss_at(position)
        losses.append(loss.item())
        (direction,) = grad(loss, position)
        position = (position - rate * direction).detach().requires_grad_()
    return losses


fig, ax = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
runs = {factor: descend(factor / curvature.item()) for factor in (1.0, 1.9, 2.1)}
for (factor, losses), style in zip(runs.items(), ("-", "--", ":"), strict=True):
    ax.semilogy(losses, style, label=f"{factor} / λ")
ax.set(xlabel="step", ylabel="loss (log scale)")
ax.set_title("Gradient descent diverges above 2 / λ")
fig.legend(loc="outside lower center", ncols=3, title="step size")
plt.show()

assert runs[1.9][-1] < runs[1.9][0] / 100, "below the bound it converges"
assert runs[2.1][-1] > 100 * runs[2.1][0], "above it diverges"
