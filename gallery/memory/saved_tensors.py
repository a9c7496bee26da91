"""
What does each operation keep for backward?
===========================================

An operation keeps the tensors that its derivative formula names: inputs, its output,
or something extra such as a mask. Here about forty operations run on tensors of 64 KiB,
and a hook looks at everything that autograd keeps. The bytes are asserted against
arithmetic, and the names of fifteen operations against the file from which PyTorch
generates its nodes.

Then come the consequences for whole networks: an output that two nodes keep costs its
memory once, so ReLU costs about half of what GELU does; in place, ReLU and SiLU keep
not a byte less, LeakyReLU does; and a view keeps all of its storage.
"""

import re
import weakref
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torchgen
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

device = torch.accelerator.current_accelerator(check_available=True)
device = device or torch.device("cpu")
torch.manual_seed(0)
print(f"torch {torch.__version__} on {device}")

# %%
# One operation at a time
# -----------------------
#
# The hook gets each tensor that is kept. Its storage, the memory that it shares with
# its views, tells whose it is. Parameters and buffers exist anyway and are not counted.
# Two kept tensors on one storage count once.


def kept(function, *inputs, module=None):
    """Return how many tensors autograd keeps, and the bytes under them by owner."""
    tensors = []
    with saved_tensors_hooks(tensors.append, lambda tensor: tensor):
        output = function(*inputs)
    owner = {output.untyped_storage(): "output"}
    owner |= {tensor.untyped_storage(): "input" for tensor in inputs}
    if module is not None:
        exist = (*module.parameters(), *module.buffers())
        owner |= {tensor.untyped_storage(): None for tensor in exist}
    storages = [tensor.untyped_storage() for tensor in tensors]
    storages = [storage for storage in storages if owner.get(storage, "extra")]
    sizes = {"input": 0, "output": 0, "extra": 0}
    for storage in dict.fromkeys(storages):
        sizes[owner.get(storage, "extra")] += storage.nbytes()
    return len(storages), sizes


ROWS, COLUMNS = 256, 64
N = ROWS * COLUMNS * 4  # bytes of x: 64 KiB, the unit of everything below


def leaf(*shape):
    """Return a random tensor that requires a gradient."""
    return torch.rand(*shape, device=device, requires_grad=True)


x, y = leaf(ROWS, COLUMNS), leaf(ROWS, COLUMNS)
images = leaf(4, 16, 16, 16)
query, key, value = (leaf(1, 4, 128, 32) for _ in range(3))
assert N == x.nbytes == images.nbytes == query.nbytes

constant = torch.rand(ROWS, COLUMNS, device=device)
condition = constant > 0.5
rows = torch.randint(ROWS, (ROWS,), device=device)
classes = torch.randint(COLUMNS, (ROWS,), device=device)
indices = torch.randint(COLUMNS, (ROWS, COLUMNS), device=device)

with device:
    linear, frozen = nn.Linear(COLUMNS, COLUMNS), nn.Linear(COLUMNS, COLUMNS)
    convolution, embedding = nn.Conv2d(16, 16, 3), nn.Embedding(ROWS, COLUMNS)
    layer_norm = nn.LayerNorm(COLUMNS)
    batch_norm, fixed_norm = nn.BatchNorm1d(COLUMNS), nn.BatchNorm1d(COLUMNS).eval()
frozen.requires_grad_(False)


def attention(query, key, value):
    """Compute attention step by step."""
    weights = query @ key.transpose(-2, -1) / 32**0.5
    return weights.softmax(-1) @ value


# %%
# Below, ``input=N`` says that inputs of ``N`` bytes are kept, and nothing else. The
# in-place operations work on a clone, since ``x`` is a leaf; cloning keeps nothing.
#
# Some operations have other kernels on other devices. On CUDA, by PyTorch's source,
# dropout keeps one byte a number instead of a float32 factor; this was not run. What is
# marked ``only_cpu`` is compared on the CPU alone.

table = []


def expect(name, function, *inputs, module=None, only_cpu=False, **wanted):
    """Count an operation and compare with the expected bytes."""
    tensors, sizes = kept(function, *inputs, module=module)
    table.append((name, tensors, sizes))
    if device.type == "cpu" or not only_cpu:
        wanted = {"input": 0, "output": 0, "extra": 0, **wanted}
        assert sizes == wanted, f"{name}: {sizes}, not {wanted}"


expect("x + y", torch.add, x, y)
expect("x * 3", lambda x: x * 3, x)
expect("x * constant", torch.mul, x, constant, input=N)
expect("x * x", lambda x: x * x, x, input=N)  # two tensors, one storage
expect("x * y", torch.mul, x, y, input=2 * N)
expect("x / y", torch.div, x, y, input=2 * N)

