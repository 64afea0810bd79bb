"""Which modules a command loads."""

import subprocess
import sys

MODULES_LEFT = (
    "import sys; from sparring.cli.main import main; done = {{main(one.split()) for one in sys.argv[1:]}}; "
    "print('loaded', *(m for m in {heavy!r} if m in sys.modules), file=sys.stderr); sys.exit(*done)"
)


def loaded_by(*commands, heavy, status=0):
    """Run commands in one new process, which all end with this status; return what it has loaded."""
    done = subprocess.run(
        [sys.executable, "-c", MODULES_LEFT.format(heavy=heavy), *commands],
        capture_output=True,
        text=True,
    )
    assert done.returncode == status, done.stderr
    return done.stderr.splitlines()[-1].split()[1:]
