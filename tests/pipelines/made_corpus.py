"""A clean corpus as the stage `corpus` writes it, of documents that a test makes up."""

from pathlib import Path

import pyarrow as pa

from albert_core.stage.manifest import Account, StagePlan, shard_of
from albert_core.text.arrow_files import write_arrow


def write_corpus(work: Path, *shards: pa.Table) -> str:
    """Write a shard for each table of documents below ``work``; return their manifest."""
    plan = StagePlan("corpus", {}, {"documents": repr([t.to_pylist() for t in shards])}, "", {})
    folder = plan.folder(str(work))
    written = []
    for number, table in enumerate(shards):
        uri = f"{folder}/documents-{number:05d}.arrow"
        write_arrow(table, uri)
        written.append(shard_of(uri, folder, "documents", len(table)))
    texts = [text for table in shards for text in table["text"].to_pylist()]
    account = Account(what="documents", total=len(texts), kept=len(texts))
    text_bytes = sum(len(text.encode()) for text in texts)
    facts = {"text_bytes": text_bytes, "num_documents": len(texts)}
    return plan.write(str(work), written, [account], facts)
