"""Zip archives that are the same, byte for byte, whenever and wherever they are made."""

from __future__ import annotations

import os
import subprocess
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FIRST = 315532800  # 1980-01-01, before which a zip knows no time


def moment() -> int:
    """Return the time that a build is of, in seconds since 1970.

    It is SOURCE_DATE_EPOCH, else that of the last commit, else now.
    """
    said = os.environ.get("SOURCE_DATE_EPOCH") or last_commit() or time.time()
    return max(int(said), FIRST)


def last_commit() -> str:
    """Return the time of the last commit; nothing where there is no git or no repository."""
    git = ["git", "-C", str(Path(__file__).parent), "log", "-1", "--format=%ct"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


def write_zip(target: Path, files: Iterable[tuple[str, bytes]], when: int) -> None:
    """Write (name, content) of each file in the order given, all of them with one time.

    ``mimetype``, which an EPUB begins with, is stored as it is.
    """
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in files:
            entry = zipfile.ZipInfo(name, time.gmtime(when)[:6])
            entry.create_system = 3  # Unix, also when written elsewhere
            entry.external_attr = 0o644 << 16
            stored = name == "mimetype"
            entry.compress_type = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    os.utime(target, (when, when))
