"""
What does each saver take off the peak?
=======================================

One training step, from features to a loss over 1024 tokens, is run in nine ways: plain,
with hooks that move or round what autograd saves, with the update inside backward, with
the loss in chunks, and with two and three of these together.

Measured: the live tensor storage on the device after every operator, what lies on the
host instead, and how far each saver moves the updated weights. The claim: each saver
removes one kind of bytes and lowers the peak only where that kind is alive. An update
inside backward saves nothing by itself here, and 0.6 MiB once the others have moved the
peak. In the end our count is compared with that of the memory allocator.
"""

import json
import tempfile
import weakref
from contextlib import contextmanager, nullcontext
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

MiB = 2**20
device = torch.accelerator.current_accelerator(check_available=True)
device = device or torch.device("cpu")
torch.set_num_threads(1)  # bytes do not depend on it, and small steps are quicker
print(f"torch {torch.__version__} on {device}")

# %%
# A ledger of two sides
# ---------------------
#
# A dispatch mode sees every operator, in forward, backward and the update, and notes
# the storage of its results. Weak keys drop a storage when torch frees it. With an
# accelerator, host tensors are told by their device. Without one, the CPU plays both
# sides: what is made inside ``on_host()`` counts as the host's.


class Ledger(TorchDispatchMode):
    """Count live storage of the device and of the host after every operator."""

    def __init__(self, *alive: torch.Tensor) -> None:
        super().__init__()
        self.sides = {
            "device": weakref.WeakKeyDictionary(),
            "host": weakref.WeakKeyDictionary(),
        }
        self.packing = False
        self.history, self.host_peak = [], 0
        self.add(alive)

    def add(self, results) -> None:
        """Note the storage of each tensor, on the side where it lies."""
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if not any(storage in side for side in self.sides.values()):
                    away = self.packing or tensor.device.type != device.type
                    side = self.sides["host" if away else "device"]
                    side[storage] = storage.nbytes()

    def live(self, side: str) -> int:
        """Return the bytes alive on one side."""
        return sum(self.sides[side].values())

    @contextmanager
    def on_host(self):
        """Count what is made inside as the host's."""
        self.packing = True
        yield
        self.packing = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.add(out)
        self.history.append(self.live("device"))
        self.host_peak = max(self.host_peak, self.live("host"))
        return out


# %%
# One step, with every saver as a switch
# --------------------------------------
#
# 24 linear layers of width 128 with GELU and a head for 1024 tokens, on 256 positions:
# each activation takes 0.125 MiB, the head 0.5 MiB, and a full set of logits 1 MiB.
#
# The hooks copy to the host what autograd saves, and back when it is needed. Around
# layers and loss they take along weights, batch and log-probabilities, as
# ``save_on_cpu`` does. Around the layers alone, and told to leave weights and batch
# where they are, they move activations only.

WIDTH, TOKENS, ROWS, LAYERS, CHUNKS = 128, 1024, 256, 24, 8


