"""The commands of ``headrace``, one module for each (see headrace/cli.py for what a module provides)."""
