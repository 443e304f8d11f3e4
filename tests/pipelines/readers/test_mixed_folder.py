"""Of a folder of files of every kind all texts are read as written, and the rest is counted."""

import re
from collections import Counter
from pathlib import Path

from albert_core.stage.manifest import read_manifest
from pipelines import clean_corpus
from pipelines.config import CleaningSettings, SourceSettings
from pipelines.readers import READERS
from pipelines.source_files import read_files
from tests.pipelines.conftest import rows_of
from tests.pipelines.readers.mixed_folder import (
    ELEMENT,
    LOST,
    REAL,
    SKIPPED,
    write_folder,
)
from tests.pipelines.readers.reading import CORPORA


def test_all_of_a_folder_of_every_kind_is_read_or_counted_under_its_reason(tmp_path: Path) -> None:
    texts = write_folder(tmp_path)
    source = SourceSettings(uri=str(tmp_path), xml_element=ELEMENT)
    uri = clean_corpus.run(source, CleaningSettings(language="auto"), f"{tmp_path}/.work")
    kept = {row["id"]: row["text"].split("\n") for row in rows_of(uri, "documents")}
    assert {key: kept[key][-6:] for key in texts} == {key: t.sentences for key, t in texts.items()}
    assert all(re.fullmatch(r"|Title \d", "\n".join(kept.pop(key)[:-6])) for key in texts)
    real = [each for each in REAL if (CORPORA / each[0]).exists()]
    assert Counter(key.partition("#")[0] for key in kept) == Counter(
        {name.rpartition("/")[2]: num_kept for name, num_kept, _ in real}
    )
    account = read_manifest(uri).account("documents")
    reasons = Counter(reason for _, _, told in LOST for reason in told.split())
    reasons += sum((Counter(lost) for _, _, lost in real), Counter(duplicate=1, special_member=1))
    assert account.dropped == reasons
    assert account.kept == len(texts) + len(kept)
    assert account.total == account.kept + sum(account.dropped.values())
    assert read_manifest(uri).account("source files").dropped == SKIPPED
    files = read_files(uri.replace("manifest.json", "source_files.jsonl"))
    assert {file.format for file in files} == READERS.keys() - {"paragraphs", "sentences"}
