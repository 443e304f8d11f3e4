"""Every reader gives each of eight threads what it gives one, of the same file and of others."""

import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import pytest

from pipelines.config import SourceFormat
from pipelines.readers import READERS
from tests.pipelines.readers.examples import EXAMPLES, QUICK
from tests.pipelines.readers.reading import PACKERS, Read, article, dump, read
from tests.threads import NUM_THREADS, forget_what_is_kept, in_threads

PROJECT = Path(__file__).parents[3]
NUM_FILES = NUM_THREADS + 1
"""So that in a second round each thread has another file."""
MARKUP = (
    "'''Title''' {{convert|3|km}} [[Bildchen:a.png|thumb|''b'']] [[a|the ''link'']] &lt;ref&gt;x"
    "&lt;/ref&gt;\n{|\n|cell\n|}\n== Heading ==\n* one [http://a words] {{lang|de|Größe}}"
)
INVALID_ESCAPES = '''"""Module \\d."""
def f(x):
    r"""Raw \\w."""
    return "\\q" if x is not 5else "\\%"
'''
MORE = {
    "installed-python": [INVALID_ESCAPES.encode() * number for number in (1, 2)],
    "mediawiki-dump": [dump(*(article(n, MARKUP) for n in range(4)))],
}
READ_IN_THREADS = """
import pickle, sys
from tests.pipelines.readers.test_reading_in_threads import File, read_file
from tests.threads import in_threads
assert "trafilatura" not in sys.modules
with open(sys.argv[1], "rb") as inputs:
    files = pickle.load(inputs)
with open(sys.argv[2], "wb") as results:
    pickle.dump(in_threads(read_file, files), results)
"""


class File(NamedTuple):
    """A file, and how it is read."""

    path: Path
    declared: SourceFormat


def read_file(file: File) -> Read:
    return read(file.path, file.declared)


def write_files(folder: Path, declared: SourceFormat, number: int = NUM_FILES) -> list[File]:
    """Write a few files of a format, among them packed ones where they can be read."""
    endings = ["", *PACKERS] if READERS[declared].boundary else [""]
    contents = MORE.get(declared, []) + [each.content for each in EXAMPLES[declared]]
    files = []
    for each in range(number):
        ending = endings[each % len(endings)]
        path = folder / f"{declared}-{each}{ending}"
        path.write_bytes(PACKERS.get(ending, bytes)(contents[each % len(contents)]))
        files.append(File(path, declared))
    return files


@pytest.mark.parametrize("declared", QUICK)
def test_threads_read_what_one_does(declared: SourceFormat, tmp_path: Path) -> None:
    files = write_files(tmp_path, declared)
    expected = dict(zip(files, map(read_file, files), strict=True))
    assert any(expected.values())
    of_others = files * 2
    of_the_same = [file for file in files for _ in range(NUM_THREADS)]
    for inputs in (of_others, of_the_same):
        for prepare in (forget_what_is_kept, lambda: None):
            prepare()
            assert in_threads(read_file, inputs) == [expected[file] for file in inputs]


def test_what_a_process_reads_first_is_read_by_threads_alike(tmp_path: Path) -> None:
    """What a reader imports when it first needs it, all threads import at once."""
    files = [file for declared in QUICK for file in write_files(tmp_path, declared, 2)]
    inputs, results = tmp_path / "inputs", tmp_path / "results"
    inputs.write_bytes(pickle.dumps(files))
    command = [sys.executable, "-W", "error", "-c", READ_IN_THREADS, str(inputs), str(results)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert pickle.loads(results.read_bytes()) == list(map(read_file, files))


def test_threads_that_parse_leave_the_filters_of_warnings_as_they_were(tmp_path: Path) -> None:
    files = write_files(tmp_path, "installed-python")
    filters, before = warnings.filters, list(warnings.filters)
    in_threads(read_file, files * 8)
    assert warnings.filters is filters
    assert list(warnings.filters) == before
