"""
Will it fit? Bytes by formula, by fake tensors, and by a real run
=================================================================

What a training step of a transformer needs follows from its sizes: layers, width,
heads, vocabulary, batch, sequence. This script finds the bytes twice before any is
allocated, by a formula and by a run on fake tensors, and then runs the step for real.
The claim: the three agree to within 2 %, and mostly to the byte, in float32 and
bfloat16, under ``autocast``, with checkpointing. So the formula may be trusted where no
real run is possible, and it says which models of 1 to 70 billion parameters train on
cards of 24, 80 and 141 GB.
"""

import weakref
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.autograd import profiler_legacy
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

MiB, GiB = 2**20, 2**30
recomputed = partial(checkpoint, use_reentrant=False)
device = torch.accelerator.current_accelerator(check_available=True)
device = device or torch.device("cpu")
torch.set_num_threads(1)  # bytes do not depend on it, and small steps are quicker
print(f"torch {torch.__version__}; every number up to the last block is from the CPU")

# %%
# The model
# ---------
#
# A decoder as most language models are built: attention with grouped key and value
# heads, a gated feed-forward part, a norm before each, no biases. Two things are
# simpler. There is no position code. And the norm is ``LayerNorm``: ``RMSNorm`` is
# several operators on a CPU, which save more.


