"""What runs when: the Prefect flows, the only place that sees every package.

Importing it asks Prefect and MLflow, for this process and those it starts, not to call home;
what the environment already says is left alone.
"""

import os

for _name, _value in {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}.items():
    os.environ.setdefault(_name, _value)
