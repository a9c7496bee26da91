"""
What is in the autograd graph, and when does it go?
===================================================

Every differentiable operation on a tensor that requires grad adds to a graph while it
runs, as a rule one node. The nodes are ordinary objects behind ``grad_fn``, so a
running program can count them, look inside them and draw them. This script makes five
drawings of small graphs and asserts what each shows: a shared result is one node,
Python decides which nodes exist, a node keeps only what its derivative needs,
``detach`` removes a path, and ``backward`` frees what the nodes keep while the nodes
stay.

In the drawings, blue boxes are leaf tensors, grey boxes are nodes, the green box is the
output and an orange box is a saved tensor that is not a leaf. Arrows point the way the
forward pass computed; ``backward`` walks them the other way.
"""

import torch
from torchviz import make_dot


def reachable(root):
    """Return the nodes that a backward pass from root visits."""
    found, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.append(node)
            waiting.extend(parent for parent, _ in node.next_functions)
    return found


def names(root):
    """Return the sorted names of the nodes that backward visits from root."""
    return sorted(type(node).__name__ for node in reachable(root))


# %%
# A shared result is one node
# ---------------------------
#
# The product ``h`` is computed once and used twice. Its node is drawn once, with two
# arrows leaving it. On the way back the two gradients that arrive there are added
# before the node runs: :math:`\partial loss / \partial h = 1 + 2h = 13`, so ``w``
# receives :math:`13 x = 26`. So the gradient is the sum over all paths.

w = torch.tensor(3.0, requires_grad=True)
x = torch.tensor(2.0, requires_grad=True)
h = w * x
loss = h + h**2

named = {"w": w, "x": x, "loss": loss}
shared = make_dot(loss, params=named)

add = loss.grad_fn
(left, _), (power, _) = add.next_functions
(below_power, _) = power.next_functions[0]
(w_grad,) = torch.autograd.grad(loss, w, retain_graph=True)
print("nodes:", *names(add), sep="\n  ")
print("d loss/dw =", w_grad.item())

assert left is below_power, "both uses of h must lead to the same node"
assert names(add).count("MulBackward0") == 1, "h must be one node"
assert w_grad == (1 + 2 * h) * x, "the gradients of both paths must add up"

# %%
# The two ``AccumulateGrad`` nodes belong to the leaves. They end every path: a leaf has
# no ``grad_fn``, and its ``AccumulateGrad`` is what adds to ``.grad``.

assert w.grad_fn is None and x.grad_fn is None, "a leaf has no grad_fn"
ends = [node for node in reachable(add) if not node.next_functions]
assert {type(node).__name__ for node in ends} == {"AccumulateGrad"}
assert {id(node.variable) for node in ends} == {id(w), id(x)}, "one for each leaf"

# %%
# Python decides which nodes exist
# --------------------------------
#
# The loop below is not in the graph. Only the divisions that ran are, so the same
# function gives two nodes for one input and four for another, and a different
# derivative: :math:`1/2` for each halving. The comparison ``value > 1`` leaves no trace
# either, because its result is a Boolean and has no derivative.


def halve_until_small(value):
    """Halve value until it is at most 1."""
    while value > 1:
        value = value / 2
    return value


print("start  divisions  result  derivative")
for start, expected in [(3.0, 2), (12.0, 4)]:
    leaf = torch.tensor(start, requires_grad=True)
    result = halve_until_small(leaf)
    divisions = names(result.grad_fn).count("DivBackward0")
    (slope,) = torch.autograd.grad(result, leaf)
    print(f"{start:5}  {divisions:9}  {result.item():6}  {slope.item():10}")
    assert divisions == expected, "one node for each division that ran"
    assert slope == 0.5**divisions, "each halving halves the derivative"

after_twelve = make_dot(result, params={"start": leaf, "result": result})

# %%
# A node keeps what its derivative needs
# --------------------------------------
#
# What a node saved is in its ``_saved_*`` attributes. The derivative of ``x + 1`` needs
# no tensor at all. That of ``x * 3`` needs the 3 and not ``x``; that of ``x * x`` needs
# both factors. ``exp`` and ``relu`` save their result, from which their derivative can
# be computed, and not their input.