expect("relu", F.relu, x, output=N)
expect("relu_", lambda x: F.relu_(x.clone()), x, output=N)
expect("sigmoid", torch.sigmoid, x, output=N)
expect("tanh", torch.tanh, x, output=N)
expect("exp", torch.exp, x, output=N)
expect("sqrt", torch.sqrt, x, output=N)
expect("gelu", F.gelu, x, input=N)
expect("silu", F.silu, x, input=N)
expect("silu_", lambda x: F.silu(x.clone(), inplace=True), x, extra=N)
expect("leaky_relu", F.leaky_relu, x, input=N)
expect("leaky_relu_", lambda x: F.leaky_relu_(x.clone()), x, output=N)
expect("clamp", lambda x: x.clamp(0.25, 0.75), x, input=N)
expect("clamp_", lambda x: x.clone().clamp_(0.25, 0.75), x, extra=N)

expect("softmax", lambda x: x.softmax(-1), x, output=N)
expect(  # log-probabilities, the sum of weights; the targets are an input
    "cross_entropy", F.cross_entropy, x, classes, extra=N + 4, input=8 * ROWS
)
expect("dropout, train", F.dropout, x, extra=N, only_cpu=True)
expect("dropout, eval", lambda x: F.dropout(x, training=False), x)
expect(  # a mean and a standard deviation for each row, or for each column
    "layer_norm", layer_norm, x, module=layer_norm, input=N, extra=2 * 4 * ROWS
)
expect(
    "batch_norm, train",
    batch_norm,
    x,
    module=batch_norm,
    only_cpu=True,
    input=N,
    extra=2 * 4 * COLUMNS,
)
expect("batch_norm, eval", fixed_norm, x, module=fixed_norm, only_cpu=True, input=N)

expect("linear", linear, x, module=linear, input=N)
expect("linear, frozen", frozen, x, module=frozen)
expect("matmul", lambda x, y: x @ y.T, x, y, input=2 * N)
expect("conv2d", convolution, images, module=convolution, input=N)
expect(  # a quarter as many int64 indices: 8 / 4 bytes for 4
    "max_pool2d", lambda x: F.max_pool2d(x, 2), images, input=N, extra=N // 2
)
expect("avg_pool2d", lambda x: F.avg_pool2d(x, 2), images, input=N)
expect("embedding", embedding, rows, module=embedding, input=8 * ROWS)
expect(  # one number for each row of each head
    "attention, fused",
    F.scaled_dot_product_attention,
    query,
    key,
    value,
    only_cpu=True,
    input=3 * N,
    output=N,
    extra=4 * 4 * 128,
)
expect(  # the probabilities, 128 x 128 for each head
    "attention, by hand",
    attention,
    query,
    key,
    value,
    input=3 * N,
    extra=4 * 4 * 128 * 128,
)

