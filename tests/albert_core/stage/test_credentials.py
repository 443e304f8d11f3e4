import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from albert_core.stage.credentials import (
    WITHOUT_CREDENTIALS,
    has_credentials,
    hide_credentials_in_logs,
    redacted,
    secrets_of,
    visible,
)
from albert_core.stage.errors import ConfigError, SourceError
from albert_core.stage.settings import refuse_credentials
from pipelines.config import SourceSettings

WITH = [
    "https://reader:xy99zz77@host/texts",
    "https://ghp-xy99zz77@host/texts",
    "s3://AKIAIO:xy99zz77@bucket/texts",
    "simplecache::http://u:xy99zz77@host:8080/a",
    "postgresql+asyncpg://albert:xy99zz77@127.0.0.1:5433/prefect",
    "https://host/a?X-Amz-Credential=b&X-Amz-Signature=xy99zz77&c=d",
    "https://host/a?sv=1&sig=xy99zz77",
    "https://host/a?access_token=xy99zz77",
    "https://host/a?key=xy99zz77",
    "https://host/a?b=1&auth=xy99zz77",
    "https://host/a?passwd=xy99zz77",
    "https://host/a?AWSAccessKeyId=xy99zz77",
    "https://host/a;token=xy99zz77",
    "HTTPS://host/a?TOKEN=xy99zz77",
]
WITHOUT = [
    "/data/texts@home/a:b.txt",
    "s3://bucket/key=1/token.txt",
    "abfs://container@account.dfs.core.windows.net/texts",
    "https://host:8080/a?page=2",
    "user@example.org",
    "models:/albert-base@champion",
    "installed-python",
    "What is 3:4@5?",
]


@pytest.mark.parametrize("uri", WITH)
def test_credentials_in_a_uri_are_found_and_hidden(uri: str) -> None:
    assert has_credentials(uri)
    shown = redacted(f"can't read '{uri}': away")
    assert "xy99zz77" not in shown
    assert "***" in shown
    assert shown.startswith("can't read '")
    assert shown.endswith("': away")


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js to read the pattern with")
def test_a_browser_reads_the_schemas_pattern_as_python_does() -> None:
    program = (
        "const [pattern, texts] = JSON.parse(require('fs').readFileSync(0));"
        "const read = new RegExp(pattern, 'u');"
        "console.log(JSON.stringify(texts.map(text => read.test(text))))"
    )
    given = json.dumps([WITHOUT_CREDENTIALS, WITH + WITHOUT])
    done = subprocess.run(["node", "-e", program], input=given, capture_output=True, text=True)
    assert json.loads(done.stdout) == [False] * len(WITH) + [True] * len(WITHOUT), done.stderr


@pytest.mark.parametrize("text", WITHOUT)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert not has_credentials(text)
    assert redacted(text) == text


def test_what_the_environment_holds_as_secret_is_hidden_wherever_it_stands() -> None:
    environment = {
        "AWS_SECRET_ACCESS_KEY": "aws/very+secret",
        "MLFLOW_TRACKING_PASSWORD": "mlflow-secret",
        "MLFLOW_TRACKING_URI": "https://me:uri-secret@host",
        "PREFECT_API_AUTH_STRING": "admin:prefect-secret",
        "FSSPEC_HTTP_CLIENT_KWARGS": '{"headers": {"Authorization": "Basic dTpoZWFkZXItc2VjcmV0"}}',
        "GOOGLE_APPLICATION_CREDENTIALS": "/etc/key.json",
        "MAX_TOKENS": "128000",
        "SIX_TOKEN": "abcdef",
        "FIVE_TOKEN": "abcde",
        "HOME": "/root",
    }
    assert secrets_of(environment) == {
        "aws/very+secret",
        "aws%2Fvery%2Bsecret",
        "mlflow-secret",
        "uri-secret",
        "admin:prefect-secret",
        "admin%3Aprefect-secret",
        "prefect-secret",
        "dTpoZWFkZXItc2VjcmV0",
        "header-secret",
        "abcdef",
    }


def test_an_error_says_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "mlflow-secret")
    error = SourceError("http://u:xy99zz77@host/a: 401 for mlflow-secret. Give another.")
    assert str(error) == "http://***@host/a: 401 for ***. Give another."


def test_settings_with_credentials_are_refused_without_saying_them() -> None:
    with pytest.raises(ConfigError, match="AWS_") as refused:
        SourceSettings.read({"uri": ["/a", "https://u:xy99zz77@host/a"]}, "recipe.toml, source")
    assert str(refused.value).startswith("recipe.toml, source, uri: https://***@host/a contains")
    refuse_credentials({"uri": WITHOUT, "share": 0.5}, "recipe.toml")


def test_log_lines_and_tracebacks_of_a_process_have_none(tmp_path: Path) -> None:
    program = (
        "import logging\n"
        "from albert_core.stage.credentials import hide_credentials_in_logs\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "hide_credentials_in_logs(); hide_credentials_in_logs()\n"
        "log = logging.getLogger('a.library')\n"
        "log.info('GET %s', 'https://u:xy99zz77@host/a')\n"
        "try:\n"
        "    raise OSError('no answer from https://u:xy99zz77@host/b')\n"
        "except OSError:\n"
        "    log.exception('failed')\n"
        "log.info('100 %')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "GET https://***@host/a" in done.stderr
    assert "OSError: no answer from https://***@host/b" in done.stderr
    assert "100 %" in done.stderr
    assert "xy99zz77" not in done.stderr.replace("'https://u:xy99zz77@host/a'", "")


def test_a_line_end_in_a_name_begins_no_line_of_the_log_or_of_an_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    before = logging.getLogRecordFactory()
    try:
        hide_credentials_in_logs()
        logging.getLogger("stage").warning("%s: empty\n  and read", "a", extra={})
        logging.getLogger("stage").warning("%s: empty", Path("a\nmanifest: /evil"))
    finally:
        logging.setLogRecordFactory(before)
    assert caplog.messages == ["a: empty\n  and read", r"a\nmanifest: /evil: empty"]
    assert str(SourceError("a\nerror: b\n  c")) == "a\\nerror: b\n  c"


def test_nothing_that_is_shown_commands_a_terminal_or_turns_text_around() -> None:
    named = "\x1b]0;mine\x07 \x9b31m \rover \u202egnp \udcff"
    shown = r"\x1b]0;mine\x07 \x9b31m \rover \u202egnp \udcff"
    assert visible(named) == redacted(named) == str(SourceError(named)) == shown
    assert visible("a\tb\nc \u0645\u06cc\u200c\u062e \U0001f468\u200d\U0001f373") == (
        "a\tb\nc \u0645\u06cc\u200c\u062e \U0001f468\u200d\U0001f373"
    )
