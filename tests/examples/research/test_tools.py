"""The tools as a model uses them."""

from __future__ import annotations

from pathlib import Path

import pytest
from research import tools
from research.folder import MAX_SEARCHED_BYTES, NotReadable

from celery_agents.worker.tools import Effect, InvalidArguments


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(tools.PATH_VARIABLE, str(tmp_path))
    (tmp_path / "long.txt").write_text("\n".join(f"line {number}" for number in range(1, 501)))
    (tmp_path / "short.md").write_text("# Title\n\nWorkers are killed.\n")
    return tmp_path


def test_they_are_pure_and_described() -> None:
    for tool in (tools.list_files, tools.search_files, tools.read_file):
        assert tool.effect is Effect.PURE
        assert tool.description
        assert not any("description" not in field for field in tool.parameters["properties"].values())


def test_a_long_file_is_read_in_parts() -> None:
    first = tools.read_file("long.txt")
    assert (first["first_line"], first["last_line"], first["more_lines"]) == (1, 200, True)
    last = tools.read_file("long.txt", first_line=401)
    assert (last["first_line"], last["last_line"], last["more_lines"]) == (401, 500, False)
    assert last["text"].startswith("401: line 401\n402: ")


def test_lines_beyond_the_end_are_none() -> None:
    assert tools.read_file("long.txt", first_line=900)["text"] == ""


@pytest.mark.parametrize("args", [{"file": "long.txt", "first_line": 0}, {"file": 5}, {}, {"file": "a", "last": 3}])
def test_wrong_arguments_are_refused(args: dict[str, object]) -> None:
    with pytest.raises(InvalidArguments):
        tools.read_file.bind(args)


def test_a_range_the_wrong_way_round_is_refused() -> None:
    with pytest.raises(NotReadable, match="swap"):
        tools.read_file("long.txt", first_line=5, last_line=4)


def test_a_search_tells_where_and_how_often() -> None:
    found = tools.search_files("killed unicorns")
    assert found["words"] == {"killed": 1, "unicorns": 0}
    assert [(hit["file"], hit["line"], hit["text"]) for hit in found["results"]] == [
        ("short.md", 3, "Workers are killed.")
    ]


def test_a_listing_gives_sizes_and_counts(folder: Path) -> None:
    assert tools.list_files("*.md") == {"count": 1, "files": [{"file": "short.md", "bytes": 29}], "left_out": 0}


def test_a_huge_file_is_not_searched_and_said_so(folder: Path) -> None:
    (folder / "huge.log").write_text("killed " * (MAX_SEARCHED_BYTES // 7 + 1))
    found = tools.search_files("killed")
    assert found["files_too_large_to_search"] == ["huge.log"]
    assert [hit["file"] for hit in found["results"]] == ["short.md"]


def test_without_a_setting_it_is_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tools.PATH_VARIABLE)
    assert tools.folder().root == Path.cwd()
