"""
What moves with a model, and what stays behind?
===============================================

``Module.to`` moves what the module has registered: parameters with their gradients,
and buffers. It moves no other tensor, however close to the model it lives: not a
tensor in a plain attribute, not a layer in a list, not the state of an optimizer. The
``Parameter`` objects survive the move from the CPU to an accelerator, so an optimizer
that was built before still updates the right weights.

The script moves one module to another dtype, and its twin to another device, and
prints what became of each tensor. Both are the work of one method, ``Module._apply``.
Then it provokes the error that a forgotten tensor causes and prints it.
"""

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

# %%
# A second device on every machine
# --------------------------------
#
# ``check_available=True`` asks whether the accelerator can be used now. Without it the
# call says what torch was built for, which on a server without a GPU is still
# ``cuda``. Where there is no accelerator, the second device is ``meta``. It is a real
# device with real rules, but its tensors have a shape and no data.

accelerator = torch.accelerator.current_accelerator(check_available=True)
second = accelerator or torch.device("meta")
print("accelerator:  ", accelerator)
print("second device:", second)

# %%
# One module, six tensors
# -----------------------
#
# Three of them are registered: a parameter and two buffers. Three are not, and for
# each there is code in the wild that expects it to move. One backward pass gives the
# parameter a gradient, which is one more row of the table.


