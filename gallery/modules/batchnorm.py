"""
What BatchNorm remembers
========================

In training, BatchNorm normalises with the batch and moves two running averages. In
evaluation, the averages are all it has. This script watches how fast they reach the
true mean and variance for several momenta, and how they follow data that moves; what
small batches make of a sample; and how far evaluation falls behind training when the
averages had too few updates.

Claims: the batch ``n`` before the last weighs ``momentum * (1 - momentum) ** n``, and
the starting values weigh ``(1 - momentum) ** n`` after ``n`` batches. A batch of two
keeps little more than an order. One pass of recalibration mends what too few updates
left wrong.
"""

import copy
import math

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

device = torch.accelerator.current_accelerator(check_available=True)
device = device or torch.device("cpu")
torch.manual_seed(0)
torch.set_num_threads(1)  # small tensors: more threads would wait for each other
print(f"torch {torch.__version__} on {device}")

# %%
# Four momenta, and data that moves
# ---------------------------------
# Batches of 32 from a normal distribution with mean 4 and deviation 3. After 150
# batches the data changes, as it does in a network whose earlier layers are trained:
# mean 10, deviation 1. With ``momentum=None`` all batches weigh the same.

MOMENTA = (0.01, 0.1, 0.5, None)
STEPS, CHANGE = 300, 150
MEAN, VARIANCE = (4.0, 10.0), (9.0, 1.0)


def follow(momentum: float | None, batches: list[Tensor]) -> list[tuple[float, float]]:
    """Return the running mean and variance before the first batch and after each."""
    norm = nn.BatchNorm1d(1, momentum=momentum, affine=False, device=device)
    path = [(0.0, 1.0)]
    for batch in batches:
        norm(batch)
        path.append((norm.running_mean.item(), norm.running_var.item()))
    return path


stream = []
for step in range(STEPS):
    moved = step >= CHANGE
    noise = torch.randn(32, 1, device=device)
    stream.append(MEAN[moved] + math.sqrt(VARIANCE[moved]) * noise)
paths = {momentum: follow(momentum, stream) for momentum in MOMENTA}

figure, axes = plt.subplots(2, 1, figsize=(5.5, 5.5), sharex=True, layout="constrained")
for panel, (truth, name) in enumerate(((MEAN, "mean"), (VARIANCE, "variance"))):
    for momentum, path in paths.items():
        label = f"momentum {momentum}"
        axes[panel].plot([values[panel] for values in path], label=label)
    axes[panel].plot(
        [0, CHANGE, CHANGE, STEPS],
        [truth[0], truth[0], truth[1], truth[1]],
        color=plt.rcParams["axes.edgecolor"],
        linestyle="--",
        label="truth",
    )
    axes[panel].set_ylabel(f"running {name}")
axes[1].set_xlabel("training forwards")
figure.suptitle("Running statistics, while the data changes once")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)

print(f"{'momentum':>8}{'after 10':>10}{'after 150':>11}{'after 300':>11}   mean")
for momentum, path in paths.items():
    cells = [path[n][0] for n in (10, CHANGE, STEPS)]
    print(f"{momentum!s:>8}{cells[0]:10.2f}{cells[1]:11.2f}{cells[2]:11.2f}")

# %%
# A small momentum averages over many batches and starts slowly: at 0.01, a fifth of the
# starting value is left after 150 batches. A large one trembles with each batch. The
# equal mean is the best of all while the data stands still, and useless once it moved:
# half of it are batches that no longer count. The default, 0.1, forgets the old data
# within some 40 batches.

for momentum in (0.01, 0.1, 0.5):
    weights = [
        momentum * (1 - momentum) ** (CHANGE - 1 - step) for step in range(CHANGE)
    ]
    means = [batch.mean().item() for batch in stream[:CHANGE]]
    by_hand = sum(w * mean for w, mean in zip(weights, means, strict=True))
    assert abs(sum(weights) - (1 - (1 - momentum) ** CHANGE)) < 1e-9
    assert abs(by_hand - paths[momentum][CHANGE][0]) < 1e-3, "not the weights claimed"

error = {m: abs(path[CHANGE][0] - MEAN[0]) for m, path in paths.items()}
late = {m: abs(path[STEPS][0] - MEAN[1]) for m, path in paths.items()}
assert error[None] < 0.3 < error[0.01], "the equal mean must be near, 0.01 far"
assert late[0.1] < 0.3 and late[None] > 2.5, "the default must follow, the mean not"

