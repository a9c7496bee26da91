"""
What do eval() and no_grad() each change?
=========================================

``model.eval()`` sets a flag that a few layers read in their forward pass.
``torch.no_grad()`` switches recording off. Neither implies the other, so there are six
settings: training or evaluation, each with gradients, under ``no_grad()`` and under
``inference_mode()``.

The script runs one model in all six and measures what its layers do and how many bytes
autograd keeps. It then shows where the usual account is too simple: layers that save
less under ``eval()``, functions that do not see it, an encoder whose output
``no_grad()`` changes, and what ``inference_mode()`` forbids afterwards.
"""

# %%
# One model, six settings
# -----------------------
# ``random``: two passes over the same batch differ. ``statistics``: the running mean of
# the BatchNorm moved. ``saved``: bytes of distinct tensors kept for backward, without
# parameters and buffers, which exist anyway.

import warnings
from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

MODES = {
    "gradients on": torch.enable_grad,
    "no_grad()": torch.no_grad,
    "inference_mode()": torch.inference_mode,
}


def saved_bytes(module: nn.Module, x: Tensor) -> int:
    """Return the bytes saved for backward by ``module(x)``, its state not counted."""
    state = [*module.parameters(), *module.buffers()]
    known = {tensor.untyped_storage().data_ptr() for tensor in state}
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        # The list keeps the memory alive, so no address is seen twice by accident.
        saved.append(tensor.detach())
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        module(x)
    sizes = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in saved
    }
    return sum(size for pointer, size in sizes.items() if pointer not in known)


torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 1)
)
batch = torch.randn(256, 32)

settings = {}
print(f"{'':6}{'':18}{'random':>7}{'statistics':>11}{'graph':>6}{'saved':>9}")
for training in (True, False):
    model.train(training)
    for name, mode in MODES.items():
        before = model[1].running_mean.clone()
        with mode():
            saved = saved_bytes(model, batch)
            output = model(batch)
            random = not torch.equal(model(batch), model(batch))
        moved = not torch.equal(before, model[1].running_mean)
        graph = output.grad_fn is not None
        settings[training, name] = (random, moved, graph, saved)
        yes_no = ["yes" if fact else "no" for fact in (random, moved, graph)]
        label = "train" if training else "eval"
        print(
            f"{label:6}{name:18}{yes_no[0]:>7}{yes_no[1]:>11}{yes_no[2]:>6}{saved:9,}"
        )

# %%
# The flag decides the first two columns, the mode the third. The last column depends on
# both: nothing is saved without recording, and with it ``eval()`` saves less.

for (training, name), (random, moved, graph, saved) in settings.items():
    recording = name == "gradients on"
    assert random == training, "the mode changed what Dropout does"
    assert moved == training, "the mode changed what BatchNorm updates"
    assert graph == recording, "eval() changed what is recorded"
    assert (saved > 0) == recording, "bytes were saved without a graph"
assert settings[False, "gradients on"][3] < settings[True, "gradients on"][3]

# %%
# Which layers save less under eval()
# -----------------------------------
# Each layer runs alone on a batch that needs a gradient, in training and in evaluation.


class SelfAttention(nn.MultiheadAttention):
    """Attention of a sequence to itself, without the attention weights."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended sequence, of the shape of ``x``."""
        return super().forward(x, x, x, need_weights=False)[0]


layers = {
    "Linear": nn.Linear(64, 64),
    "LayerNorm": nn.LayerNorm(64),
    "BatchNorm1d": nn.BatchNorm1d(64),
    "Dropout": nn.Dropout(0.1),
    "SelfAttention": SelfAttention(64, 4, dropout=0.1, batch_first=True),
}
features = torch.randn(256, 64, requires_grad=True)
sequence = torch.randn(4, 64, 64, requires_grad=True)

per_layer = {}
print(f"{'layer':15}{'train':>10}{'eval':>10}")
for name, layer in layers.items():
    x = sequence if name == "SelfAttention" else features
    per_layer[name] = tuple(
        saved_bytes(layer.train(training), x) for training in (True, False)
    )
    print(f"{name:15}{per_layer[name][0]:10,}{per_layer[name][1]:10,}")