@dataclass(frozen=True)
class Config:
    """The sizes of a decoder. All are counts, none is in bytes."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int

    @property
    def kv(self) -> int:
        """The width of the keys, and of the values."""
        return self.width // self.heads * self.kv_heads


linear = partial(nn.Linear, bias=False)


class Block(nn.Module):
    """Attention and a gated feed-forward part, each after a norm."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.head = c.width // c.heads
        self.norm1 = nn.LayerNorm(c.width, bias=False)
        self.query, self.out = linear(c.width, c.width), linear(c.width, c.width)
        self.key, self.value = linear(c.width, c.kv), linear(c.width, c.kv)
        self.norm2 = nn.LayerNorm(c.width, bias=False)
        self.gate, self.up = linear(c.width, c.ffn), linear(c.width, c.ffn)
        self.down = linear(c.ffn, c.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the results of both parts to the stream x."""
        h = self.norm1(x)
        q, k, v = (
            layer(h).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    """Embedding, blocks, norm, and an output layer of its own."""

    def __init__(self, c: Config, checkpoint: bool = False) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.embedding = nn.Embedding(c.vocab, c.width)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.LayerNorm(c.width, bias=False)
        self.output = linear(c.width, c.vocab)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of each token's successor."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = recomputed(block, x) if self.checkpoint else block(x)
        return self.output(self.norm(x))


# %%
# Parameters, exactly
# -------------------
#
# On the ``meta`` device a model has shapes and no memory, so 70 billion parameters are
# counted at once. The sum by hand must agree with it. The usual short cut, 12 numbers a
# layer for each square of the width, holds for attention with full key and value heads
# and two feed-forward matrices four times as wide, and knows of no vocabulary.


def matrices(c: Config) -> int:
    """Return how many numbers the weights of a block's linear layers hold."""
    return c.width * (2 * c.width + 2 * c.kv + 3 * c.ffn)


def parameters(c: Config) -> int:
    """Return the number of parameters."""
    norms, tables = (2 * c.layers + 1) * c.width, 2 * c.vocab * c.width
    return c.layers * matrices(c) + norms + tables


MODELS = {
    "1.5B": Config(16, 2048, 32, 8, 8192, 128_256),
    "8B": Config(32, 4096, 32, 8, 14_336, 128_256),
    "13B": Config(40, 5120, 40, 40, 13_824, 32_000),
    "70B": Config(80, 8192, 64, 8, 28_672, 128_256),
}

print(f"{'':5}{'parameters':>15}{'12·L·d²':>10}{'two tables':>12}")
for name, c in MODELS.items():
    total = parameters(c)
    rule, tables = 12 * c.layers * c.width**2, 2 * c.vocab * c.width
    print(f"{name:5}{total:15,}{rule / total:10.0%}{tables / total:12.0%}")
    with torch.device("meta"):
        model = Decoder(c)
    assert total == sum(p.numel() for p in model.parameters()), f"{name}: miscounted"

# %%
# What a token adds
# -----------------
#
# Two types of numbers occur. The parameters, and the stream that the blocks add to, are
# *wide*; what linear layers compute is *narrow*. They differ under ``autocast`` alone.
#
# A block saves the stream before each norm and two statistics of each norm; its linear
# layers' inputs, where layers that read one tensor share it (under ``autocast`` each
# makes a bfloat16 copy of its own: three for query, key and value, two for gate and
# up); queries, keys, values and the attention's output; gate, its SiLU, up and their
# product. Attention adds one float32 for each head, the logarithm of a sum of
# exponentials, and saves nothing of the scores: so works the CPU's kernel, and
# CUDA's flash kernel, which takes half precision only. By PyTorch's reference grouped
# heads run on CUDA with flash or with plain operators alone. The latter save the
# scores, so in float32 there the formula counts too little.

BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def saved_per_token(c: Config, dtype: str = "float32", autocast: bool = False) -> int:
    """Return the bytes that one block saves for each token."""
    wide = BYTES[dtype]
    narrow, inputs = (2, 5) if autocast else (wide, 2)
    row = (inputs + 2) * c.width + 2 * c.kv + 4 * c.ffn
    return wide * (2 * c.width + 4) + narrow * row + 4 * c.heads


c = MODELS["8B"]
for dtype, autocast in ("float32", False), ("float32", True), ("bfloat16", False):
    saved = saved_per_token(c, dtype, autocast)
    name = "autocast" if autocast else dtype
    print(f"{name:9}{saved:8,} bytes, {saved / c.width:5.1f} for each of the width")

# %%
# The formula
# -----------
#
# Memory peaks at one of six moments of the step, and different tensors are alive at
# each. From the last block's backward to the first one's memory falls or rises evenly,
# so these two are enough. (With a vocabulary smaller than the width other moments of
# the first block's backward can be a little higher.)

STATE = {"adamw": 2, "momentum": 1, "sgd": 0}  # numbers for each parameter
UPDATES = {"foreach", "fused"}
KINDS = {"parameters": "params", "gradients": "grads", "state": "state"}
KINDS |= {"saved": "saved", "casts": "casts", "logits": "logit", "temporaries": "temp"}


@dataclass(frozen=True)
class Setup:
    """How a decoder is trained; ``estimate`` explains the fields and the errors."""

    config: Config
    batch: int
    sequence: int
    dtype: str = "float32"
    optimizer: str = "adamw"
    update: str = "foreach"
    autocast: bool = False
    checkpoint: bool = False

    def __post_init__(self) -> None:
        sizes = asdict(self.config) | {"batch": self.batch, "sequence": self.sequence}
        for name, n in sizes.items():
            if not isinstance(n, int) or isinstance(n, bool) or n < 1:
                raise ValueError(f"{name} must be a whole number above 0, not {n!r}")
        for many, one in ("width", "heads"), ("heads", "kv_heads"):
            if sizes[many] % sizes[one]:
                wrong = f"{sizes[many]} of {sizes[one]}"
                raise ValueError(f"{many} must be a multiple of {one}, not {wrong}")
        choices = {"dtype": BYTES, "optimizer": STATE, "update": UPDATES}
        for name, allowed in choices.items():
            if (value := getattr(self, name)) not in allowed:
                known = ", ".join(map(repr, sorted(allowed)))
                raise ValueError(f"{name} must be one of {known}, not {value!r}")
        if self.autocast and self.dtype != "float32":
            raise ValueError(f"autocast needs dtype 'float32', not {self.dtype!r}")


def moments(config: Config, **how) -> dict[str, dict[str, int]]:
    """Return the bytes alive by kind, at each moment where a step may peak.

    The step is the second or a later one, so the optimizer's state is there.
    Arguments and errors are those of ``estimate``.
    """
    s, c, zero = Setup(config, **how), config, dict.fromkeys(KINDS, 0)
    tokens, wide = s.batch * s.sequence, BYTES[s.dtype]
    narrow, cast = (2, 2) if s.autocast else (wide, 0)  # bytes a number
    total, per_block = parameters(c), matrices(c) + 2 * c.width
    table, down = c.vocab * c.width, c.ffn * c.width  # parameters, too
    state = wide * total * STATE[s.optimizer]
    if s.optimizer == "adamw":  # counts its steps, for each tensor
        state += 4 * (9 * c.layers + 3)
    stream = tokens * c.width * wide
    block = tokens * saved_per_token(c, s.dtype, s.autocast)
    kept = stream if s.checkpoint else block  # after a block's forward
    saved = c.layers * kept + stream + tokens * (c.width * narrow + 2 * wide)
    casts, logits = cast * matrices(c), tokens * c.vocab
    copy = wide * total if (s.optimizer, s.update) == ("adamw", "foreach") else 0

    fixed = {"parameters": wide * total, "state": state}
    fixed["other"] = 16 * tokens + 2 * wide  # tokens and targets; the loss

    def alive(gradients=0, **kinds):
        return {**zero, **fixed, "gradients": wide * gradients, **kinds}

    def backward(i):
        """Block i has the gradients of down's weight, of gate, SiLU and up."""
        blocks = 1 if s.checkpoint else i + 1  # of which casts are alive
        return alive(
            gradients=table + c.width + (c.layers - 1 - i) * per_block + down,
            saved=i * kept + block - tokens * c.ffn * narrow,  # less down's input
            casts=blocks * casts - cast * down,
            temporaries=stream + 3 * tokens * c.ffn * narrow,
        )

    return {
        # logits, under autocast a float32 copy of them, log-probabilities
        "forward": alive(
            saved=saved,
            casts=c.layers * casts + cast * table,
            logits=logits * (narrow + 2 * cast + wide),
        ),
        # log-probabilities, their gradient, that of the logits; autocast has ended, and
        # dropped the casts that nothing has saved
        "loss": alive(
            saved=saved,
            casts=(0 if s.checkpoint else c.layers) * casts + cast * table,
            logits=logits * 3 * wide,
        ),
        "last block": backward(c.layers - 1),
        "first block": backward(0),
        # the embedding's gradient is there, and that of its output not yet gone
        "embedding": alive(gradients=total, temporaries=stream),
        # foreach: the denominators of all parameters
        "update": alive(gradients=total, temporaries=copy, other=16 * tokens),
    }


def estimate(config: Config, **how) -> tuple[str, dict[str, int]]:
    """Return the moment of a training step's peak, and the bytes alive then, by kind.

    ``config``: the sizes of the model.
    ``batch``, ``sequence``: sequences in a step, and tokens in each.
    ``dtype``: the type of the parameters, "float32", "bfloat16" or "float16".
    ``optimizer``: "adamw", "momentum" (SGD with it) or "sgd".
    ``update``: its implementation, "foreach" (torch's default on CUDA) or "fused".
    ``autocast``: forward in bfloat16, with float32 parameters.
    ``checkpoint``: keep each block's input only, and run the block again in backward.

    All values are bytes, not MiB. The last one, "peak", is the sum of the others. A
    kind that is not alive at the peak counts 0. The peak is never too high, and too low
    by less than 1 % if the vocabulary is at least as large as the width.

    Raises ValueError if a size is not a whole number above 0, if heads do not divide
    the width or kv_heads the heads, if a name is not one of those above, or if autocast
    is asked for with a dtype other than "float32".
    """
    found = moments(config, **how)
    moment = max(found, key=lambda name: sum(found[name].values()))
    return moment, {**found[moment], "peak": sum(found[moment].values())}


# %%
# What makes no sense is refused, and the message says what is allowed.

tiny = Config(layers=2, width=8, heads=2, kv_heads=1, ffn=16, vocab=32)
for wrong in {"batch": 0}, {"dtype": "int8"}, {"optimizer": "lion"}:
    try:
        estimate(tiny, **{"batch": 1, "sequence": 4, **wrong})
    except ValueError as error:
        print(error)
    else:
        raise AssertionError(f"{wrong} must be refused")

# %%
# The count, and a real run
# -------------------------
#
# A dispatch mode sees every operator of forward, backward and update. The ledger adds
# up the storages that their results live in, of fake tensors as of real ones. The third
# witness needs no mode: the CPU's allocator, whose every call the profiler records.
# (The old profiler, since the new one prints to the terminal.) It also sees what
# kernels keep for themselves.

OPTIMIZERS = {
    "adamw": (torch.optim.AdamW, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "sgd": (torch.optim.SGD, {}),
}


class Ledger(TorchDispatchMode):
    """Count the bytes of live storages, now and at the peak."""

    def __init__(self, *alive) -> None:
        super().__init__()
        self.known, self.now, self.peak = weakref.WeakSet(), 0, 0
        self.hold(alive)

    def hold(self, results) -> None:
        """Note the storages of tensors; views share one that is known already."""
        for tensor in tree_leaves(results):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage not in self.known:
                    self.known.add(storage)
                    self.now += storage.nbytes()
                    weakref.finalize(storage, self.release, storage.nbytes())
        self.peak = max(self.peak, self.now)

    def release(self, size: int) -> None:
        """Forget a storage that torch has freed."""
        self.now -= size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.hold(out)
        return out


class Run:
    """A model, its optimizer with state, and a batch; the arguments are estimate's."""

    def __init__(self, config: Config, where: str = "cpu", **how) -> None:
        s = Setup(config, **how)
        torch.manual_seed(0)
        torch.set_default_dtype(getattr(torch, s.dtype))
        with torch.device(where):
            self.model = Decoder(config, s.checkpoint)
            self.tokens = torch.randint(config.vocab, (2, s.batch, s.sequence))
        torch.set_default_dtype(torch.float32)
        self.autocast = torch.autocast(where, torch.bfloat16, enabled=s.autocast)
        kind, options = OPTIMIZERS[s.optimizer]
        options = {"lr": 0.001, s.update: True, **options}
        self.optimizer = kind(self.model.parameters(), **options)
        for p in self.model.parameters():  # one update makes the state
            p.grad = torch.zeros_like(p)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def step(self) -> None:
        """Train on the batch once."""
        self.optimizer.zero_grad()
        tokens, targets = self.tokens
        with self.autocast:
            logits = self.model(tokens).flatten(0, 1)
            loss = F.cross_entropy(logits, targets.flatten())
            del logits
        loss.backward()
        del loss
        self.optimizer.step()

    def ledger(self) -> Ledger:
        """Return a ledger of what is alive before a step."""
        self.optimizer.zero_grad()
        return Ledger(*self.model.parameters(), self.optimizer.state, self.tokens)

    def count(self) -> int:
        """Return the peak of a step in bytes, as the ledger counts it."""
        with self.ledger() as ledger:
            self.step()
        return ledger.peak

    def allocated(self) -> int:
        """Return the peak of a step in bytes, as the allocator sees it."""
        before = self.ledger().now
        config = profiler_legacy.profile(profile_memory=True).config()
        torch.autograd._enable_profiler_legacy(config)
        self.step()
        threads = torch.autograd._disable_profiler_legacy()
        events = [event for events in threads for event in events]
        sizes = [e.cpu_memory_usage() for e in events if e.kind() == "memory_alloc"]
        return before + max(accumulate(sizes))


def counted(config: Config, **how) -> int:
    """Return the peak of a step in bytes, counted on fake tensors."""
    with FakeTensorMode(allow_fallback_kernels=False):
        return Run(config, **how).count()


small = Config(layers=3, width=128, heads=8, kv_heads=2, ffn=344, vocab=1024)
size = {"batch": 16, "sequence": 16}  # bytes depend on the product alone
cases = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "autocast": {"autocast": True},
    "+ checkpoint": {"autocast": True, "checkpoint": True},
    "SGD, + ckpt": {"checkpoint": True, "optimizer": "sgd"},
    "vocabulary 64": {"vocab": 64, "update": "fused"},
}

print(f"{'bytes':13} {'formula':>10} {'fake':>5} {'real':>5}  peak")
for name, how in cases.items():
    how = {**size, **how}
    c = replace(small, vocab=how.pop("vocab", small.vocab))
    moment, sizes = estimate(c, **how)
    peak, found = sizes["peak"], (counted(c, **how), Run(c, **how).allocated())
    fake, real = ("same" if p == peak else f"{p - peak:+,}" for p in found)
    print(f"{name:13} {peak:10,} {fake:>5} {real:>5}  {moment}")
    assert all(abs(peak / p - 1) < 0.02 for p in found), f"{name}: more than 2 % off"

# %%
# The last column is the moment of the peak. At the *loss* all activations are alive and
# no gradient is; in the *update* it is the other way round; in a *block*'s backward its
# gradients come on top of what is still saved. Each moment grows evenly with the depth,
# but the peak moves from one to another, so it must not be extrapolated.

c = MODELS["8B"]
how = {"batch": 1, "sequence": 4096, "checkpoint": True, "update": "fused"}
peaks = {}
for layers in 1, 2, 8:
    moment, sizes = estimate(replace(c, layers=layers), **how)
    peaks[layers] = sizes["peak"]
    print(f"{layers} layers {sizes['peak'] / GiB:6.1f} GiB, {moment}")
line = peaks[1] + 7 * (peaks[2] - peaks[1])
print(f"8 layers {line / GiB:6.1f} GiB by a line through 1 and 2")
assert peaks[8] == counted(replace(c, layers=8), **how), "the fake run differs"
assert line < 0.95 * peaks[8], "the peak has moved, from the loss to the embedding"

# %%
# Rules of thumb
# --------------
#
# Sixteen bytes a parameter is right for AdamW in float32 if the update is fused. One
# token is trained on here, so that nothing else counts.

print("bytes a parameter foreach  fused")
rules = {"adamw": (20, 16), "momentum": (12, 12), "sgd": (8, 8)}
for optimizer, rule in rules.items():
    for dtype in "float32", "bfloat16":
        how = {"optimizer": optimizer, "dtype": dtype, "batch": 1, "sequence": 1}
        peaks = [estimate(c, **how, update=u)[1]["peak"] for u in ("foreach", "fused")]
        foreach, fused = (round(peak / parameters(c), 2) for peak in peaks)
        print(f"{optimizer:9}{dtype:9}{foreach:7.2f}{fused:7.2f}")
        assert (foreach, fused) == tuple(BYTES[dtype] / 4 * n for n in rule)

# %%
# Four large models
# -----------------
#
# One sequence of 4096 tokens. The last way is bfloat16 with checkpointing and a fused
# update. Fake tensors are asked as well: of the largest model, with 70 billion
# parameters, the whole step is counted, of the others two layers.
#
# Messages about missing memory give the total capacity of cards sold as 24, 80 and
# 141 GB as about 23.6, 79.1 and 139.8 GiB, so their GB are nearly GiB. Of these, 2 GiB
# are left here for what is no tensor: the CUDA context, workspaces of libraries, gaps
# between the allocator's blocks.

CARDS = {"24": 23.6, "80": 79.1, "141": 139.8}  # GB by name, GiB in messages
LEFT = 2 * GiB


def cards(peak: int) -> list[str]:
    """Return the cards on which a step with this peak in bytes fits."""
    return [name for name, total in CARDS.items() if peak + LEFT <= total * GiB]


WAYS = {
    "float32": {},
    "autocast": {"autocast": True},
    "+ checkpoint": {"autocast": True, "checkpoint": True},
    "bfloat16": {"dtype": "bfloat16"},
    "+ ckpt, fused": {"dtype": "bfloat16", "checkpoint": True, "update": "fused"},
}
batch = {"batch": 1, "sequence": 4096}
table = {}
for name, c in MODELS.items():
    whole = name == "70B"  # all four would take ten seconds
    part, how = c if whole else replace(c, layers=2), {"dtype": "bfloat16"}
    peak, fake = (
        estimate(part, **batch, **how)[1]["peak"],
        counted(part, **batch, **how),
    )
    print(f"{name}, {part.layers} layers of {c.layers}, bfloat16: {fake:,} bytes, fake")
    assert peak == fake, f"{name}: the fake run differs"
    titles = "".join(f"{title:>6}" for title in KINDS.values())
    print(f"{name + ', GiB':13} {titles}    peak of           on cards")
    for way, how in WAYS.items():
        moment, row = estimate(c, **batch, **how)
        table[name, way] = row
        numbers = "".join(f"{row[kind] / GiB:6.1f}" for kind in KINDS)
        fit = " ".join(cards(row["peak"])) or "none"
        print(f"{way:13} {numbers}{row['peak'] / GiB:8.1f} {moment:12} {fit}")

assert cards(table["8B", "float32"]["peak"]) == []
assert cards(table["8B", "bfloat16"]["peak"]) == ["80", "141"]
assert cards(table["13B", "bfloat16"]["peak"]) == ["141"]
assert not any(cards(table["70B", way]["peak"]) for way in WAYS)
assert cards(2 * parameters(MODELS["8B"])) == ["24", "80", "141"], "weights alone"

# %%
# Of an 8B model, neither ``autocast`` nor checkpointing lowers the peak: it comes in
# the update, where no activation is alive. What helps there is another type, a fused
# update, or a leaner optimizer. Of the small model, whose vocabulary is as large, the
# logits alone take 5.9 GiB at the loss, and there checkpointing does help.
#
# 70 billion parameters do not fit in any of these ways. They must be spread over
# several cards.

peaks = [table["8B", way]["peak"] for way in ("float32", "autocast", "+ checkpoint")]
assert len(set(peaks)) == 1, "the update knows nothing of activations"
assert table["1.5B", "+ checkpoint"]["peak"] < table["1.5B", "autocast"]["peak"]
assert table["1.5B", "float32"]["logits"] == 3 * 4 * 4096 * 128_256

rows = [(name, way) for name in ("1.5B", "8B") for way in WAYS]
figure, axes = plt.subplots(figsize=(4.5, 5), layout="constrained")
labels = [f"{name} {way}" for name, way in rows]
left = [0.0] * len(rows)
for number, kind in enumerate(KINDS):
    widths = [table[row][kind] / GiB for row in rows]
    axes.barh(labels, widths, left=left, color=f"C{number}", label=kind)
    left = [a + b for a, b in zip(left, widths, strict=True)]
for name, total in CARDS.items():
    axes.axvline(total, color=plt.rcParams["axes.edgecolor"], linestyle="--")
    axes.annotate(
        f"{name} GB", (total, 1.01), xycoords=("data", "axes fraction"), ha="center"
    )
axes.set_title("Bytes at the peak, by kind", pad=20)
axes.set_xlabel("GiB alive at the peak")
axes.invert_yaxis()
figure.legend(loc="outside lower center", ncols=3)

# %%
# Beside the CUDA allocator
# -------------------------
#
# Under ``autocast`` attention runs in half precision, so the flash kernel may be used.

if device.type == "cuda":
    how = {**size, "autocast": True}
    run = Run(small, **how, where="cuda")
    run.step()  # libraries take their workspaces now
    run.optimizer.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    run.step()
    formula, used = estimate(small, **how)[1]["peak"], torch.cuda.max_memory_allocated()
    print(f"formula {formula / MiB:.2f} MiB, allocator {used / MiB:.2f} MiB")
else:
    print(f"Ran on {device}: torch.cuda.max_memory_allocated() was not compared.")