expect("sum", torch.sum, x)
expect("mean", torch.mean, x)
expect("transpose, view", lambda x: x.T.view(8, -1, ROWS), x)
expect("cat", lambda x, y: torch.cat([x, y]), x, y)
expect("x[rows]", lambda x, rows: x[rows], x, rows, input=8 * ROWS)
expect(  # its int64 indices, and the input, of which only the shape matters
    "gather", lambda x, i: x.gather(1, i), x, indices, input=N + 2 * N
)
expect("where", torch.where, condition, x, y, input=N // 4)

print(f"{'':19}kept    in   out extra")
for name, tensors, sizes in table:
    units = "".join(f"{size / N:6.2f}" for size in sizes.values())
    print(f"{name:19}{tensors:4}{units}")

# %%
# The first column counts tensors, also those that share memory. The other three and the
# figure are bytes in units of the input, 64 KiB. An *extra* is memory that only
# backward needs once the operation is over. An input or an output that is kept exists
# anyway while the program uses it, and its neighbours may keep it as well; if nobody
# keeps it, it is freed after its last use.

figure, axes = plt.subplots(figsize=(5, 8), layout="constrained")
names = [name for name, *_ in table]
left = [0.0] * len(names)
for number, owner in enumerate(("input", "output", "extra")):
    widths = [sizes[owner] / N for *_, sizes in table]
    axes.barh(names, widths, left=left, color=f"C{number}", label=owner)
    left = [a + b for a, b in zip(left, widths, strict=True)]
axes.set(xlabel="bytes kept / bytes of the input", title="Kept for backward")
axes.margins(y=0.01)
axes.invert_yaxis()
figure.legend(loc="outside lower center", ncols=3)

# %%
# The formula says it in advance
# ------------------------------
#
# ``derivatives.yaml`` comes with PyTorch. An entry has one formula for each input that
# can get a gradient. The tensors that it names, ``result`` being the output, are what a
# node keeps. Where it only asks a tensor for its shape, layout or type, as in
# ``self.sym_sizes()``, that is kept instead of the tensor.

source = Path(torchgen.__file__).parent / "packaged/autograd/derivatives.yaml"
text = source.read_text()
METADATA = r"\b\w+\.(sym_sizes|sym_strides|layout|scalar_type)\(\)"


def predicted(name):
    """Return the names of the tensors in an operation's derivative formulas."""
    entry = re.search(rf"^- name: {re.escape(name)}\((.*?)\n\n", text, re.M | re.S)[1]
    signature, *lines = entry.splitlines()
    arguments = re.findall(r"Tensor(?:\(a!\))? (\w+)", signature)
    wanted = [line for line in lines if line.split(":")[0].strip() in arguments]
    formulas = re.sub(METADATA, "", " ".join(line.split(":", 1)[1] for line in wanted))
    words = set(re.findall(r"\w+", formulas))
    return words & {*arguments, "result"}


def actual(node):
    """Return the names of the tensors that a node keeps."""
    prefix = "_saved_"
    return {
        name.removeprefix(prefix)
        for name in dir(node)
        if name.startswith(prefix) and isinstance(getattr(node, name), torch.Tensor)
    }


print(f"{'operation':12} keeps")
for name, result in {
    "add.Tensor": x + y,
    "mul.Tensor": x * y,
    "div.Tensor": x / y,
    "relu": x.relu(),
    "sigmoid": x.sigmoid(),
    "exp": x.exp(),
    "sqrt": x.sqrt(),
    "gelu": F.gelu(x),
    "silu": F.silu(x),
    "leaky_relu": F.leaky_relu(x),
    "leaky_relu_": F.leaky_relu_(x.clone()),
    "clamp": x.clamp(0.25, 0.75),
    "mm": x @ y.T,
    "avg_pool2d": F.avg_pool2d(images, 2),
    "gather": x.gather(1, indices),
}.items():
    print(f"{name:12}", ", ".join(sorted(actual(result.grad_fn))) or "nothing")
    assert actual(result.grad_fn) == predicted(name), f"{name}: {predicted(name)}"

# %%
# A whole network
# ---------------
#
# Eight linear layers, each with an activation behind it. *Kept* is what the graph holds
# when the forward pass is over, apart from parameters and the batch; *peak* is the most
# that is alive on the way, seen by a dispatch mode after each operator. The unit is one
# activation, 64 KiB.


class Live(TorchDispatchMode):
    """Find the most bytes alive at once, among those allocated under the mode."""

    def __init__(self, *before):
        super().__init__()
        self.before = {tensor.untyped_storage() for tensor in before}
        self.sizes, self.peak = weakref.WeakKeyDictionary(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage not in self.before:
                    self.sizes[storage] = storage.nbytes()
        self.peak = max(self.peak, sum(self.sizes.values()))
        return out


def count(model, batch):
    """Run forward; return the output and the storages its graph keeps, with bytes."""
    known = {t.untyped_storage() for t in (*model.parameters(), batch)}
    held = weakref.WeakKeyDictionary()  # drops a storage when torch frees it

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage not in known:
            held[storage] = storage.nbytes()
        return tensor.detach()  # the tensor itself could lead back to its own node

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(batch)
    return output, held


LAYERS = 8
batch = x.detach()
found = {}
print(f"{'activation':14}{'in place':>9}{'kept':>7}{'peak':>7}")
for kind in (nn.ReLU, nn.LeakyReLU, nn.SiLU, nn.GELU):
    for inplace in (False, True):
        if inplace and kind is nn.GELU:
            continue  # there is none
        activation = kind(inplace=True) if inplace else kind()
        with device:
            layers = [nn.Linear(COLUMNS, COLUMNS) for _ in range(LAYERS)]
        model = nn.Sequential(*(m for layer in layers for m in (layer, activation)))
        with Live(*model.parameters(), batch) as live:
            output, held = count(model, batch)
        sizes = sum(held.values()) / N, live.peak / N
        found[kind.__name__, inplace] = sizes
        print(f"{kind.__name__:14}{inplace!s:>9}{sizes[0]:7.1f}{sizes[1]:7.1f}")
        output.sum().backward()
        del output  # the last activation's output, which its node may have kept
        assert not held, "backward lets go of all of it"

# %%
# ReLU keeps eight outputs, and seven of them are also the inputs that the linear layers
# keep. GELU keeps its eight inputs besides the seven. In place, ReLU keeps the same
# eight; the input that it overwrites was kept by nobody, and would have been freed a
# moment later, so the peak is lower by one activation, however many layers there are.
# The in-place LeakyReLU has a formula of its own, which names the output, so it saves
# one activation a layer. SiLU's formula names the input: before the input is
# overwritten, autograd copies it.

assert found["ReLU", False] == (LAYERS, LAYERS + 1)
assert found["ReLU", True] == (LAYERS, LAYERS)
assert found["LeakyReLU", False] == found["GELU", False] == (15, 16)
assert found["LeakyReLU", True] == (LAYERS, LAYERS)
assert found["SiLU", True] == found["SiLU", False] == (15, 16)

# %%
# A view keeps all of its storage
# -------------------------------
#
# The product is 64 KiB and nobody keeps it. Its first row is 256 bytes, and the square
# keeps that row: a view, on the storage of the whole.

for name, take in {
    "view": lambda product: product[0],
    "clone": lambda product: product[0].clone(),
}.items():
    first = take(x * 3)  # the product has no name and may go
    square = first * first
    saved = square.grad_fn._saved_self
    storage = saved.untyped_storage().nbytes()
    print(f"{name:6} {saved.nbytes:6} bytes in a storage of {storage}")
    assert saved.nbytes == 4 * COLUMNS
    assert storage == (N if name == "view" else 4 * COLUMNS)
