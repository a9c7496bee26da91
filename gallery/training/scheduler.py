"""
What six schedulers do to the learning rate
===========================================

A scheduler is a function of the number of its calls. Drawn here are six of them over
the same 60 updates, a warm-up joined to a cosine by ``SequentialLR``, and what becomes
of two schedules when their length is given in epochs and ``step()`` is called in each
batch: the cosine climbs again and again, the decay is all but over after one epoch.

The rates are read from the optimizer, where each update reads them.
"""

import math

import matplotlib.pyplot as plt
import torch
from torch.optim import lr_scheduler

device = torch.accelerator.current_accelerator(check_available=True)
device = device or torch.device("cpu")
print(f"torch {torch.__version__} on {device}")

EPOCHS, BATCHES = 6, 10
UPDATES = EPOCHS * BATCHES


def rates(make, every: int = 1, updates: int = UPDATES) -> list[float]:
    """Return the rate of each update; the scheduler steps after every `every`-th."""
    weight = torch.nn.Parameter(torch.zeros(1, device=device))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scheduler = make(optimizer)
    used = []
    for update in range(1, updates + 1):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if update % every == 0:
            scheduler.step()
    return used


# %%
# Six schedules over 60 updates
# -----------------------------
#
# Each starts with an optimizer whose rate is 1, and is stepped after each update.
# ``OneCycleLR`` and ``LinearLR`` write another rate before the first one: the
# constructor of a scheduler steps, too.

SCHEDULES = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, step_size=20, gamma=0.5),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, gamma=0.95),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=30),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=UPDATES),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(
        o, T_0=20
    ),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 1.0, total_steps=UPDATES),
}
drawn = {name: rates(make) for name, make in SCHEDULES.items()}

figure, axes = plt.subplots(3, 2, figsize=(4.5, 5.5), sharex=True, sharey=True)
for axis, (name, used) in zip(axes.flat, drawn.items(), strict=True):
    axis.plot(used)
    axis.set_title(name, fontsize="small")
for axis in axes[-1]:
    axis.set_xlabel("update")
for axis in axes[:, 0]:
    axis.set_ylabel("learning rate")
figure.suptitle("Six schedules, stepped after each update")
figure.tight_layout()
plt.show()

print(f"{'':27} {'first':>6} {'last':>6}")
for name, used in drawn.items():
    print(f"{name:27} {used[0]:6.3f} {used[-1]:6.3f}")

assert drawn["StepLR"] == [1.0] * 20 + [0.5] * 20 + [0.25] * 20
for k in range(UPDATES):
    assert math.isclose(drawn["ExponentialLR"][k], 0.95**k)
    cosine = (1 + math.cos(math.pi * k / UPDATES)) / 2
    assert math.isclose(drawn["CosineAnnealingLR"][k], cosine)
    restarted = (1 + math.cos(math.pi * (k % 20) / 20)) / 2
    assert math.isclose(drawn["CosineAnnealingWarmRestarts"][k], restarted)
changed = [name for name, used in drawn.items() if used[0] != 1.0]
assert changed == ["LinearLR", "OneCycleLR"], "these write a first rate of their own"

# %%
# Warm-up, then cosine
# --------------------
#
# The warm-up multiplies the rate up from a tenth to 1 in its first ten steps, the
# cosine takes over at the milestone. It counts from its own start, so its length is
# what is left: 50. With all 60, the cosine is cut off above zero.

WARM_UP = BATCHES


def joined(length: int):
    """Return what makes a warm-up followed by a cosine over `length` steps."""

    def make(optimizer):
        warm_up = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=WARM_UP)
        cosine = lr_scheduler.CosineAnnealingLR(optimizer, T_max=length)
        return lr_scheduler.SequentialLR(
            optimizer, [warm_up, cosine], milestones=[WARM_UP]
        )

    return make


right, long = rates(joined(UPDATES - WARM_UP)), rates(joined(UPDATES))

figure, axis = plt.subplots(figsize=(4.5, 3), layout="tight")
axis.plot(right, label=f"T_max={UPDATES - WARM_UP}")
axis.plot(long, "--", label=f"T_max={UPDATES}")
axis.set_xlabel("update")
axis.set_ylabel("learning rate")
axis.set_title("Warm-up and cosine joined by SequentialLR")
axis.legend()
plt.show()

print(f"last rate: {right[-1]:.4f} and {long[-1]:.4f}")
for k in range(WARM_UP):
    assert math.isclose(right[k], 0.1 + 0.9 * k / WARM_UP)
assert math.isclose(right[WARM_UP], 1.0), "the cosine starts from the full rate"
assert right[-1] < 0.001 < 0.05 < long[-1], "too long a cosine is cut off"

# %%
# Lengths in epochs, steps in batches
# -----------------------------------
#
# ``T_max=6`` and ``gamma=0.5`` are meant for six epochs. Stepped once an epoch, both do
# what they should. Stepped in each of the 60 batches, the cosine goes down and up five
# times, and the decay is below a thousandth after one epoch. Neither raises.

UNITS = {
    "cosine, T_max=6": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=EPOCHS),
    "decay, gamma=0.5": lambda o: lr_scheduler.ExponentialLR(o, gamma=0.5),
}

figure, axes = plt.subplots(2, 1, figsize=(4.5, 4.2), sharex=True)
wrong = {}
for axis, (name, make) in zip(axes, UNITS.items(), strict=True):
    per_epoch, wrong[name] = rates(make, every=BATCHES), rates(make)
    axis.step(range(UPDATES), per_epoch, where="post", label="step() in each epoch")
    axis.plot(wrong[name], "--", label="step() in each batch")
    axis.set_ylabel("learning rate")
    axis.set_title(name, fontsize="medium")
    assert len(set(per_epoch)) == EPOCHS, "one rate for each epoch"
    assert per_epoch == sorted(per_epoch, reverse=True), "per epoch, it only falls"
axes[1].legend(loc="upper right")
axes[1].set_xlabel("update")
figure.suptitle("The same schedule in the wrong unit")
figure.tight_layout()
plt.show()

cosine, decay = wrong["cosine, T_max=6"], wrong["decay, gamma=0.5"]
lows = [k for k, rate in enumerate(cosine) if math.isclose(rate, 0, abs_tol=1e-9)]
below = next(k for k, rate in enumerate(decay) if rate < 0.001)
print(f"cosine at zero in {lows}")
print(f"decay below 0.001 from update {below} on")
assert lows == [6, 18, 30, 42, 54], "down five times, up in between"
assert below == 10, "all but over after one epoch of ten batches"
