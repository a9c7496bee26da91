"""
Clipping saves a run that explodes, and no run that meets a NaN
===============================================================

A recurrent network learns the mean of a sequence of 40 numbers. Its gradient passes the
same matrix 40 times, and is hundreds of times as long in the first steps as later. At a
rate that suits the later ones, training without clipping ends in NaN; at a tenth of it,
two steps kill the network for good. With ``clip_grad_norm_`` it learns at either.
Without, it learns at a hundredth.

A NaN that comes from the data is another matter: clipping by the norm hands it on to
every parameter. Six ways to make a step from such a batch are compared at the end.
"""

import math

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, get_total_norm

device = torch.accelerator.current_accelerator(check_available=True)
device = device or torch.device("cpu")
torch.set_num_threads(1)  # the matrices are small
print(f"torch {torch.__version__} on {device}")

# %%
# The same run, with and without
# ------------------------------
#
# The recurrent matrix starts as the identity, so the hidden state adds up its inputs.
# The threshold is 1, the optimizer plain SGD. ``get_total_norm`` measures without
# clipping; ``max_norm=math.inf`` would make the gradients NaN once the norm overflows.
#
# At 0.1 the loss leaves the frame in the first step. At 0.01 two steps throw the
# weights so far that no unit is left alive: each ReLU gives 0 for every input, its
# gradient is 0, and only the bias of the last layer still learns.

LENGTH, WIDTH, STEPS = 40, 16, 150


class Model(nn.Module):
    """An RNN with ReLU, and a linear layer on its last output."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(1, WIDTH, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(WIDTH, 1)
        nn.init.eye_(self.rnn.weight_hh_l0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return one number for each sequence."""
        return self.head(self.rnn(x)[0][:, -1])


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 32 sequences, and the mean of each."""
    x = torch.rand(32, LENGTH, 1).to(device)
    return x, x.mean(1)


def gradients(module: nn.Module) -> list[torch.Tensor]:
    """Return the gradients of the module's parameters."""
    return [p.grad for p in module.parameters()]


def train(clip: bool, lr: float) -> dict[str, list[float]]:
    """Return of each step the loss, the norms, and the norm in the RNN alone."""
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    log = {"loss": [], "before": [], "after": [], "rnn": []}
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        log["loss"].append(loss.item())
        log["before"].append(get_total_norm(gradients(model)).item())
        log["rnn"].append(get_total_norm(gradients(model.rnn)).item())
        if clip:
            returned = clip_grad_norm_(model.parameters(), 1.0)
            assert returned.item() == log["before"][-1], "it returns the norm before"
        log["after"].append(get_total_norm(gradients(model)).item())
        optimizer.step()
    return log


runs = {(lr, clip): train(clip, lr) for lr in (0.1, 0.01) for clip in (True, False)}
slow = train(False, 0.001)

figure, axis = plt.subplots(figsize=(4.5, 3.4), layout="tight")
for (lr, clip), log in runs.items():
    label = f"rate {lr}, " + ("clipped" if clip else "not clipped")
    numbers = [min(loss, 1e30) for loss in log["loss"] if not math.isnan(loss)]
    axis.plot(numbers, "-" if clip else "--o", markersize=2, label=label)
    print(f"{label:23} loss {numbers[0]:.2g} -> {log['loss'][-1]:.2g}")
print(f"rate 0.001, not clipped loss {slow['loss'][0]:.2g} -> {slow['loss'][-1]:.2g}")
axis.set_yscale("log")
axis.set_ylim(1e-3, 1e7)
axis.set_xlabel("step")
axis.set_ylabel("mean squared error")
axis.set_title("The same run with and without clipping")
axis.legend()
plt.show()

clipped = runs[0.1, True]
for log in clipped, runs[0.01, True], slow:
    assert max(log["loss"][-10:]) < log["loss"][0] / 10, "these three learn"
loss = runs[0.1, False]["loss"]
assert not loss[1] < 1e7, "0.1: out of the frame in the first step"
assert math.isnan(loss[-1]), "0.1: NaN in the end"
loss, rnn = runs[0.01, False]["loss"], runs[0.01, False]["rnn"]
assert rnn[0] > 0 and not any(rnn[2:]), "0.01: the RNN is dead after two steps"
assert loss[2] > loss[-1] > 10 * loss[0], "0.01: only the bias still learns"

# %%
# What is returned is the norm before
# -----------------------------------
#
# Each point is a step of the clipped run. The function returned what stands on the
# horizontal axis; the update used what stands on the vertical one. Below the threshold
# nothing is changed, so a log of the returned norms says how often the clip bites.

figure, axis = plt.subplots(figsize=(4.5, 3.2), layout="tight")
axis.plot(clipped["before"], clipped["after"], "o", markersize=3)
axis.axhline(1.0, linestyle=":", label="max_norm")
axis.set_xscale("log")
axis.set_yscale("log")
axis.set_xlabel("norm before clipping, as returned")
axis.set_ylabel("norm after clipping")
axis.set_title("Gradient norm before and after clipping")
axis.legend()
plt.show()

bites = sum(norm > 1 for norm in clipped["before"])
ordered = sorted(clipped["before"])
print(f"the clip bites in {bites} of {STEPS} steps")
print(f"norm returned: median {ordered[STEPS // 2]:.2g}, largest {ordered[-1]:.3g}")
for before, after in zip(clipped["before"], clipped["after"], strict=True):
    assert math.isclose(after, min(before, 1.0), rel_tol=1e-4)
assert 0 < bites < STEPS, "some steps are clipped, and some are not"
assert ordered[-1] > 10 * ordered[STEPS // 2], "the largest is far from the usual"

# %%
# One NaN in the batch
# --------------------
#
# The head's bias gets a gradient that is NaN; all others are sound. How many of the
# model's parameters are NaN after one step?


def norm_and_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Clip by the norm, and step."""
    clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


def value_and_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Clip by value, and step."""
    clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()


def raise_or_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Step unless the norm is refused."""
    clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.step()


def step_if_finite(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Ask the returned norm first."""
    if clip_grad_norm_(model.parameters(), 1.0).isfinite():
        optimizer.step()


def zero_and_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace what is not finite by zero, clip, and step."""
    for p in model.parameters():
        p.grad.nan_to_num_(0.0, 0.0, 0.0)
    norm_and_step(model, optimizer)


WAYS = {
    "no clipping": lambda model, optimizer: optimizer.step(),
    "clip_grad_value_": value_and_step,
    "clip_grad_norm_": norm_and_step,
    "error_if_nonfinite": raise_or_step,
    "step if norm is finite": step_if_finite,
    "nan_to_num_, then clip": zero_and_step,
}

spoilt = {}
for name, way in WAYS.items():
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    x, y = batch()
    F.mse_loss(model(x), y).backward()
    model.head.bias.grad.fill_(math.nan)
    note = ""
    try:
        way(model, optimizer)
    except RuntimeError as error:
        note = "raised " + type(error).__name__
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    spoilt[name] = int(weights.isnan().sum())
    print(f"{name:23} {spoilt[name]:3} of {len(weights)} NaN  {note}".rstrip())

assert spoilt["no clipping"] == spoilt["clip_grad_value_"] == 1, "one is lost"
assert spoilt["clip_grad_norm_"] == len(weights), "by the norm, all are"
for name in list(WAYS)[3:]:
    assert spoilt[name] == 0, f"{name}: the model is as it was, or better"