# %%
# ``Dropout`` keeps its mask in training. In evaluation it returns its very input, and
# nothing is left to save. ``BatchNorm1d`` needs the mean and the deviation of the batch
# only where it computes them. On the CPU, attention with dropout keeps three tensors of
# the size of its attention matrices, 256 KiB each here; without dropout it takes a
# fused kernel that keeps none of them.

assert per_layer["Dropout"] == (features.nbytes, 0), "the mask has another size"
assert layers["Dropout"](features) is features, "eval dropout made a new tensor"
assert per_layer["BatchNorm1d"][0] - per_layer["BatchNorm1d"][1] == 2 * 64 * 4
matrices = 4 * 4 * 64 * 64 * 4  # batch, heads, positions, positions, bytes
assert per_layer["SelfAttention"][0] > per_layer["SelfAttention"][1] + 3 * matrices
for name in ("Linear", "LayerNorm"):
    assert per_layer[name][0] == per_layer[name][1], f"{name} reads the flag"

positions = range(len(layers))
plt.figure(figsize=(6.4, 3.4))
for offset, column, label in ((-0.2, 0, "train()"), (0.2, 1, "eval()")):
    plt.barh(
        [p + offset for p in positions],
        [per_layer[name][column] / 1024 for name in layers],
        height=0.4,
        color=f"C{column}",
        label=label,
    )
plt.yticks(positions, layers)
plt.gca().invert_yaxis()
plt.xlabel("KiB saved for backward, gradients on")
plt.title("What each layer saves in training and in evaluation")
plt.legend()
plt.tight_layout()
plt.show()

# %%
# Functions do not see the flag
# -----------------------------
# ``eval()`` reaches modules. A function has its own ``training`` argument, and the
# defaults differ: in evaluation the first two calls still drop, the last two do not.

ones = torch.ones(1000)
sample = torch.ones(1, 1, 100, 8)
dropped = {
    "F.dropout": (F.dropout(ones, 0.5) == 0).any().item(),
    "F.scaled_dot_product_attention": not torch.equal(
        F.scaled_dot_product_attention(sample, sample, sample, dropout_p=0.5),
        F.scaled_dot_product_attention(sample, sample, sample),
    ),
    "F.alpha_dropout": not torch.equal(F.alpha_dropout(ones, 0.5), ones),
    "nn.Dropout, eval()": not torch.equal(nn.Dropout(0.5).eval()(ones), ones),
}
for name, active in dropped.items():
    print(f"{name:32}{'drops' if active else 'does not drop'}")
assert list(dropped.values()) == [True, True, False, False], "a default changed"

# %%
# A path that exists only in evaluation without gradients
# -------------------------------------------------------
# ``nn.TransformerEncoderLayer`` looks at the flag and at what needs a gradient. If
# the flag is off and nothing does, it hands all its work to one fused operation. The
# table lists whether that operation ran, and whether the output of an
# ``nn.TransformerEncoder`` is 0 at all padded positions.


