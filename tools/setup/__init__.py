"""Set-up: makes `.venv` with everything that Headrace needs. Runs with any Python's standard library alone."""
