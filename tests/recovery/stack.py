"""A stack of servers of its own: Postgres, an S3 store, MLflow, Prefect and two workers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from infra.production import Production, ProductionSettings, running
from tests.infra.free_ports import free_ports


@contextmanager
def stack(folder: Path) -> Iterator[Production]:
    """Start the stack with its data below ``folder``; what dies in it is started again."""
    folder.mkdir(parents=True, exist_ok=True)
    prefect, mlflow, postgres, s3 = free_ports(4)
    # Postgres runs as a user of its own, to whom pytest's folders are closed.
    with TemporaryDirectory(prefix="albert-databases-", ignore_cleanup_errors=True) as databases:
        Path(databases).chmod(0o755)
        settings = ProductionSettings(
            work=folder / "stack",
            artifacts="memory",
            prefect_port=prefect,
            mlflow_port=mlflow,
            postgres_port=postgres,
            s3_port=s3,
            postgres_folder=Path(databases, "postgres"),
        )
        with running(settings) as production:
            yield production
