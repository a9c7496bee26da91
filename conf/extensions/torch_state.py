"""Put torch back to how a fresh process has it, and say what this process runs on.

``reset()`` runs before every chapter's examples and every gallery script, so that neither can see
what the one before it left behind: seed, default dtype and device, threads, grad mode, print
options, deterministic flags, anomaly mode. Warnings that torch gives once a process are given
every time, or the page that shows one would depend on the order of the pages.

``raise_warnings()`` makes an error of each warning that Python would show to the reader.
"""

from __future__ import annotations

import platform
import random
import sys
import warnings

import numpy as np
import torch

_THREADS = torch.get_num_threads()


def reset() -> None:
    """Restore torch's global state, and seed torch, NumPy and random with 0."""
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_num_threads(_THREADS)
    torch.set_grad_enabled(True)
    torch.set_printoptions(profile="default")
    torch.set_float32_matmul_precision("highest")
    torch.set_warn_always(True)
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.autograd.set_detect_anomaly(False)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = False
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)


def raise_warnings() -> None:
    """Set Python's own warning filters with "show" turned into "raise"; the caller undoes it."""
    warnings.simplefilter("error")
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning):
        warnings.simplefilter("ignore", category)
    warnings.simplefilter("ignore", ResourceWarning)
    warnings.filterwarnings("error", category=DeprecationWarning, module="__main__")


def describe() -> dict[str, str]:
    """Return the torch and Python versions and the device that examples run on."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        device = "CPU"
    elif accelerator.type == "cuda":
        device = torch.cuda.get_device_name()
    else:
        device = accelerator.type
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "device": device,
    }
