"""Print the oldest version that pyproject.toml allows of each package but torch: oldest_versions.py EXTRAS.

EXTRAS are names with commas between. Each line is a constraint of pip, such as ``numpy==2.0.0``.
"""

import re
import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
requirements = [*project["dependencies"], *(one for name in sys.argv[1].split(",") for one in extras[name])]
for requirement in requirements:
    found = re.match(r"([\w.-]+)[=>]=([\w.]+)", requirement)
    if found is not None and found[1] != "torch":
        print(f"{found[1]}=={found[2]}")