class Net(nn.Module):
    """Hold tensors in every place where people keep them."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))
        self.register_buffer("mean", torch.zeros(2))
        self.mask = nn.Buffer(torch.ones(2), persistent=False)
        self.scale = torch.ones(2)
        self.layers = [nn.Linear(2, 2, bias=False)]
        self.gain = nn.Parameter(torch.ones(2)) * 0.5

    def forward(self, x):
        """Return the sum of the product, so that there is a loss."""
        return ((x - self.mean) @ self.weight).sum()

    def tensors(self):
        """Return the tensors by the place that holds them."""
        return {
            "parameter": self.weight,
            "its gradient": self.weight.grad,
            "buffer": self.mean,
            "buffer, not saved": self.mask,
            "plain attribute": self.scale,
            "layer in a list": self.layers[0].weight,
            "product of a Parameter": self.gain,
        }


def moved(**target):
    """Return the tensors of a new Net before and after Net.to(**target)."""
    net = Net()
    net(torch.ones(1, 2)).backward()
    before = net.tensors()
    net.to(**target)
    return before, net.tensors()


to_double = moved(dtype=torch.float64)
to_second = moved(device=second)

columns = f"{'to(float64)':13}to({second.type})"
registered = ["parameter", "its gradient", "buffer", "buffer, not saved"]
print(" " * 24 + columns)
for place in to_double[0]:
    dtype_moved = to_double[1][place].dtype == torch.float64
    device_moved = to_second[1][place].device.type == second.type
    words = ["moved" if done else "-" for done in (dtype_moved, device_moved)]
    print(f"{place:24}{words[0]:13}{words[1]}")
    assert dtype_moved == (place in registered), f"{place}: dtype"
    assert device_moved == (place in registered), f"{place}: device"

# %%
# Whether ``self.gain`` is a parameter depends on the last thing that was done to it. A
# ``Parameter`` times a number is a plain tensor with a ``grad_fn``, so it escapes. The
# same holds for ``nn.Parameter(...).to(device)``, with a twist: ``to`` returns the
# ``Parameter`` itself if there is nothing to do. The bug exists on every device but
# the CPU.


class Gain(nn.Module):
    """Create a parameter the wrong way: move it after it was wrapped."""

    def __init__(self, device):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1)).to(device)


found = {str(d): len(list(Gain(d).parameters())) for d in ("cpu", second)}
print("parameters found:", found)
assert found == {"cpu": 1, str(second): 0}, "the move makes it a plain tensor"

# %%
# The optimizer keeps its parameters
# ----------------------------------
#
# The optimizer holds references to ``Parameter`` objects. ``Module.to`` puts new data
# into these objects where it can. It cannot on the way to ``meta``, whose tensors have
# another implementation: there the module gets new objects, and the optimizer is left
# with the old ones. A buffer that moves is always a new object.

print(f"{'same object after':24}{columns}")
same = {}
for place in ("parameter", "buffer"):
    same[place] = [move[0][place] is move[1][place] for move in (to_double, to_second)]
    print(f"{place:24}{same[place][0]!s:13}{same[place][1]}")

assert same["parameter"][0], "a move to another dtype keeps the Parameter"
assert same["buffer"] == [False, False], "buffers are replaced"
survives = second.type != "meta"
assert same["parameter"][1] == survives, "only meta replaces the Parameter"

# %%
# So an optimizer built before the move works after it, unless it has made state
# already. Adam makes its state in the first step, Adagrad in its constructor. State is
# not registered anywhere, so it stays as it was. After a change of dtype Adam's next
# step fails, while SGD goes on with the old momentum in float32 and says nothing.
# Loading the optimizer's own ``state_dict`` brings the state to the parameters.


def after_move(make_optimizer, steps_before):
    """Step, move the net to float64; return what a step does then, and the cure."""
    net = Net()
    optimizer = make_optimizer([net.weight])
    x = torch.ones(1, 2)
    for _ in range(steps_before):
        net(x).backward()
        optimizer.step()
    net.to(torch.float64)
    held = optimizer.param_groups[0]["params"][0]
    assert held is net.weight, "the optimizer holds the moved parameter"

    def state_dtype():
        state = {k: v for k, v in optimizer.state[held].items() if k != "step"}
        [dtype] = {value.dtype for value in state.values()}
        return dtype

    before = net.weight.detach().clone()
    net(x.double()).backward()
    try:
        optimizer.step()
    except RuntimeError as error:
        outcome = str(error)
    else:
        outcome = f"moves the weights, state in {state_dtype()}"
        assert not torch.equal(before, net.weight), "the step must move them"
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    assert not torch.equal(before, net.weight), "the step works after the cure"
    assert state_dtype() == torch.float64, "the cure converts the state"
    return outcome


def adam(params):
    """Return an optimizer that makes its state in the first step."""
    return torch.optim.Adam(params, lr=0.125)


def sgd(params):
    """Return an optimizer whose state is one momentum buffer."""
    return torch.optim.SGD(params, lr=0.125, momentum=0.5)


print("optimizer  steps before  the next step")
outcomes = {}
for make_optimizer, steps in ((adam, 0), (adam, 1), (sgd, 1)):
    name = make_optimizer.__name__
    outcomes[name, steps] = after_move(make_optimizer, steps)
    print(f"{name:11}{steps:<14}{outcomes[name, steps]}")

assert outcomes["adam", 0] == "moves the weights, state in torch.float64"
assert outcomes["adam", 1].startswith("expected dtype float"), "Adam mixes no dtypes"
assert outcomes["sgd", 1] == "moves the weights, state in torch.float32"
states = {
    name: len(getattr(torch.optim, name)([nn.Parameter(torch.ones(1))]).state)
    for name in ("SGD", "Adam", "AdamW", "Adagrad")
}
print("parameters with state before any step:", states)
assert states == {"SGD": 0, "Adam": 0, "AdamW": 0, "Adagrad": 1}

# %%
# The error that a forgotten tensor causes
# ----------------------------------------
#
# The left operand stays on the CPU, the right one is on the second device. Each
# operation checks for itself, if at all.

x = torch.ones(1, 4)
w = torch.ones(4, 4, device=second)
b = torch.ones(4, device=second)
operations = {
    "x + b": lambda: x + b,
    "torch.cat([x, w])": lambda: torch.cat([x, w]),
    "F.mse_loss(x, w[:1])": lambda: F.mse_loss(x, w[:1]),
    "F.linear(x, w, b)": lambda: F.linear(x, w, b),
    "x @ w": lambda: x @ w,
    "torch.tensor(2.0) * b": lambda: torch.tensor(2.0) * b,
}
messages = {}
for text, operation in operations.items():
    try:
        operation()
        messages[text] = ""
    except RuntimeError as error:
        messages[text] = str(error)
    print(f"{text:23}{messages[text] or 'no error'}")

for text in ("x + b", "torch.cat([x, w])", "F.mse_loss(x, w[:1])"):
    assert messages[text], f"{text} must refuse two devices"
assert not messages["torch.tensor(2.0) * b"], "a CPU scalar may join any device"

# %%
# The last line is allowed on purpose: a CPU tensor without dimensions counts as a
# number. If the second device is ``meta``, the line before it is a trap. The matrix
# product of ``meta`` works out a shape, allocates a result like its first operand, on
# the CPU, and computes nothing. No message says so. The deterministic mode fills new
# memory with NaN, which makes the omission visible.

if second.type == "meta":
    torch.use_deterministic_algorithms(True)
    product = x @ w
    torch.use_deterministic_algorithms(False)
    print("x @ w =", product)
    assert product.device.type == "cpu" and product.isnan().all(), "never written"

# %%
# Fake tensors have a device and a shape and need no GPU. Their addition raises the
# message that a GPU user reads, on any machine.

with FakeTensorMode():
    try:
        torch.ones(1, 4, device="cuda") + torch.ones(4)
    except RuntimeError as error:
        message = str(error)
print(f"RuntimeError: {message}")
assert message == (
    "Expected all tensors to be on the same device, "
    "but found at least two devices, cuda:0 and cpu!"
)

# %%
# A loop for every machine
# ------------------------
#
# The device is chosen once, the model is moved once, each batch is moved in the loop.
# A pinned batch is one that CUDA can copy by itself; on the CPU pinning has no use.
# The loss stays on the device until the end: reading it in each step would make the
# CPU wait for the accelerator in each step.

device = accelerator or torch.device("cpu")
generator = torch.Generator().manual_seed(0)
features = torch.randn(256, 4, generator=generator)
targets = features @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
loader = DataLoader(
    TensorDataset(features, targets),
    batch_size=32,
    pin_memory=device.type == "cuda",
)

torch.manual_seed(0)
model = nn.Linear(4, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses, devices = [], set()
for _ in range(5):
    total = torch.zeros((), device=device)
    for inputs, wanted in loader:
        inputs = inputs.to(device, non_blocking=True)
        wanted = wanted.to(device, non_blocking=True)
        loss = F.mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
        devices |= {inputs.device, wanted.device, model.weight.device}
    losses.append((total / len(loader)).item())

print("ran on:", device)
for epoch, value in enumerate(losses, start=1):
    print(f"epoch {epoch}  loss {value:9.6f}")
if accelerator is None:
    print("Not run here: copies and kernels that do not wait for each other.")

assert len(devices) == 1, "model, inputs and targets share one device"
assert losses[-1] < losses[0] / 1000, "and the model learns"
