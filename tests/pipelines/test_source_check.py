"""A look at a source finds what would end the stages, and lets pass what would not."""

from pathlib import Path

import pytest

from albert_core.stage.errors import SourceError
from pipelines.config import ExampleSettings, SourceSettings
from pipelines.source_check import check_source

PICTURE = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\xff\xfe\x80"


def check(folder: Path) -> None:
    check_source(SourceSettings(uri=str(folder)), ExampleSettings())


def test_a_folder_with_text_passes_also_with_a_picture_in_it(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number}.txt").write_text(f"The text of document {number}.")
    check(tmp_path)
    (tmp_path / "0.png").write_bytes(PICTURE)
    check(tmp_path)


@pytest.mark.parametrize("size", [1, 2 << 20])
def test_a_folder_of_pictures_is_no_source(size: int, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(PICTURE)
    (tmp_path / "large.png").write_bytes(PICTURE * size)
    with pytest.raises(SourceError, match=r"no record .* can be read \(not_decodable \d of \d"):
        check(tmp_path)


def test_three_small_files_are_too_few_to_hold_some_out(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("Too little.")
    with pytest.raises(SourceError, match="has 3 documents, of which 0 would be held out"):
        check(tmp_path)


def test_an_empty_folder_is_no_source(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has no file"):
        check(tmp_path)
