"""The command `albert`: its commands, and the meaning of its exit status.

0: done. 1: done, and the answer is no: an audit found a fault, a rebuilt model differs, a document
is unknown; or a defect, with its traceback. 2: a mistake to correct first, told in one message. 75:
something is unavailable; the same command continues. 130: interrupted.

A command's `Args` are the help of its own options; these are of options that several share.

Args:
    recipe: A recipe that comes with the project, such as tiny, base or xxlarge, or the path or URI
        of your own TOML file.
    source: Your own text: a file, folder, glob or URI. Default: the recipe's source.
    overrides: Override a setting of the recipe. Can be given more than once.
    work: Folder for all results. Default: ALBERT_WORK, or ./work if that is unset.
    verbose: Print every line, with the command line of each stage.
    as_json: Print JSON instead of text.
    model: models:/NAME@ALIAS, models:/NAME/VERSION, a manifest, or the folder of a result.
"""
# ruff: noqa: D417

import dataclasses
import inspect
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_args

import typer

_ARGUMENT = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)

app = typer.Typer(
    name="albert",
    help="ALBERT from raw text to a registered model.",
    epilog="Every stage runs by hand too, with the command line that --verbose prints.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _recipes() -> list[str]:
    from flows.recipe import shipped_recipes

    return shipped_recipes()


def _work_folder(work: str) -> str:
    from albert_core.stage.storage import work_folder

    return work_folder(work)


def _only_one(sources: list[str] | None) -> str | None:
    """Return the source that was given, if one was; typer alone would take the last of several."""
    if sources and len(sources) > 1:
        raise typer.BadParameter(
            f"{len(sources)} addresses were given, and one is taken. Give a glob that matches all "
            "files, or a recipe whose source.uri is a list of addresses."
        )
    return sources[0] if sources else None


Recipe = Annotated[str, typer.Option(metavar="NAME|FILE", autocompletion=_recipes)]
Source = Annotated[list[str] | None, typer.Option(callback=_only_one)]
"""The command gets one address or None."""
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE")]
Work = Annotated[str, typer.Option(callback=_work_folder)]
"""The default is an empty text; the command gets the absolute path or URI."""
OptionalRecipe = Annotated[str | None, typer.Option(metavar="NAME|FILE")]
AsJson = Annotated[bool, typer.Option("--json")]


def answer(as_json: bool, text: str, values: Any) -> None:
    """Print an answer as text, or its values as JSON where that is asked for."""
    say(json.dumps(values, indent=1) if as_json else text)


def say(text: str, err: bool = False) -> None:
    """Print an answer, or what goes with it; it may have names that somebody else gave."""
    from albert_core.stage.credentials import visible

    typer.echo(visible(text), err=err)


def demo(
    context: typer.Context,
    source: Source = None,
    work: Work = "",
    overrides: Overrides = None,
    verbose: bool = False,
) -> None:
    """Go the whole way once, in minutes: the recipe tiny on text that is already here.

    The same as `albert pretrain --recipe tiny`. The text is the documentation of the Python
    packages that are installed, or your own. On two CPU cores, two models are fine-tuned at a time.
    """
    from albert_core.stage.machine import FINETUNING_PROCESSES

    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault(FINETUNING_PROCESSES, str(min(2, cores)))
    _run("pretrain_albert", context, recipe="tiny")


def pretrain(
    context: typer.Context,
    recipe: Recipe = "tiny",
    source: Source = None,
    work: Work = "",
    overrides: Overrides = None,
    verbose: bool = False,
) -> None:
    """Go the whole way: clean, tokenize, pretrain, fine-tune, score and register.

    What was done before, with the same settings and inputs, is not done again.
    """
    _run("pretrain_albert", context)


def refresh(
    context: typer.Context,
    recipe: Recipe = "tiny",
    source: Source = None,
    work: Work = "",
    overrides: Overrides = None,
    verbose: bool = False,
) -> None:
    """Bring corpus, vocabulary and examples up to date, without training."""
    _run("refresh_corpus", context)


def evaluate(
    context: typer.Context,
    model: str,
    task_folder: str | None = None,
    tasks: Annotated[list[str] | None, typer.Option("--task")] = None,
    seeds: Annotated[int | None, typer.Option(min=1)] = None,
    corpus: str | None = None,
    recipe: OptionalRecipe = None,
    work: Work = "",
    overrides: Overrides = None,
    verbose: bool = False,
) -> None:
    """Fine-tune a model on downstream tasks, with several seeds, and score it.

    Args:
        model: models:/NAME@ALIAS, models:/NAME/VERSION, or a model folder.
        task_folder: Folder with the public files of GLUE, SQuAD and RACE as distributed. Default:
            the recipe's, else the task generated last.
        tasks: Only this task, and no minimal pairs. Can be given more than once. Default: the
            recipe's, else all there are.
        seeds: Fine-tunings of each task. Default: the recipe's number.
        corpus: Manifest of the corpus the model was pretrained on, to report how much of each dev
            set is in it.
        recipe: As of `albert pretrain`. Default: the model's own recipe.
    """
    _run("evaluate_albert", context)


def _devices() -> list[str]:
    from albert_core.planning.run_plan import HARDWARE

    return list(HARDWARE)


def plan(
    recipe: Recipe = "base",
    overrides: Overrides = None,
    hardware: Annotated[str, typer.Option(autocompletion=_devices)] = "h200",
    devices: Annotated[int, typer.Option(min=1)] = 1,
    examples: Annotated[str | None, typer.Option(metavar="NUMBER|MANIFEST")] = None,
    peak_tflops: float | None = None,
    memory_gib: float | None = None,
    utilisation: float | None = None,
    price_per_hour: float | None = None,
    table: bool = False,
    as_json: AsJson = False,
) -> None:
    """Estimate what a run will take in memory, hours and money, before it is started.

    Args:
        hardware: Kind of device, such as h200, a100 or l4. An unknown name lists them all.
        devices: Number of devices.
        examples: Number of training examples, or the URI of their manifest, whose lengths are then
            counted.
        peak_tflops: Peak of one device in the run's precision, TFLOP/s.
        memory_gib: Memory of one device, in 2**30 bytes.
        utilisation: Share of the peak that is reached, 0..1.
        price_per_hour: Price of one device for an hour, USD.
        table: Print the parameters of every model in the paper.
    """
    from albert_core.planning.run_plan import find_hardware
    from flows.commands import plan as plans
    from flows.recipe import load_recipe

    if table:
        answer(as_json, plans.parameter_table(), plans.parameter_counts())
        return
    loaded = load_recipe(recipe, overrides or ())
    device = find_hardware(hardware)
    device = device.with_given(peak_tflops, memory_gib, utilisation, price_per_hour)
    planned = plans.plan_recipe(loaded, device, devices, examples)
    text = plans.plan_as_text(recipe, planned, overrides or ())
    answer(as_json, text, plans.plan_as_json(planned))


def _run(flow: str, context: typer.Context, **more: Any) -> None:
    """Run a flow with the options of the command whose context this is, and ``more``."""
    from flows.commands.by_hand import run_flow

    options: dict[str, Any] = {**context.params, **more}
    run_flow(flow, **options | {"overrides": options["overrides"] or None})


def serve(
    context: typer.Context,
    work: str | None = None,
    prefect_port: int | None = None,
    mlflow_port: int | None = None,
    recipe: OptionalRecipe = None,
    source: Source = None,
    task_folder: str | None = None,
) -> None:
    """Serve Prefect, MLflow and a worker on this machine until Ctrl-C.

    Args:
        work: Local folder for all data. Default: ./work.
        prefect_port: Port of Prefect. Default: 4200.
        mlflow_port: Port of MLflow. Default: 5000.
        recipe: Default recipe of the deployments.
        source: Text that they read by default (ALBERT_SOURCE).
        task_folder: Tasks of evaluate-albert by default.
    """
    _become("infra.serve", context)


def production(
    context: typer.Context,
    work: str | None = None,
    artifacts: str | None = None,
    workers: Annotated[int | None, typer.Option(envvar="ALBERT_SERVED_WORKERS")] = None,
    host: str | None = None,
    mlflow_auth: bool = False,
    prefect_port: int | None = None,
    mlflow_port: int | None = None,
    postgres_port: int | None = None,
    s3_port: int | None = None,
    postgres_folder: str | None = None,
    recipe: OptionalRecipe = None,
    source: Source = None,
    task_folder: str | None = None,
) -> None:
    """Serve the project for a team: Postgres, MLflow, Prefect and workers, until Ctrl-C.

    Args:
        work: Local folder for all data. Default: ./work.
        artifacts: Where MLflow keeps files: s3://BUCKET/PATH, a folder, or 'memory' for an S3
            server that forgets all when it stops. Default: a folder in the work folder.
        workers: Prefect workers. Default: 2.
        host: Address that Prefect and MLflow listen on; set up authentication before you open them
            to others. Default: 127.0.0.1.
        mlflow_auth: Have MLflow ask for user and password.
        prefect_port: Port of Prefect. Default: 4200.
        mlflow_port: Port of MLflow. Default: 5000.
        postgres_port: Port of Postgres. Default: 5433.
        s3_port: Port of the S3 server in memory. Default: 9000.
        postgres_folder: Folder for the databases, on a local disk. Default: a folder in the work
            folder.
        recipe: Default recipe of the deployments.
        source: Text that they read by default (ALBERT_SOURCE).
        task_folder: Tasks of evaluate-albert by default.
    """
    _become("infra.production", context)


def variable_of(option: str) -> str:
    """Return the environment variable of an option of the services."""
    return f"ALBERT_{option}".upper()


def _become(module: str, context: typer.Context) -> NoReturn:
    """Replace this process by one that runs ``module`` of `infra`, which may not be imported here.

    It finds the options of the command whose context this is in their environment variables.
    """
    for option in context.command.params:
        value = context.params.get(str(option.name))
        if value is not None:
            os.environ[str(option.envvar or variable_of(str(option.name)))] = str(value)
    # With -P, a folder `infra` where the user happens to be is not taken for the package.
    os.execv(sys.executable, [sys.executable, "-P", "-m", module])  # noqa: S606


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
    from albert_core.registry import version_commands

    if name is None:
        say(version_commands.list_models(work))
    elif version is None:
        say(version_commands.list_versions(name, work))
    else:
        say(version_commands.explain_version(name, version, work))


def promote(
    name: str, version: str, reason: Annotated[str, typer.Option()], work: Work = ""
) -> None:
    """Make a version champion by hand, whatever the gate decided.

    Args:
        name: Name of the registered model.
        version: Number of the version.
        reason: Why. It is kept with the version.
    """
    from albert_core.registry import version_commands

    say(version_commands.promote_version(name, version, reason, work))


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
    from albert_core.registry import version_commands

    say(version_commands.roll_back_to(name, to, reason, work))


def lineage(model: str, work: Work = "", files: bool = False, as_json: AsJson = False) -> None:
    """Show what a model was made of, down to the source files.

    For a registered version only the registry is asked, so the work folder may be elsewhere.

    Args:
        files: List every source file.
    """
    from flows.commands import model_lineage

    found = model_lineage.read_model_lineage(model, work)
    answer(as_json, model_lineage.lineage_text(found, files), model_lineage.lineage_json(found))


def trace(document: str, work: Work = "", as_json: AsJson = False) -> None:
    """Show where a document went: shards, runs, checkpoints and registered versions.

    The exit status is 1 if nothing here knows the document.

    Args:
        document: Its id in the corpus: FILE, or FILE#RECORD as in a.jsonl#7.
    """
    from flows.commands import document_trace

    found = document_trace.trace(document, work)
    answer(as_json, document_trace.trace_text(found), dataclasses.asdict(found))
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
    from flows.commands import model_rebuild
    from flows.commands.model_lineage import read_model_lineage
    from flows.stage_process import run_stage_process

    tell = partial(say, err=True)
    found = read_model_lineage(model, work)
    name = model_rebuild.folder_name(found)
    folder = storage.absolute(into or f"{work.rstrip('/')}-rebuilt/{name}")
    notes = model_rebuild.check(found, anyway)
    for place, lines in notes.items():
        for line in lines:
            tell(f"{place}: {line}")
    done = model_rebuild.rebuild(
        found,
        notes,
        folder,
        lambda argv, environment: run_stage_process(argv, tell, environment=environment),
    )
    values = {"is_equal": done.is_equal, **dataclasses.asdict(done)}
    answer(as_json, model_rebuild.rebuild_text(done), values)
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
    from albert_core.tracking.journal import send_journals as send

    say(send(work))


_GROUPS = {
    "Runs": (demo, pretrain, refresh, evaluate, plan),
    "Models": (models, promote, rollback),
    "Provenance": (lineage, trace, rebuild),
    "Services": (serve, production),
    "Upkeep": (audit, convert, retention, send_journals),
}


def _helps(docstring: str | None) -> tuple[str, dict[str, str]]:
    """Return the text of a docstring before its `Args`, and the help of each of these."""
    text, _, arguments = inspect.cleandoc(docstring or "").partition("\n\nArgs:\n")
    return text, {name: " ".join(said.split()) for name, said in _ARGUMENT.findall(arguments)}


def _add(command: Callable[..., None], group: str) -> None:
    """Add a command, whose help and that of its options are docstrings.

    A flag has no opposite. Each option of a service has an environment variable, but the source:
    typer would split a path with spaces.
    """
    text, helps = _helps(command.__doc__)
    helps = _helps(__doc__)[1] | helps
    for name, parameter in inspect.signature(command).parameters.items():
        if name not in helps:
            continue
        kind: Any = parameter.annotation
        plain, *given = get_args(kind) if hasattr(kind, "__metadata__") else (kind,)
        names = [f"--{name.replace('_', '-')}"] if plain is bool else []
        is_argument = parameter.default is inspect.Parameter.empty
        option = typer.Argument() if is_argument else typer.Option(*names)
        option = copy(given[0]) if given else option
        option.help = helps[name]
        if group == "Services" and name != "source":
            option.envvar = option.envvar or variable_of(name)
        command.__annotations__[name] = Annotated[plain, option]
    app.command(help=text, rich_help_panel=group)(command)


for _group, _commands in _GROUPS.items():
    for _command in _commands:
        _add(_command, _group)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status.

    What this process and its children write is for their owner only.
    """
    from albert_core.stage.credentials import hide_credentials_in_logs
    from albert_core.stage.errors import ConfigError
    from albert_core.stage.settings import refuse_credentials

    os.umask(0o077)
    hide_credentials_in_logs()
    try:
        refuse_credentials(sys.argv[1:] if arguments is None else arguments, "the command line")
        try:
            Path.cwd()
        except FileNotFoundError as error:
            said = "the working directory was deleted: change to another (cd), and run it again"
            raise ConfigError(said) from error
        app(arguments, prog_name="albert")
    except SystemExit as ended:
        return int(ended.code or 0)
    except Exception as error:  # noqa: BLE001 - a defect is raised again
        from albert_core.stage.command import tell_failure

        return tell_failure(error)
    return 0
