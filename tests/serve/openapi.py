"""Compares a running server with serve/openapi.json, by the requests that schemathesis makes of it."""

import os
import subprocess
import sys
from pathlib import Path

from expect import check

HERE = Path(__file__).parent
DOCUMENT = HERE.parent.parent / "serve" / "openapi.json"
MAX_SECONDS = 60


def conforms(where, token, directory, environment):
    """No answer is a 5xx or outside of the document. The requests are the same in each run."""
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "run", DOCUMENT, "--url", f"http://{where}"),
        *("--header", f"Authorization: Bearer {token}"),
        *("--generation-deterministic", "--max-examples", "10", "--generation-codec", "ascii"),
        *("--phases", "examples,coverage,fuzzing"),
        # The document cannot say which texts are limits, and which plans exist.
        *("--exclude-checks", "positive_data_acceptance"),
        *("--continue-on-failure", "--request-timeout", "40", "--warnings", "off", "--no-color"),
    ]
    packages = {"PYTHONPATH": os.environ["PYTHONPATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    settings = {**environment, **packages, "SCHEMATHESIS_HOOKS": str(HERE / "hooks.py")}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=MAX_SECONDS,
            env=settings,
            cwd=directory,
        )
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode(errors="replace")
        check(f"serve/openapi.json: schemathesis ends within {MAX_SECONDS} s", False, output)
    output = done.stdout + done.stderr
    tested = [line.split()[-1] for line in output.splitlines() if line.strip().startswith("Tested:")]
    check("serve/openapi.json: schemathesis tests all 15 operations", tested == ["15"], output)
    check("serve/openapi.json: the server answers as the document says", done.returncode == 0, output)
