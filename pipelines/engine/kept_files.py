"""Files kept for later runs: a note beside them, written last, has the checksum of each.

Files without a note are incomplete. Files with one are checked before they are used again, because
a disk, a copy or a person may have changed them: damaged files are made again, and the log says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import xxhash

from albert_core.stage import storage
from albert_core.stage.errors import IntegrityError
from albert_core.stage.manifest import sealed, unsealed

_CHUNK_BYTES = 1 << 20


def write_note(uri: str, names: Sequence[str], facts: Mapping[str, Any]) -> None:
    """Write the note at ``uri`` on files in its folder, which are complete by now.

    Args:
        uri: of the note.
        names: of the files.
        facts: numbers about them that JSON can hold.
    """
    checksums = {name: _checksum(_beside(uri, name)) for name in names}
    content = {"checksums": checksums, "facts": dict(facts)}
    storage.write_bytes(uri, sealed(content))


def read_facts(uri: str) -> dict[str, Any]:
    """Return the facts in the note at ``uri``.

    Raises:
        IntegrityError: the note is damaged; the message says how.
    """
    facts: dict[str, Any] = unsealed(uri)["facts"]
    return facts


def damage(uri: str) -> str | None:
    """Return what is wrong with the note at ``uri`` or its files; None if they are as written."""
    try:
        noted = unsealed(uri)["checksums"]
    except IntegrityError as error:
        return str(error)
    for name, checksum in noted.items():
        file = _beside(uri, name)
        if not storage.exists(file):
            return f"{file} is missing"
        if _checksum(file) != checksum:
            return f"{file} changed after it was written"
    return None


def _beside(uri: str, name: str) -> str:
    return storage.join(uri.rpartition("/")[0], name)


def _checksum(uri: str) -> str:
    fs, path = storage.filesystem(uri)
    checksum = xxhash.xxh3_128()
    with fs.open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            checksum.update(chunk)
    return checksum.hexdigest()
