"""What runs when: the Prefect flows, the only place that sees every package.

Importing it asks Prefect and MLflow, for this process and those it starts, not to call home;
what the environment already says is left alone. A proxy that the environment names is not asked for
the servers of this machine, which it would not find.
"""

import os

for _name, _value in {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}.items():
    os.environ.setdefault(_name, _value)
_direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
if _direct.strip() != "*":
    _hosts = [*_direct.split(","), "localhost", "127.0.0.1"]
    os.environ["no_proxy"] = ",".join(dict.fromkeys(filter(None, map(str.strip, _hosts))))
