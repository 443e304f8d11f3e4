"""What README and docs tell a reader to type: that it exists, and that it does what they say.

The commands run in the order of the pages, in a fresh clone and in an empty folder, with the paths,
recipes and numbers of the pages replaced by small ones.
"""

import ast
import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import fsspec
import psutil
import pytest
import typer

from flows.commands.main import app
from tests.albert_core.tasks.task_files import squad_question, write, write_squad
from tests.generated_text import write_jsonl
from tests.mlflow_server import free_port
from tests.s3_server import serve_s3
from tests.test_end_to_end import SMALLER

PROJECT = Path(__file__).parents[1]
PAGES = ["README.md", *(f"docs/{name}.md" for name in ("index", "training", "data", "engines"))]
PAGES += [f"docs/{name}.md" for name in ("evaluation", "registry", "operations", "deployment")]
_FENCE = re.compile(r"^( *)```(sh|python)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)

NOT_RUN = {
    "make install": "these tests run in what it made",
    ". .venv/bin/activate": "these tests run in what it made",
    ".venv/bin/python infra/install.py": "these tests run in what it made",
    "dask ": "tests/infra/test_dask_cluster.py",
    "export ALBERT_ENGINE": "tests/engines",
    ".venv/bin/python -m apache_beam.runners": "tests/engines",
    "python -m albert_core.training.launcher": "tests/albert_core/training/test_resume.py",
    "python3 -m venv .venv-tpu": "no TPU is here",
    ".venv-tpu/": "no TPU is here",
    "PJRT_DEVICE=TPU": "no TPU is here",
    "albert production": "tests/infra/test_production.py",
    "ALBERT_MLFLOW_AUTH=true albert production": "tests/infra/test_production.py",
    "export PGPASSWORD": "tests/infra/test_production.py",
    "pg_dump": "tests/infra/test_production.py",
    "docker ": "no Docker engine is here",
    "cp infra/compose.env.example": "no Docker engine is here",
    "cp infra/hosts/albert-worker.env.example": "no other host is here",
    "sh infra/hosts/deploy_by_ssh.sh": "no other host is here",
    "kubectl ": "no Kubernetes is here",
    "envsubst ": "no Kubernetes is here",
    "prefect work-pool create albert-hosts": "tests/flows/test_several_hosts.py",
    "prefect --no-prompt deploy": "tests/flows/test_several_hosts.py",
    "prefect worker start": "tests/flows/test_several_hosts.py",
    "export ": "the tests set their own variables",
}
"""How a command begins that does not run here, and where it does, or why nowhere."""


@dataclass(frozen=True)
class Block:
    """A block of code of a page: the commands of a shell, or a program in Python."""

    page: str
    language: str
    text: str

    def commands(self) -> list[str]:
        """Return the commands, each on one line, without comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [
            each.strip()
            for line in lines
            for each in _without_comment(line).split("&&")
            if each.strip()
        ]


def _without_comment(line: str) -> str:
    return re.sub(r"(^|\s)#.*", "", line)


def blocks() -> list[Block]:
    """Return the blocks of all pages, in their order."""
    found = []
    for page in PAGES:
        for indent, language, text in _FENCE.findall((PROJECT / page).read_text()):
            unindented = re.sub(f"^{indent}", "", text, flags=re.MULTILINE)
            found.append(Block(page, language, unindented))
    return found


MADE_LATER = {"infra/compose.env", "infra/images.yaml"}
COMMANDS = [
    (block.page, command)
    for block in blocks()
    if block.language == "sh"
    for command in block.commands()
]


def test_the_pages_have_commands_of_every_kind() -> None:
    told = " ".join(command for _, command in COMMANDS)
    for kind in ("albert demo", "albert serve", "prefect deployment run", "python -m ", "make "):
        assert kind in told


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_documented_command_has_the_options_and_files_that_it_names(
    page: str, command: str
) -> None:
    words = shlex.split(re.sub(r"^([A-Z_]+=\S+ )+", "", command))
    for word in words:
        if word.startswith(("infra/", "requirements.lock")) and word not in MADE_LATER:
            assert (PROJECT / word).is_file(), f"{page}: {word}"
    program, *arguments = words
    if Path(program).name == "albert":
        group = typer.main.get_group(app)
        group.commands[arguments[0]].make_context(arguments[0], arguments[1:])
    elif "-m" in arguments and not program.endswith("python3"):
        module = arguments[arguments.index("-m") + 1]
        assert importlib.util.find_spec(module), f"{page}: {module}"
    elif program == "make":
        assert re.search(f"^{arguments[0]}:", (PROJECT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("block", [each for each in blocks() if each.language == "python"])
def test_a_documented_program_is_valid(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom):
            assert importlib.util.find_spec(str(node.module))


@dataclass
class Place:
    """Where a reader types: a folder, and what the paths of the pages are there."""

    folder: Path
    variables: dict[str, str]
    served: "psutil.Popen | None" = None
    keys: dict[str, str] = field(default_factory=dict)
    """Stage -> the key of its result that a command named last."""

    def type(self, command: str) -> None:
        """Run a command in a shell, with small numbers and the paths of this place."""
        command = self._here(command)
        if command.startswith("albert serve"):
            self._serve(command)
        else:
            self._run(["bash", "-c", command])

    def run_program(self, text: str) -> None:
        """Run a program in Python."""
        self._run([sys.executable, "-c", self._here(text)])

    def _run(self, command: list[str]) -> None:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=os.environ | self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1500,
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout[-4000:]}"
        self.keys |= dict(re.findall(r"\b([a-z-]+)/([0-9a-f]{16})\b", done.stdout))

    def _serve(self, command: str) -> None:
        self.stop()
        prefect, mlflow = free_port(), free_port()
        self.served = psutil.Popen(
            shlex.split(f"{command} --prefect-port={prefect} --mlflow-port={mlflow}"),
            cwd=self.folder,
            env=os.environ | self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert any(line.startswith("Ctrl-C") for line in self.served.stdout)
        self.variables["PREFECT_API_URL"] = f"http://127.0.0.1:{prefect}/api"
        secret = (self.folder / "work/secrets/prefect-auth").read_text()
        self.variables["PREFECT_API_AUTH_STRING"] = secret

    def stop(self) -> None:
        """End what is served."""
        if self.served is not None:
            self.served.send_signal(signal.SIGINT)
            self.served.communicate(timeout=60)
        self.served = None
        self.variables["PREFECT_API_URL"] = ""
        self.variables.pop("PREFECT_API_AUTH_STRING", None)

    def _here(self, text: str) -> str:
        text = text.replace(".venv/bin/", "")
        if not text.startswith(("albert serve", "albert plan")):
            text = re.sub(r"--recipe (\w+)(\.toml)?", rf"--recipe {self.folder}/\1.toml", text)
        for pattern, replacement in {
            r"num_steps=(2000|3200)": "num_steps=20",
            r"num_steps=150000": "num_steps=30",
            r'"num_steps": \d+': '"num_steps": 20',
            r"vocab_size=20000": "vocab_size=150",
            r"recipe=small": "recipe=tiny",
            r"/path/to/": f"{self.folder}/",
            r"/data/": f"{self.folder}/data/",
            r"--seeds 5": "--seeds 2",
            r"@champion": "/1",  # after 20 updates none is above chance
            r"albert-sst-2": "albert-base-passage-source",  # the last that was fine-tuned
            r"--pool POOL": "--pool albert",
            r"MANIFEST": "work/finetuning/KEY/manifest.json",
            r"<folder>": "work/vocab/KEY",
            r"rollback albert-tiny": "rollback albert-tiny --to 1",
            r"sys\.argv\[1:\]": "('notes/', 'work/vocab/KEY/manifest.json', 'work/own')",
        }.items():
            text = re.sub(pattern, replacement, text)
        share = {} if "--source" in text else {"source.file_share": 0.02}
        settings = " ".join(f"--set {name}={value}" for name, value in (SMALLER | share).items())
        text = re.sub(r"^albert (demo|pretrain|refresh)\b", rf"albert \1 {settings}", text)
        for stage, key in self.keys.items():
            text = text.replace(f"work/{stage}/KEY", f"work/{stage}/{key}")
        recipes = (self.folder / "work/recipes").glob("*.json")
        newest = max(recipes, key=lambda path: path.stat().st_mtime, default=Path("NAME"))
        return text.replace("NAME.json", f"{newest.stem}.json")


def write_inputs(folder: Path) -> None:
    """Write what the pages take for given: texts, task files, recipes and a question file."""
    for number, name in enumerate(("wiki", "books", "notes")):
        (folder / "data" / name).mkdir(parents=True)
        write_jsonl(folder / "data" / name / "text.jsonl", range(100 * number, 100 * number + 60))
    (folder / "notes").symlink_to(folder / "data/notes")
    (folder / "new").mkdir()
    write_jsonl(folder / "new/more.jsonl", range(500, 520))
    rows = "".join(f"good {number}\t{number % 2}\n" for number in range(20))
    for part in ("train", "dev"):
        write(folder / f"data/tasks/SST-2/{part}.tsv", f"sentence\tlabel\n{rows}")
    write(folder / "data/tasks/SST-2/test.tsv", "index\tsentence\n0\tgood\n")
    write_squad(folder / "dev-v1.1.json", [squad_question("q1", ("A cat", 0))])
    tiny = (PROJECT / "flows/recipes/tiny.toml").read_text()
    for name in ("base", "tiny", "my", "mine"):
        (folder / f"{name}.toml").write_text(
            tiny if name == "tiny" else tiny.replace("albert-tiny", "albert-base")
        )


@pytest.fixture(scope="module", params=["in a fresh clone", "in an empty folder"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("reader")
    folder, clone = home / "here", home / "clone"
    subprocess.run(["git", "clone", "-q", PROJECT, clone], check=True)
    if request.param == "in a fresh clone":
        folder = clone
    else:
        folder.mkdir()
    write_inputs(folder)
    variables = {
        "PYTHONPATH": str(clone),
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_PLUGINS_ENABLED": "true",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/work/mlflow.db",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    with serve_s3("bucket") as store:
        with fsspec.open("s3://bucket/dumps/text.jsonl", "wb") as file:
            file.write((folder / "data/books/text.jsonl").read_bytes())
        here = Place(folder, variables | store)
        here.stop()
        here.type("albert pretrain --recipe base --source /data/books")
        yield here
        here.stop()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "block", blocks(), ids=lambda block: f"{block.page}: {block.text.strip().splitlines()[0]}"
)
def test_a_documented_block_does_what_its_page_says(place: Place, block: Block) -> None:
    if block.language == "python":
        programs = [
            each for each in blocks() if each.page == block.page and each.language == "python"
        ]
        place.run_program("\n".join(each.text for each in programs[: programs.index(block) + 1]))
        return
    run = [each for each in block.commands() if not each.startswith(tuple(NOT_RUN))]
    for command in run:
        place.type(command)
    if not run:
        pytest.skip("none of its commands runs here; NOT_RUN has the reasons")
