"""`python3 -m tools.setup`: written so that even a very old Python can read it, and say that it is too old."""

import sys

if sys.version_info < (3, 8):  # noqa: UP036 - this is for them
    sys.exit(
        "this is Python " + sys.version.split()[0] + ", and Headrace needs 3.11 to 3.13: make setup PYTHON=python3.12"
    )

from tools.setup import installation

sys.exit(installation.main(sys.argv[1:]))
