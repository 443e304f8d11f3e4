"""The one place that talks to MLflow's tracking server, at once or when it is back."""