# %%
# Small batches
# -------------
# The sample 1 among random others, mean 0 and variance 1: in evaluation with the true
# statistics it would come out as 1. The figure shows what it becomes in training.

SIZES = (2, 4, 8, 16, 32, 64, 128)
outputs, biased, unbiased = [], [], []
for size in SIZES:
    batches = torch.randn(size, 2000, device=device)  # each column is a batch
    batches[0] = 1.0
    norm = nn.BatchNorm1d(2000, momentum=1.0, affine=False, device=device)
    outputs.append(norm(batches)[0])
    noise = torch.randn(size, 2000, device=device)
    norm(noise)
    unbiased.append(norm.running_var.mean().item())
    biased.append(noise.var(dim=0, correction=0).mean().item())

low, middle, high = (
    [output.quantile(q).item() for output in outputs] for q in (0.05, 0.5, 0.95)
)
figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
axes.fill_between(SIZES, low, high, alpha=0.3, label="90% of the batches")
axes.plot(SIZES, middle, marker="o", label="median")
axes.set_xscale("log", base=2)
axes.set_xticks(SIZES, [str(size) for size in SIZES])
axes.set(xlabel="samples in the batch", ylabel="output for the input 1")
axes.set_title("What the same sample becomes in training")
axes.legend()

print(f"{'batch':>5}{'5%':>8}{'95%':>8}{'biased':>9}{'running_var':>13}")
for row in zip(SIZES, low, high, biased, unbiased, strict=True):
    print("{:5}{:8.2f}{:8.2f}{:9.2f}{:13.2f}".format(*row))

# %%
# In a batch of two the sample becomes 1 or −1, depending on which of the two is larger.
# That noise is why training differs from evaluation most where batches are small. The
# biased variance, which normalises the batch, falls short of 1 by a factor of
# (n − 1)/n; ``running_var``, which takes the unbiased one, does not.

assert (outputs[0].abs() > 0.9).float().mean() > 0.85, "two values: plus or minus one"
assert high[-1] - low[-1] < 0.5 < high[1] - low[1], "larger batches must be quieter"
for size, small, right in zip(SIZES, biased, unbiased, strict=True):
    assert abs(small - (size - 1) / size) < 0.1, "biased is not (n - 1)/n"
    assert abs(right - 1) < 0.15, "running_var is biased"

# %%
# Too few updates, and the cure
# -----------------------------
# A network learns to square a number from inputs around 8. Its training loss is
# measured in training mode, with batch statistics, and once more in evaluation mode;
# then ``update_bn`` recomputes the averages of a copy in one pass.

x = 8 + torch.rand(512, 1, device=device) * 2 - 1
y = (x - 8) ** 2
batches = x.split(128)


torch.manual_seed(1)
linear = nn.Linear(1, 32, bias=False)  # the norm behind it would cancel a bias
tail = nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1)
model = nn.Sequential(nn.BatchNorm1d(1, affine=False), linear, *tail).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)


def train(epochs: int) -> None:
    """Train `model` for some epochs of four updates each."""
    model.train()
    for _ in range(epochs):
        for batch, target in zip(batches, y.split(128), strict=True):
            optimizer.zero_grad()
            F.mse_loss(model(batch), target).backward()
            optimizer.step()


@torch.no_grad()
def loss_of(model: nn.Module, training: bool) -> float:
    """Return the loss over all data, without moving the averages of `model`."""
    model = copy.deepcopy(model).train(training)
    return F.mse_loss(torch.cat([model(batch) for batch in batches]), y).item()


table, updates = {}, 0
print(f"{'updates':>7}{'train()':>10}{'eval()':>10}{'recalibrated':>14}")
for epochs in (2, 2, 4, 16):
    train(epochs)
    updates += 4 * epochs
    mended = copy.deepcopy(model)
    update_bn(batches, mended)
    row = loss_of(model, True), loss_of(model, False), loss_of(mended, False)
    print("{:7}{:10.4f}{:10.4f}{:14.4f}".format(updates, *row))
    table[updates] = row

# %%
# Training goes well from the start, while evaluation is off until the averages have
# arrived. The weights need nothing: with recomputed averages they evaluate about as
# they train.

early, final = table[8], table[updates]
assert early[1] > 5 * early[0], "with 8 updates, evaluation must be far off"
for training, _, mended in table.values():
    assert abs(mended - training) < 0.02 + 0.2 * training, "recalibration did not help"
assert final[1] < 0.05, "in the end the averages must have arrived"
