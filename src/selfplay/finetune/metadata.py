"""Metadata: which version of the package made a run."""

import importlib.metadata

DISTRIBUTION = "selfplay-rl"


def metadata() -> dict[str, str]:
    """Return the package's name and version."""
    try:
        version = importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:  # run from a source tree that is not installed
        version = "unknown"
    return {"package_name": DISTRIBUTION, "package_version": version}