operations = {
    "x + 1": lambda x: x + 1,
    "x * 3": lambda x: x * 3,
    "x * x": lambda x: x * x,
    "x ** 2": lambda x: x**2,
    "x.exp()": torch.exp,
    "x.relu()": torch.relu,
}


def saved(node):
    """Return what a node keeps for its derivative, by name."""
    fields = [name for name in dir(node) if name.startswith("_saved_")]
    kept = {name.removeprefix("_saved_"): getattr(node, name) for name in fields}
    return {name: value for name, value in kept.items() if value is not None}


print(f"{'operation':11}{'node':15}saved")
for text, operation in operations.items():
    node = operation(x).grad_fn
    kept = ", ".join(f"{name} = {value:.6g}" for name, value in saved(node).items())
    print(f"{text:11}{node.name():15}{kept}")

assert saved((x + 1).grad_fn) == {"alpha": 1}, "x + 1 needs no tensor"
assert set(saved((x * 3).grad_fn)) == {"other"}, "x * 3 needs the 3 alone"
assert set(saved((x * x).grad_fn)) == {"self", "other"}, "x * x needs both factors"
assert set(saved(x.exp().grad_fn)) == {"result"}, "exp is its own derivative"
assert set(saved(x.relu().grad_fn)) == {"result"}, "relu needs the sign of its result"

# %%
# Drawn into the first graph, each saved tensor hangs on the node that keeps it by a
# line without an arrowhead. The product keeps ``w`` and ``x``, each for the derivative
# with respect to the other; the power keeps ``h``, the orange ``self``. Saving copies
# nothing: the memory is the memory of the tensor itself. What it costs is that this
# memory cannot be released until backward has used it, or the graph is gone.

keeps = make_dot(loss, params=named, show_saved=True)

product = h.grad_fn
assert product._saved_self.data_ptr() == w.data_ptr(), "saved without a copy"
assert product._saved_other.data_ptr() == x.data_ptr(), "saved without a copy"
assert power._saved_self.data_ptr() == h.data_ptr(), "saved without a copy"

# %%
# ``detach`` removes a path
# -------------------------
#
# The value below is the same as before, to the bit. But the square is computed from
# ``h.detach()``, which shares the memory of ``h`` and has no ``grad_fn``. A power of it
# alone is not recorded, so it has no node, and its share of the gradient, 24 of the 26,
# is gone without a message.

cut = h + h.detach() ** 2
without_power = make_dot(cut, params={"w": w, "x": x, "cut": cut})

(w_grad_cut,) = torch.autograd.grad(cut, w, retain_graph=True)
print("value:   ", loss.item(), "and", cut.item())
print("gradient:", w_grad.item(), "and", w_grad_cut.item())

assert cut == loss, "detach changes no value"
assert h.detach().data_ptr() == h.data_ptr(), "detach copies nothing"
assert "PowBackward0" not in names(cut.grad_fn), "the square is not recorded"
assert w_grad_cut == x, "only the direct path is left"

# %%
# ``backward`` frees what the nodes keep
# --------------------------------------
#
# After ``backward`` the leaves hold their gradients. The nodes and the arrows are the
# same as before, and the graph can still be drawn.

before = reachable(add)
loss.backward()
after_backward = make_dot(loss, params=named)

print("w.grad =", w.grad.item(), " x.grad =", x.grad.item())
assert reachable(add) == before, "backward removes or replaces no node"
assert w.grad == 26 and x.grad == 39

# %%
# What the lines without arrowheads showed is gone. A drawing that asks the nodes for it
# raises the error that a second ``backward`` raises, and the message names both causes.
# The addition saved no tensor and has nothing to lose, so a graph of additions alone
# can be walked twice.

try:
    make_dot(loss, params=named, show_saved=True)
except RuntimeError as error:
    message = str(error)
print(f"RuntimeError: {message}")
assert message.startswith("Trying to backward through the graph a second time")

total = w + x
total.backward()
total.backward()
assert w.grad == 26 + 2, "two more passes added 1 each"
