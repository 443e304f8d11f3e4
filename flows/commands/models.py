"""The commands that ask about, move or delete what there is: models, shards and the work folder.

A command's `Args` are the help of its own options; `flows.commands` has that of the others.
"""
# ruff: noqa: D417

import dataclasses
import time
from functools import partial
from typing import Annotated, Literal

import typer

from flows.commands import AsJson, Work, answer, say


def models(
    name: Annotated[str | None, typer.Argument()] = None,
    version: Annotated[str | None, typer.Argument()] = None,
    work: Work = "",
) -> None:
    """List registered models, the versions of one, or why a version is champion or not.

    Args:
        name: List the versions of this model.
        version: Explain why this version is champion or not.
    """
    from albert_core.registry import versions

    if name is None:
        say(versions.list_models(work))
    elif version is None:
        say(versions.list_versions(name, work))
    else:
        say(versions.explain_version(name, version, work))


def promote(
    name: str, version: str, reason: Annotated[str, typer.Option()], work: Work = ""
) -> None:
    """Make a version champion by hand, whatever the gate decided.

    Args:
        name: Name of the registered model.
        version: Number of the version.
        reason: Why. It is kept with the version.
    """
    from albert_core.registry import versions

    say(versions.promote_version(name, version, reason, work))


def rollback(
    name: str,
    to: Annotated[str | None, typer.Option(metavar="VERSION")] = None,
    reason: str = "no reason given",
    work: Work = "",
) -> None:
    """Make the previous champion, or another version, champion again.

    Args:
        name: Name of the registered model.
        to: Number of the version. Default: the last champion.
        reason: Why. It is kept with the version.
    """
    from albert_core.registry import versions

    say(versions.roll_back_to(name, to, reason, work))


def lineage(model: str, work: Work = "", files: bool = False, as_json: AsJson = False) -> None:
    """Show what a model was made of, down to the source files.

    For a registered version only the registry is asked, so the work folder may be elsewhere.

    Args:
        files: List every source file.
    """
    from flows.commands import provenance

    found = provenance.read_model_lineage(model, work)
    answer(as_json, provenance.lineage_text(found, files), provenance.lineage_json(found))


def trace(document: str, work: Work = "", as_json: AsJson = False) -> None:
    """Show where a document went: shards, runs, checkpoints and registered versions.

    The exit status is 1 if nothing here knows the document.

    Args:
        document: Its id in the corpus: FILE, or FILE#RECORD as in a.jsonl#7.
    """
    from flows.commands import provenance

    found = provenance.trace(document, work)
    answer(as_json, provenance.trace_text(found), dataclasses.asdict(found))
    raise typer.Exit(not found.is_known)


def rebuild(
    model: str,
    work: Work = "",
    into: str | None = None,
    anyway: bool = False,
    as_json: AsJson = False,
) -> None:
    """Make a model again from its sources and compare every stage, bit for bit.

    The exit status is 1 if anything came out different.

    Args:
        into: Folder to rebuild in. Default: WORK-rebuilt/NAME-VERSION.
        anyway: Go on even if source files have changed since.
    """
    from albert_core.stage import storage
    from flows.commands import provenance
    from flows.stage_process import run_stage_process

    tell = partial(say, err=True)
    found = provenance.read_model_lineage(model, work)
    folder = storage.absolute(into or f"{work}-rebuilt/{provenance.folder_name(found)}")
    notes = provenance.check(found, anyway)
    for place, lines in notes.items():
        for line in lines:
            tell(f"{place}: {line}")
    done = provenance.rebuild(
        found,
        notes,
        folder,
        lambda argv, environment: run_stage_process(argv, tell, environment=environment),
    )
    values = {"is_equal": done.is_equal, **dataclasses.asdict(done)}
    answer(as_json, provenance.rebuild_text(done), values)
    raise typer.Exit(not done.is_equal)


_EXPECTED = typer.Option(
    rich_help_panel="What the shards should be (default: what their manifest says)"
)


def audit(
    context: typer.Context,
    paths: list[str],
    corpus: str = "",
    vocab: str = "",
    sample: Annotated[int, typer.Option(min=0)] = 2000,
    max_seq_length: Annotated[int | None, _EXPECTED] = None,
    max_predictions: Annotated[int | None, _EXPECTED] = None,
    masked_lm_prob: Annotated[float | None, _EXPECTED] = None,
    max_ngram: Annotated[int | None, _EXPECTED] = None,
    objective: Annotated[Literal["sop", "nsp", "none"] | None, _EXPECTED] = None,
    fidelity: Annotated[Literal["paper", "google", "unknown"] | None, _EXPECTED] = None,
    max_unknown_share: Annotated[float | None, _EXPECTED] = None,
    as_json: AsJson = False,
) -> None:
    """Check example shards, whoever wrote them, against what they should be.

    The exit status is 0 if all is within bounds, 1 if something is not, and 2 if there is nothing
    to audit.

    Args:
        paths: A manifest or its folder, or shard files and globs.
        corpus: Manifest of the corpus. Default: the one the shards' manifest names.
        vocab: Folder with spiece.model, or a model file. Default: the one the manifest names.
        sample: Rows to look up in the corpus; 0 for all of them.
        max_seq_length: Pieces in one example.
        max_predictions: Predictions in one example.
        masked_lm_prob: Share of pieces predicted, 0..1.
        max_ngram: Longest masked span, in words.
        objective: How segment pairs were made.
        fidelity: Whose rules they were made by.
        max_unknown_share: Largest share of unknown pieces, 0..1.
    """
    from pipelines import audit as audits

    others = {"paths", "corpus", "vocab", "sample", "as_json"}
    expected = {name: given for name, given in context.params.items() if name not in others}
    findings = audits.audit(paths, corpus=corpus, vocab=vocab, sample=sample, expected=expected)
    answer(as_json, audits.table_of(findings), list(map(dataclasses.asdict, findings)))
    raise typer.Exit(any(finding.ok is False for finding in findings))


def convert(source: str, folder: str) -> None:
    """Turn a model trained elsewhere into a model folder that every stage can read.

    Args:
        source: A Hugging Face folder, a release of google-research/albert (folder or prefix) or a
            pretraining run, with its vocabulary beside it.
        folder: Path or URI of the model folder to write.
    """
    from albert_core.conversion.initial_weights import convert_model

    convert_model(source, folder)
    say(f"wrote {folder}")


def retention(
    work: Work = "",
    keep_newest: Annotated[int, typer.Option(min=0)] = 2,
    keep_days: Annotated[float, typer.Option(min=0)] = 30,
    registered: Literal["all", "aliased"] = "all",
    other_registry: bool = False,
    delete: Literal["yes", "no"] = "no",
    as_json: AsJson = False,
) -> None:
    """List, or delete, results that no registered version and no current result needs.

    Args:
        keep_newest: Keep the newest N of each stage.
        keep_days: Keep what is younger than this.
        registered: Keep what these registered versions were made of.
        other_registry: The registry is the same, but its address has changed.
        delete: Delete what is not needed, or only list it.
    """
    from flows.commands import retention as retentions

    if not other_registry:
        retentions.check_registry(work)
    rules = retentions.Rules(keep_newest, keep_days, registered)
    plan = retentions.plan_for(work, rules, time.time())
    is_done = delete == "yes"
    if is_done:
        retentions.delete(plan, work)
    answer(as_json, retentions.as_text(plan, work, is_done), retentions.as_json(plan))


def send_journals(work: Work = "") -> None:
    """Send MLflow the entries of runs that could not reach it at the time."""
    from albert_core.tracking.run import send_journals as send

    say(send(work))