class Run:
    """A model with its optimizers and one batch, after a first step."""

    def __init__(self, hooks="", in_backward=False, loss="whole"):
        torch.manual_seed(0)
        self.hooks, self.in_backward, self.loss_kind = hooks, in_backward, loss
        with torch.device(device):
            layers = [(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
            self.model = nn.Sequential(*(part for pair in layers for part in pair))
            self.head = nn.Linear(WIDTH, TOKENS, bias=False)
            self.x = torch.randn(ROWS, WIDTH)
            self.y = torch.randint(TOKENS, (ROWS,))
        self.parameters = [*self.model.parameters(), *self.head.parameters()]
        groups = [[p] for p in self.parameters] if in_backward else [self.parameters]
        self.optimizers = [
            torch.optim.SGD(group, lr=0.5, momentum=0.5, foreach=False)
            for group in groups
        ]
        if in_backward:
            for parameter, sgd in zip(self.parameters, self.optimizers, strict=True):
                parameter.register_post_accumulate_grad_hook(self.updater(sgd))
        self.step()  # creates the momentum

    @staticmethod
    def updater(sgd):
        """Return a hook that steps one optimizer and drops its gradient."""

        def update(_parameter):
            sgd.step()
            sgd.zero_grad()

        return update

    def part(self, hidden, y):
        """Return the summed loss of some rows."""
        return F.cross_entropy(self.head(hidden), y, reduction="sum")

    def loss(self, hidden):
        """Return the mean loss, of all rows at once or of a few at a time."""
        if self.loss_kind == "built in":
            options = nn.LinearCrossEntropyOptions(batch_chunk_size=ROWS // CHUNKS)
            return F.linear_cross_entropy(
                hidden, self.head.weight, self.y, options=options
            )
        if self.loss_kind == "chunks":
            parts = zip(hidden.chunk(CHUNKS), self.y.chunk(CHUNKS), strict=True)
            losses = [checkpoint(self.part, *p, use_reentrant=False) for p in parts]
            return sum(losses) / ROWS
        return self.part(hidden, self.y) / ROWS

    def saving(self, ledger=None):
        """Return the hooks of this run as a context."""
        if not self.hooks:
            return nullcontext()
        on_host = ledger.on_host if ledger else nullcontext
        stays = {t.untyped_storage() for t in [self.x, self.y, *self.parameters]}

        def pack(tensor):
            if self.hooks != "everything" and tensor.untyped_storage() in stays:
                return tensor.detach()
            if self.hooks == "bfloat16":
                return tensor.bfloat16()
            with on_host():
                return tensor.detach().to("cpu", copy=True), tensor.device

        def unpack(packed):
            if isinstance(packed, tuple):
                return packed[0].to(packed[1], copy=True)
            return packed.float() if packed.dtype == torch.bfloat16 else packed

        return saved_tensors_hooks(pack, unpack)

    def step(self, ledger=None) -> None:
        """Train on the batch once."""
        everything = self.hooks == "everything"
        with self.saving(ledger) if everything else nullcontext():
            with nullcontext() if everything else self.saving(ledger):
                hidden = self.model(self.x)
            loss = self.loss(hidden)
        del hidden
        loss.backward()
        if not self.in_backward:
            for sgd in self.optimizers:
                sgd.step()
                sgd.zero_grad()

    def ledger(self) -> Ledger:
        """Run one step with a ledger and return it."""
        state = [t for sgd in self.optimizers for t in tree_leaves(sgd.state)]
        ledger = Ledger(*self.parameters, *state, self.x, self.y)
        with ledger:
            self.step(ledger)
        return ledger


savers = {
    "plain": {},
    "offload everything": {"hooks": "everything"},
    "offload": {"hooks": "activations"},
    "bfloat16 hooks": {"hooks": "bfloat16"},
    "step in backward": {"in_backward": True},
    "loss in chunks": {"loss": "chunks"},
    "linear_cross_entropy": {"loss": "built in"},
    "offload, chunks": {"hooks": "activations", "loss": "chunks"},
    "all three": {"hooks": "activations", "loss": "chunks", "in_backward": True},
}


def flat(parameters) -> torch.Tensor:
    """Return a copy of all weights as one vector."""
    return torch.cat([p.detach().flatten() for p in parameters])


before = flat(Run().parameters)
runs = {name: Run(**switches) for name, switches in savers.items()}
ledgers = {name: run.ledger() for name, run in runs.items()}
after = {name: flat(run.parameters) for name, run in runs.items()}
update = after["plain"] - before

peak = {name: max(ledger.history) / MiB for name, ledger in ledgers.items()}
host = {name: ledger.host_peak / MiB for name, ledger in ledgers.items()}
change = {
    name: ((weights - after["plain"]).norm() / update.norm()).item()
    for name, weights in after.items()
}
print(f"{'MiB':20}{'peak':>7}{'on host':>9}{'change':>9}")
for name in savers:
    print(f"{name:20}{peak[name]:7.2f}{host[name]:9.2f}{change[name]:9.1e}")

# %%
# *Change* is the distance between the updated weights and those of the plain step,
# relative to the length of the update.
#
# Offloading everything lowers the peak by one activation more, the input of the head,
# and moves 4 MiB more for it: weights and batch, and the log-probabilities twice, since
# two nodes save them. bfloat16 hooks remove half as much, and are the only saver here
# that changes more than the order of sums.

activation = ROWS * WIDTH * 4 / MiB
moved = (2 * LAYERS - 1) * activation  # inputs and outputs of GELU but the last
logits = ROWS * TOKENS * 4 / MiB
assert host["offload"] == moved
assert abs(peak["plain"] - peak["offload"] - moved) < 0.01
assert abs(peak["offload"] - peak["offload everything"] - activation) < 0.01
assert host["offload everything"] > moved + 2 * logits, "twice, and the weights"
assert abs(peak["plain"] - peak["bfloat16 hooks"] - moved / 2) < 0.01
assert 1e-5 < change["bfloat16 hooks"] < 1e-2, "bfloat16 has 8 significant bits"

assert peak["step in backward"] == peak["plain"], "no gradient is alive at that peak"
assert peak["offload, chunks"] - peak["all three"] > 0.5, "at this peak most are"
assert peak["linear_cross_entropy"] < peak["loss in chunks"] < peak["plain"]
for name in savers:
    if name != "bfloat16 hooks":
        assert change[name] < 1e-4, f"{name} must compute the same update"

# %%
# Where the peak lies
# -------------------
#
# The plain step climbs through forward and peaks where the loss sends back its first
# gradients. Offloaded, forward stays flat and the loss alone makes the peak. With the
# loss in chunks too, the peak moves to the end of backward, where all gradients are
# alive, unless each is spent at once.

figure, axes = plt.subplots(figsize=(5.5, 4), layout="constrained")
for name in ("plain", "offload", "offload, chunks", "all three"):
    history = ledgers[name].history
    share = [100 * i / len(history) for i in range(len(history))]
    axes.plot(share, [size / MiB for size in history], label=name)
axes.set(
    title="Live bytes on the device over one step",
    xlabel="operators done, %",
    ylabel="MiB",
    ylim=(0, None),
)
figure.legend(loc="outside lower center", ncols=2)

# %%
# The price of offloading is traffic, and that of a checkpointed chunk a second product
# with the head; neither is measured here, as a CPU tells nothing about a card's bus.
#
# Beside the allocator
# --------------------
#
# The ledger sees results of operators. ``linear_cross_entropy`` is one operator, whose
# chunks are scratch space within it. So ask who hands out the memory: on CUDA the
# caching allocator, which knows its peak, elsewhere the profiler, whose trace lists
# every allocation. Both columns give what the step adds to the bytes alive before.


def allocated(run: Run) -> float:
    """Return how far the allocator's count rises during a step, in MiB."""
    if device.type == "cuda":
        start = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run.step()
        return (torch.cuda.max_memory_allocated() - start) / MiB
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run.step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        record.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    events = [event for event in events if event["name"] == "[memory]"]
    total = highest = 0
    for event in sorted(events, key=lambda event: event["ts"]):
        total += event["args"]["Bytes"]
        highest = max(highest, total)
    return highest / MiB


if device.type in ("cpu", "cuda"):
    print(f"{'MiB':21}{'counted':>8}{'allocator':>11}")
    for name in ("plain", "loss in chunks", "linear_cross_entropy"):
        run, history = runs[name], ledgers[name].history
        counted, really = peak[name] - history[0] / MiB, allocated(run)
        print(f"{name:21}{counted:8.2f}{really:11.2f}")
        if device.type == "cpu":
            assert abs(really - counted) < 0.3, f"{name}: scratch space at the peak"
