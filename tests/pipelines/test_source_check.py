"""A look at a source finds what would end the stages, and lets pass what would not."""

from pathlib import Path

import pytest

from albert_core.stage.errors import SourceError
from pipelines.config import ExampleSettings, SourceSettings
from pipelines.examples.pairs import is_held_out
from pipelines.source_files import check_source

PICTURE = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\xff\xfe\x80"
NOISE = b"\x00\xff\xfe\x80"


def check(folder: Path) -> None:
    check_source(SourceSettings(uri=str(folder)), lambda name: is_held_out(name, ExampleSettings()))


def test_a_folder_with_text_passes_also_with_a_picture_in_it(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number}.txt").write_text(f"The text of document {number}.")
    check(tmp_path)
    (tmp_path / "0.png").write_bytes(PICTURE)
    check(tmp_path)


@pytest.mark.parametrize(
    ("content", "large", "reason"),
    [(PICTURE, PICTURE, "not_text"), (NOISE, NOISE * (1 << 19), "not_decodable")],
)
def test_a_folder_without_text_is_no_source(
    content: bytes, large: bytes, reason: str, tmp_path: Path
) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_bytes(content)
    (tmp_path / "large.txt").write_bytes(large)
    with pytest.raises(SourceError, match=rf"no record .* can be read \({reason} \d of \d"):
        check(tmp_path)


def test_a_large_folder_may_begin_with_pictures(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.png").write_bytes(PICTURE)
    (tmp_path / "text.txt").write_text("The text. " * (1 << 17))
    check(tmp_path)


def test_three_small_files_are_too_few_to_hold_some_out(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("Too little.")
    with pytest.raises(SourceError, match="has 3 documents, of which 0 would be held out"):
        check(tmp_path)


def test_an_empty_folder_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has no file"):
        check(tmp_path)
