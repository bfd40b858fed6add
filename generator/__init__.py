"""The compiler of gpu-runbook: a platform profile and a job become a runbook and plain bash scripts."""

__version__ = "0.1.0"
