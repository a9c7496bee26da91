"""The same commit gives the same bytes, whatever the folder, the time zone and the hash seed.

The gallery's pages are copied, so no script runs here; what its scripts print and draw is the same
each time as well: sphinx-gallery leaves differing times and zips beside them, which no page shows.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import archive
import pytest
from conftest import ROOT

from noxfile import DOWNLOADS, MADE

EPOCH = "1700000000"
PLACES = {"one": "Asia/Tokyo", "another/folder": "America/Lima"}


def build(folder: Path, zone: str, seed: int) -> dict[str, bytes]:
    """Build everything from nothing in a copy of the project; return the files published."""
    for name in ("conf", "docs", "gallery"):
        shutil.copytree(ROOT / name, folder / name)
    records = Path("build/doctest/examples.json")
    if (ROOT / records).exists():
        (folder / records).parent.mkdir(parents=True)
        shutil.copy(ROOT / records, folder / records)
    more = {"SOURCE_DATE_EPOCH": EPOCH, "TZ": zone, "PYTHONHASHSEED": str(seed)}
    for step in DOWNLOADS:
        done = subprocess.run(
            [sys.executable, *step],
            cwd=folder,
            env=os.environ | more,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    published = [*(folder / "build/html").rglob("*"), *(folder / MADE).glob("*/pytorch-answered.*")]
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in published
        if file.is_file()
    }


def test_two_builds_in_two_folders_are_the_same(site: Path, tmp_path: Path) -> None:
    one, two = (
        build(tmp_path / place, zone, seed)
        for seed, (place, zone) in enumerate(PLACES.items(), start=1)
    )
    assert {name.rpartition(".")[2] for name in one} >= {"html", "epub", "apkg", "zip", "svg", "py"}
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == []


def test_zip_has_one_time_and_no_trace_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", EPOCH)
    target = tmp_path / "made.zip"
    archive.write_zip(target, [("mimetype", b"a/b"), ("z", b"1"), ("a", b"2")], archive.moment())
    with zipfile.ZipFile(target) as made:
        assert [entry.filename for entry in made.infolist()] == ["mimetype", "z", "a"]
        assert {entry.date_time for entry in made.infolist()} == {(2023, 11, 14, 22, 13, 20)}
        kinds = [entry.compress_type for entry in made.infolist()]
    assert kinds == [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_DEFLATED]
    assert target.stat().st_mtime == int(EPOCH)


def test_moment_is_never_before_what_a_zip_can_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert archive.moment() == 315_532_800


def test_moment_is_that_of_the_last_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    (tmp_path / "extensions").mkdir()
    monkeypatch.setattr(archive, "__file__", str(tmp_path / "extensions" / "archive.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert archive.last_commit() == ""
    monkeypatch.setenv("GIT_COMMITTER_DATE", f"{EPOCH} +0900")
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    assert archive.moment() == int(EPOCH)
    monkeypatch.setenv("PATH", "")
    assert archive.last_commit() == ""
