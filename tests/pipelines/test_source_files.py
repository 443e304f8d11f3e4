"""Which files a source has, how they are grouped, and what is found before anything is started."""

import importlib.metadata
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from pathlib import Path
from typing import ClassVar
from unittest.mock import Mock
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_core.stage import storage
from albert_core.stage.errors import ConfigError, OutageError, SourceError, is_transient
from pipelines import clean_corpus, source_files
from pipelines.config import (
    INSTALLED_PYTHON,
    CleaningSettings,
    ExampleSettings,
    SourceSettings,
)
from pipelines.examples.held_out import is_held_out
from pipelines.source_files import (
    MAX_UNIT_BYTES,
    SourceFile,
    check_source,
    describe_changes,
    list_source,
    read_files,
    units_of,
    write_files,
)
from tests.conftest import not_listed

FILES = {"a.txt": b"abc", "AA/wiki_00": b"one", "AA/wiki_01": b"two", "BB/wiki_00": b"three"}
MB = 1 << 20


@pytest.fixture(params=["local", "memory"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder with the files above."""
    folder = str(tmp_path / "source") if request.param == "local" else f"memory://{uuid4().hex}"
    for name, content in FILES.items():
        storage.write_bytes(storage.join(folder, name), content)
    return folder


def names(uri: str | list[str], file_share: float = 1.0) -> list[str]:
    return [file.name for file in list_source(SourceSettings(uri=uri, file_share=file_share)).files]


def test_a_folder_is_all_its_files_by_name(source: str) -> None:
    assert names(source) == names(f"{source}/") == sorted(FILES)
    for file in list_source(SourceSettings(uri=source)).files:
        assert file.num_bytes == len(FILES[file.name])
        assert file.sha256 == storage.sha256_of(file.uri)
        assert file.modified


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("**", sorted(FILES)),
        ("*.txt", ["a.txt"]),
        ("AA/wiki_*", ["wiki_00", "wiki_01"]),
        ("*/wiki_00", ["AA/wiki_00", "BB/wiki_00"]),
        ("**/wiki_0*", ["AA/wiki_00", "AA/wiki_01", "BB/wiki_00"]),
        ("AA/wiki_0?", ["wiki_00", "wiki_01"]),
        ("AA/wiki_0[01]", ["wiki_00", "wiki_01"]),
        ("[AB]*/wiki_00", ["AA/wiki_00", "BB/wiki_00"]),
    ],
)
def test_a_glob_is_the_files_it_matches_by_their_names_from_its_fixed_part(
    source: str, pattern: str, expected: list[str]
) -> None:
    assert names(f"{source}/{pattern}") == expected


def test_a_folder_whose_name_looks_like_a_glob_is_a_folder(tmp_path: Path) -> None:
    storage.write_bytes(f"{tmp_path}/wiki [2018]/a.txt", b"abc")
    assert names(f"{tmp_path}/wiki [2018]") == names(f"{tmp_path}/wiki [2018]/a.txt") == ["a.txt"]


def test_the_roots_of_a_source_are_its_files_and_folders_and_those_above_a_glob(
    tmp_path: Path,
) -> None:
    (tmp_path / "a[1]").mkdir()
    uris = ["a[1]", "gone", "gone/*.txt", "gone/a*.txt", "one.txt", "**"]
    roots = source_files.roots_of([f"{tmp_path}/{uri}" for uri in uris])
    assert [root.removeprefix(f"file://{tmp_path}") for root in roots] == [
        *("/a[1]", "/gone", "/gone", "/gone", "/one.txt", "")
    ]
    assert source_files.roots_of("s3://bucket/wiki/*") == ["s3://bucket/wiki"]


def test_names_and_digests_do_not_change_when_the_source_moves(tmp_path: Path) -> None:
    digests = set()
    for folder in (tmp_path / "here", tmp_path / ".hidden" / "there"):
        for name, content in FILES.items():
            storage.write_bytes(str(folder / name), content)
        for uri in (str(folder), f"{folder}/**"):
            files = list_source(SourceSettings(uri=uri)).files
            digests.add(tuple((file.name, file.sha256) for file in files))
    assert len(digests) == 1


def test_a_relative_source_is_named_from_where_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.write_bytes(str(tmp_path / "source/a.txt"), b"abc")
    monkeypatch.chdir(tmp_path)
    [file] = list_source(SourceSettings(uri="source")).files
    monkeypatch.chdir("/")
    assert file.name == "a.txt"
    assert storage.read_bytes(file.uri) == b"abc"


def test_files_of_a_dataset_are_read_and_what_describes_it_is_skipped(source: str) -> None:
    for name in ("train/data-0.arrow", "train/cache-1.arrow", "train/state.json"):
        storage.write_bytes(storage.join(source, "set", name), b"x")
    for name in ("set/dataset_dict.json", "set/train/dataset_info.json", "BB/state.json"):
        storage.write_bytes(storage.join(source, name), b"x")
    listing = list_source(SourceSettings(uri=source))
    read = sorted([*FILES, "BB/state.json", "set/train/data-0.arrow"])
    assert [file.name for file in listing.files] == read
    assert listing.skipped == {"beside_dataset": 4}


@pytest.mark.parametrize("glob", ["", "/**"])
def test_every_entry_of_a_folder_is_read_or_counted_under_its_reason(
    tmp_path: Path, glob: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("abc")
    for name in (".DS_Store", ".git/config", "A/.wiki_02.tmp"):
        storage.write_bytes(f"{tmp_path}/{name}", b"x")
    links = {"b.txt": "a.txt", "up": "..", "gone": "nowhere", "x": "y", "y": "x", "p": "pipe"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    os.mkfifo(tmp_path / "pipe")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/bad-\xff.txt")).write_text("text")
    listing = list_source(SourceSettings(uri=f"{tmp_path}{glob}"))
    assert [(file.name, file.num_bytes) for file in listing.files] == [("a.txt", 3), ("b.txt", 3)]
    told = "left out 3 broken_link, 3 hidden, 1 linked_folder, 1 name_not_utf8, 2 special_file"
    assert str(listing) == told
    assert told in caplog.text


def test_folders_that_a_glob_matches_and_does_not_enter_are_told(source: str) -> None:
    top = list_source(SourceSettings(uri=f"{source}/*"))
    folders = {name.partition("/")[0] for name in FILES if "/" in name}
    assert top.skipped == {"folder": len(folders)}
    below = list_source(SourceSettings(uri=f"{source}/**"))
    assert [file.name for file in below.files] == sorted(FILES)
    assert not below.skipped


def test_a_source_that_is_a_link_to_a_folder_is_read_like_the_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/a.txt").write_text("abc")
    (tmp_path / "link").symlink_to("folder")
    listing = list_source(SourceSettings(uri=str(tmp_path / "link")))
    assert ([file.name for file in listing.files], listing.skipped) == (["a.txt"], {})


@pytest.fixture
def unlisted(tmp_path: Path) -> Iterator[str]:
    """A source with a folder that can be listed and one that can't."""
    for name in ("open/a.txt", "closed/b.txt"):
        storage.write_bytes(str(tmp_path / name), b"abc")
    with not_listed(tmp_path / "closed"):
        yield str(tmp_path)


@pytest.mark.parametrize("pattern", ["", "/**", "/**/*.txt", "/*/*.txt"])
def test_a_folder_that_may_not_be_listed_is_an_error(unlisted: str, pattern: str) -> None:
    with pytest.raises(SourceError, match=r"closed can't be listed: .* denied") as refused:
        names(unlisted + pattern)
    assert not is_transient(refused.value)


@pytest.mark.parametrize("pattern", ["/open", "/o*/*.txt", "/o*/**"])
def test_only_folders_that_a_source_enters_have_to_be_listed(unlisted: str, pattern: str) -> None:
    assert [Path(name).name for name in names(unlisted + pattern)] == ["a.txt"]


class Website(BaseHTTPRequestHandler):
    """A page that links to two others with a file each, of which one resets the connection."""

    pages: ClassVar = {"/data": "a/ b/", "/data/a": "1.txt", "/data/a/1.txt": ""}

    def do_GET(self) -> None:
        path = self.path.rstrip("/")
        if path == "/data/b":
            at_once = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            os.close(self.connection.detach())
            self.close_connection = True
            return
        text = "".join(f'<a href="{link}"></a>' for link in self.pages.get(path, "").split())
        self.send_response(200 if path in self.pages else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode() if self.command == "GET" else b"")

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.parametrize("pattern", ["", "/**", "/*/*.txt"])
def test_a_folder_of_the_web_that_does_not_answer_is_an_outage(pattern: str) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Website) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(SourceError, match="/data/b/ can't be listed") as failed:
            names(f"http://127.0.0.1:{server.server_port}/data{pattern}")
        server.shutdown()
    assert is_transient(failed.value)


@pytest.mark.parametrize(
    ("uri", "kind", "told"),
    [
        ("{}/none", SourceError, r"has no file\. Give an existing file, folder or quoted glob, e"),
        ("{}/*.jsonl", SourceError, r"jsonl' has no file\. Give"),
        ("{}/a.txt/b", SourceError, "has no file"),
        ("{}/[ab]/*", SourceError, r"\[\[\] stands for a bracket in a name"),
        (["{}/AA", "{}/CC"], SourceError, "CC of the source .* has no file"),
        (["{}/AA", "{}/AA/*"], SourceError, "would both be named 'AA/wiki_00'"),
        (["{}/AA", "{}/**"], SourceError, "AA/wiki_00 is in the source twice"),
        ("", ConfigError, "there is no text to read: .* Give --source"),
        ([], ConfigError, "there is no text to read: .* Give --source"),
    ],
)
def test_a_source_that_is_not_one_says_what_to_give(
    source: str, uri: str | list[str], kind: type[Exception], told: str, tmp_path: Path
) -> None:
    given = uri.format(source) if isinstance(uri, str) else [each.format(source) for each in uri]
    settings = SourceSettings(uri=given)
    with pytest.raises(kind, match=told):
        list_source(settings)
    if kind is ConfigError:
        with pytest.raises(kind, match=told):
            clean_corpus.find_done(settings, CleaningSettings(), str(tmp_path))


def test_folders_whose_names_look_like_globs_keep_their_names(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"run[{number}]").mkdir()
        (tmp_path / f"run[{number}]" / "a.txt").touch()
    uris = [f"{tmp_path}/run[1]", f"{tmp_path}/run[2]/a.txt", f"{tmp_path}/run[[]2]/*"]
    found = [list_source(SourceSettings(uri=[uri])).files[0].name for uri in uris]
    assert found == ["run[1]/a.txt", "a.txt", "run/run[2]/a.txt"]


def test_a_larger_sample_holds_the_smaller_one(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number}.txt").touch()
    tenth, half, again = (names(str(tmp_path), share) for share in (0.1, 0.5, 0.5))
    assert 0 < len(tenth) < 25
    listing = list_source(SourceSettings(uri=str(tmp_path), file_share=0.1))
    assert listing.skipped == {"not_in_sample": 100 - len(tenth)}
    assert 35 < len(half) < 65
    assert half == again
    assert set(tenth) < set(half)


def test_several_sources_are_named_by_their_folders(source: str) -> None:
    found = names([f"{source}/AA", f"{source}/BB/*", f"{source}/a.txt"])
    assert found == ["AA/wiki_00", "AA/wiki_01", "BB/wiki_00", "a.txt"]


def test_a_file_of_the_same_size_and_time_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in FILES.items():
        storage.write_bytes(str(tmp_path / name), content)
    settings = SourceSettings(uri=str(tmp_path))
    before = list_source(settings).files
    storage.write_bytes(str(tmp_path / "a.txt"), b"xyz")
    now = list_source(settings).files
    noted = Mock(wraps=storage.sha256_of)
    monkeypatch.setattr(storage, "sha256_of", noted)
    assert list_source(settings, before).files == now
    assert [Path(call.args[0]).name for call in noted.call_args_list] == ["a.txt"]


def test_a_file_of_the_web_with_a_date_only_is_read_again_when_that_changes(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"abc")
    os.utime(file, (1e9, 1e9))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings = SourceSettings(uri=f"http://127.0.0.1:{server.server_port}/a.txt")
        before = list_source(settings).files
        file.write_bytes(b"xyz")
        os.utime(file, (1e9, 1e9))
        assert list_source(settings, before).files == before
        os.utime(file, (2e9, 2e9))
        assert list_source(settings, before).files != before
        server.shutdown()


def test_an_edit_that_keeps_size_and_time_is_a_change_all_the_same(tmp_path: Path) -> None:
    file, settings = tmp_path / "a.txt", SourceSettings(uri=str(tmp_path))
    file.write_text("before")
    [before] = list_source(settings).files
    at = file.stat().st_mtime_ns
    file.write_text("after.")
    os.utime(file, ns=(at, at))
    [now] = list_source(settings, [before]).files
    assert now.sha256 == storage.sha256_of(str(file)) != before.sha256
    with pytest.raises(SourceError, match="changed while it was read"):
        source_files.check_unchanged(before)


def test_a_file_that_is_deleted_while_others_are_read_is_no_longer_there_at_the_next_try(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = storage.sha256_of

    def slow(uri: str) -> str:
        if uri.endswith("a.txt"):
            storage.remove(uri)
        return digest(uri)

    monkeypatch.setattr(storage, "sha256_of", slow)
    with pytest.raises(OutageError, match=r"a\.txt was deleted while the source was listed\. Run"):
        names(source)
    assert names(source) == sorted(FILES.keys() - {"a.txt"})


def test_the_installed_distributions_are_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    only = [importlib.metadata.distribution("pytest")]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: only)
    files = list_source(SourceSettings(uri=INSTALLED_PYTHON)).files
    found = {file.name for file in files}
    assert "_pytest/fixtures.py" in found
    assert sum(name.endswith(".dist-info/METADATA") for name in found) == 1
    assert all(name.endswith((".py", "/METADATA")) for name in found)
    assert sorted(found) == [file.name for file in files]


# Units of work


def made(sizes: list[int], splittable: bool = False) -> list[SourceFile]:
    return [
        SourceFile(f"file:///s/{n:05d}", f"{n:05d}", size, "1", f"{n:064x}", "text", splittable)
        for n, size in enumerate(sizes)
    ]


SIZES = st.lists(st.integers(0, 5 * MAX_UNIT_BYTES) | st.integers(0, 1000), max_size=99)


@given(SIZES, st.booleans())
def test_units_have_all_bytes_of_all_files_in_order_and_are_not_too_large(
    sizes: list[int], splittable: bool
) -> None:
    files = made(sizes, splittable)
    units = list(units_of(files))
    parts = [part for unit in units for part in unit]
    assert list(dict.fromkeys(part.file for part in parts)) == files
    assert sum(part.num_bytes for part in parts) == sum(sizes)
    for unit in units:
        is_whole_file = len(unit) == 1 and not splittable
        assert is_whole_file or sum(part.num_bytes for part in unit) <= MAX_UNIT_BYTES
    for _, ranges in groupby(parts, key=lambda part: part.file):
        begins, ends = zip(*((part.begin, part.end) for part in ranges), strict=True)
        assert (0, *ends) == (*begins, None)


def test_small_files_go_together() -> None:
    units = list(units_of(made([2000] * 5000)))
    assert 5000 / 512 < len(units) < 5000 / 128


@pytest.mark.parametrize("num_bytes", [2_000, 100_000, MB, 3 * MB, 6 * MB, 20 * MB])
@pytest.mark.parametrize("where", [0, 333, 999])
def test_a_file_more_or_less_leaves_most_units_as_they_were(num_bytes: int, where: int) -> None:
    files = made([num_bytes] * 1000)
    added = replace(files[where], name=f"{files[where].name}a", sha256="f" * 64)
    before, after = (
        {tuple(part.file.sha256 for part in unit) for unit in units_of(some)}
        for some in (files, [*files[: where + 1], added, *files[where + 1 :]])
    )
    changed = len(after - before)
    assert changed <= 1 + 0.2 * len(after)


def test_a_list_of_files_is_one_object_a_line(tmp_path: Path) -> None:
    uri = str(tmp_path / "list.jsonl")
    files = [replace(made([5])[0], name='line\u2028end/Größe \\ "x".txt')]
    write_files(files, uri)
    [line] = (tmp_path / "list.jsonl").read_text().split("\n")[:-1]
    assert json.loads(line)["name"] == files[0].name
    assert read_files(uri) == files


# What changed


def test_an_excluded_id_may_have_any_character_but_a_line_end(tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("a\u2028b\r\n c\n\na\u2028b\n", newline="")
    assert source_files.read_excluded_ids(str(tmp_path / "ids")) == [" c", "a\u2028b"]


def test_a_list_of_excluded_ids_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "ids").write_bytes("\ufeffa.txt\r\nb.txt".encode())
    assert source_files.read_excluded_ids(str(tmp_path / "ids")) == ["a.txt", "b.txt"]
    with pytest.raises(SourceError, match="is a folder"):
        source_files.read_excluded_ids(str(tmp_path))


def test_a_list_of_excluded_ids_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ids").write_bytes(b"a.jsonl#\xff\n")
    with pytest.raises(SourceError, match=r"excluded_ids .*/ids' is not UTF-8"):
        source_files.read_excluded_ids(str(tmp_path / "ids"))


def test_new_removed_changed_and_touched_files_are_named_at_most_three_of_each() -> None:
    before = gone, changed, touched, same = made([1] * 4)
    changed = replace(changed, sha256="f" * 64, modified="2")
    now = [changed, replace(touched, modified="2"), same, replace(gone, name="00009")]
    assert describe_changes(before, now) == (
        "1 new (00009); 1 removed (00000); 1 changed (00001); "
        "1 touched, with the same content (00002)"
    )
    assert describe_changes(before, before) == ""
    assert describe_changes([], made([1] * 5)) == "5 new (00000, 00001, 00002, ...)"


def test_an_answer_from_another_host_is_said(caplog: pytest.LogCaptureFixture) -> None:
    for answered_by in ("https://a.example/x.txt", "https://b.example/x.txt"):
        source_files._say_other_host("https://a.example/x.txt", {"url": answered_by})
    [told] = caplog.messages
    assert told == "https://a.example/x.txt is answered by another host, b.example"


# What would certainly end the stages

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


def test_records_of_one_id_pass_because_the_stages_tell_them_apart(tmp_path: Path) -> None:
    lines = (json.dumps({"id": "x", "text": f"The text of document {n}."}) for n in range(40))
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
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


def test_a_source_without_the_text_field_says_which_setting_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"content": "A text."}\n')
    told = r"no_text_field 1 of 1 .* under the name source\.text_field; give it the name that"
    with pytest.raises(SourceError, match=told):
        check(tmp_path)


def test_a_file_that_is_gone_after_it_was_listed_is_an_outage(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A text.")
    [file] = list_source(SourceSettings(uri=str(tmp_path))).files
    (tmp_path / "a.txt").unlink()
    with pytest.raises(OutageError, match=r"a\.txt was deleted while it was read"):
        source_files.check_unchanged(file)


@pytest.mark.parametrize("content", [PICTURE, b"<page><title>Of no known kind</title></page>"])
def test_a_large_folder_may_begin_with_what_cannot_be_read(content: bytes, tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.page").write_bytes(content)
    for number in range(3):
        (tmp_path / f"text-{number}.txt").write_text("The text. " * (1 << 16))
    check(tmp_path)


def test_three_small_files_are_too_few_to_hold_some_out(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("Too little.")
    with pytest.raises(SourceError, match="has 3 documents, of which 0 would be held out"):
        check(tmp_path)