class Operations(TorchDispatchMode):
    """Note the name of every operation that reaches the backend."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.__name__)
        return func(*args, **(kwargs or {}))


layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
encoder = nn.TransformerEncoder(layer, num_layers=2)
tokens = torch.randn(2, 4, 16)
padding = torch.tensor([[False, False, False, True], [False, False, True, True]])


def observe() -> tuple[bool, bool]:
    """Return whether the fused operation ran, and whether the padding came out as 0."""
    with Operations() as seen:
        layer(tokens)
    with warnings.catch_warnings():
        # The encoder packs the batch as a nested tensor, which warns: a prototype.
        warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors")
        output = encoder(tokens, src_key_padding_mask=padding)
    fused = any("_transformer_encoder_layer_fwd" in name for name in seen.names)
    return fused, output[padding].abs().max().item() == 0


paths = {}
for training in (True, False):
    for name, mode in MODES.items():
        layer.train(training)
        encoder.train(training)
        with mode():
            paths["train" if training else "eval", name] = observe()

for module in (layer, encoder):
    module.requires_grad_(False)
paths["eval", "gradients on, frozen"] = observe()

handle = layer.linear1.register_forward_hook(lambda *call: None)
with torch.no_grad():
    paths["eval", "no_grad(), hook"] = observe()
handle.remove()

print(f"{'':6}{'':22}{'fused':>6}{'padding is 0':>14}")
for (flag, name), facts in paths.items():
    fused, zero = ["yes" if fact else "no" for fact in facts]
    print(f"{flag:6}{name:22}{fused:>6}{zero:>14}")

# %%
# The flag and the mode together choose the path, and the path changes the numbers: the
# encoder drops padding at the end of a sequence before its layers and puts zeros there
# afterwards. Frozen parameters serve as well as ``no_grad()``, as long as the input
# needs no gradient. A forward hook on any part of the layer keeps the fused operation
# away, which would not call that part. The encoder has copies of the layer without the
# hook, so its padding is 0 in that row too.

fast = {setting for setting, (fused, _) in paths.items() if fused}
assert fast == {
    ("eval", "no_grad()"),
    ("eval", "inference_mode()"),
    ("eval", "gradients on, frozen"),
}, "another set of conditions selects the fused operation"
assert not paths["eval", "gradients on"][1], "padding is 0 with gradients on"
assert all(paths[setting][1] for setting in fast), "padding is not 0 on the fast path"
assert paths["eval", "no_grad(), hook"][1], "the hook reached the copies"

# %%
# What inference_mode() costs
# ---------------------------
# A tensor allocated under ``inference_mode()`` has no version counter, for as long as
# it lives. A use that would need one, now or in a later graph, is refused outside the
# mode.

weight = torch.ones(3, requires_grad=True)
uses = {
    "read it": lambda t: t.tolist(),
    "weight + t": lambda t: (weight + t).sum().backward(),
    "weight * t": lambda t: (weight * t).sum().backward(),
    "weight * t.detach()": lambda t: (weight * t.detach()).sum().backward(),
    "weight * t.clone()": lambda t: (weight * t.clone()).sum().backward(),
    "t.add_(1)": lambda t: t.add_(1),
    "t.requires_grad_()": lambda t: t.requires_grad_(),
}


def works(use: Callable[[Tensor], object], tensor: Tensor) -> bool:
    """Tell whether torch accepts this use of the tensor."""
    try:
        use(tensor)
    except RuntimeError:
        return False
    return True


accepted = {}
print(f"{'afterwards':22}{'no_grad()':>10}{'inference_mode()':>18}")
for name, use in uses.items():
    with torch.no_grad():
        plain = torch.ones(3) * 2
    with torch.inference_mode():
        marked = torch.ones(3) * 2
    accepted[name] = (works(use, plain), works(use, marked))
    row = ["works" if ok else "RuntimeError" for ok in accepted[name]]
    print(f"{name:22}{row[0]:>10}{row[1]:>18}")

assert all(plain for plain, _ in accepted.values()), "no_grad() left a mark"
assert [name for name, (_, marked) in accepted.items() if marked] == [
    "read it",
    "weight + t",
    "weight * t.clone()",
], "another set of uses is refused"

# %%
# Indices are saved too, so an embedding refuses them, although integers have no
# gradient. A layer built under the mode cannot be trained: its optimizer may not write
# to it, and its weight gets no gradient, without an error. The layer transposes the
# weight, and a view of an inference tensor is not recorded.

with torch.inference_mode():
    index = torch.tensor([0])
    built = nn.Linear(2, 1)

embedded = works(nn.Embedding(3, 2), index)
built(torch.ones(1, 2)).sum().backward()
stepped = works(lambda p: torch.optim.SGD([p], lr=0.1).step(), built.bias)
print("embedding takes the indices:", embedded)
print("weight.grad:", built.weight.grad, "| bias.grad:", built.bias.grad)
print("optimizer updates the bias: ", stepped)
assert not embedded, "an embedding no longer saves its indices"
assert built.weight.grad is None and built.bias.grad == 1, "the view was recorded"
assert not stepped, "an inference tensor was updated outside its mode"
