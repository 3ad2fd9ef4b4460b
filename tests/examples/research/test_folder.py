"""The folder that tools may read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from research.folder import MAX_LINE_CHARS, Folder, NotReadable


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    root = tmp_path / "files"
    (root / "sub").mkdir(parents=True)
    (root / "a.md").write_text("one\ntwo\nthree\n")
    (root / "sub" / "b.txt").write_text("b\n")
    (tmp_path / "secret.txt").write_text("secret")
    return Folder.at(root)


def names(folder: Folder, pattern: str = "*") -> list[str]:
    return [file.name for file in folder.files(pattern)]


def test_files_are_listed_by_name_and_pattern(folder: Folder) -> None:
    assert names(folder) == ["a.md", "sub/b.txt"]
    assert names(folder, "*.txt") == ["sub/b.txt"]
    assert names(folder, "sub/*") == ["sub/b.txt"]


@pytest.mark.parametrize(
    "name", ["../secret.txt", "sub/../../secret.txt", "/etc/hostname", "..", "~/x", "a\0b", "x" * 5000]
)
def test_nothing_outside_the_folder_can_be_read(folder: Folder, name: str) -> None:
    with pytest.raises(NotReadable):
        folder.file(name)


def test_a_link_that_leads_out_is_neither_listed_nor_read(folder: Folder) -> None:
    (folder.root / "link.txt").symlink_to(folder.root.parent / "secret.txt")
    (folder.root / "up").symlink_to(folder.root.parent)
    (folder.root / "loop").symlink_to(folder.root / "loop")
    assert names(folder) == ["a.md", "sub/b.txt"]
    for name in ("link.txt", "up/secret.txt", "loop"):
        with pytest.raises(NotReadable):
            folder.file(name)


def test_what_is_no_text_is_neither_listed_nor_read(folder: Folder) -> None:
    (folder.root / "picture.png").write_bytes(b"\x89PNG\0\0")
    os.mkfifo(folder.root / "pipe")
    (folder.root / "sub" / ".hidden").write_text("x")
    (folder.root / "node_modules").mkdir()
    (folder.root / "node_modules" / "x.js").write_text("x")
    assert names(folder) == ["a.md", "sub/b.txt"]
    for name in ("picture.png", "pipe", "sub"):
        with pytest.raises(NotReadable):
            folder.file(name)


def test_a_file_name_that_is_no_unicode_is_left_out(folder: Folder) -> None:
    Path(os.fsdecode(os.fsencode(folder.root) + b"/\xff.txt")).write_text("x")
    assert names(folder) == ["a.md", "sub/b.txt"]


def test_lines_are_numbered_like_an_editor_does(folder: Folder) -> None:
    (folder.root / "odd.txt").write_bytes(b"a\x0cb\r\nc\xff\r\n\r\nd")
    file = folder.file("odd.txt")
    assert folder.lines(file) == ["a\x0cb", "c�", "", "d"]
    assert folder.lines(file, first=2, count=1) == ["c�"]
    assert folder.lines(file, first=9) == []


def test_a_long_line_is_cut(folder: Folder) -> None:
    (folder.root / "long.txt").write_text("x" * (MAX_LINE_CHARS + 7))
    assert folder.lines(folder.file("long.txt")) == ["x" * MAX_LINE_CHARS + " [… 7 characters left out]"]


def test_no_folder_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotReadable, match="there is no folder"):
        Folder.at(tmp_path / "none")
