"""Games a second and seconds an update of a run on three hosts, by how slow the network between them is.

    python benchmarks/slow_networks.py [--updates 12] [--staleness 0] [--networks NAME ...]

It needs root, /dev/net/tun and iproute2 (``scripts/test-hosts``). Command and learner are on the first host,
the engine is on the second, the collector on the third; the model is tiny and knows the words of Kuhn poker.
Figures are medians over the updates after the first; bytes are those of all packets between hosts, headers
included, from the second update on.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hosts.network import Network
from hosts.nodes import REQUESTS, Nodes, sizes_for
from measuring import print_table
from playing_model import save_playing_model

PLACES = {"learner": 1, "engine": 2, "collector": 3}
TOGETHER = dict.fromkeys(PLACES, 1)
QUARTER = 0.0125
"""Seconds of each of the four ways that a question and its answer go: together 50 ms."""
NETWORKS: dict[str, dict[str, float]] = {
    "one host": {},
    "three hosts": {},
    "50 ms": {"delay": QUARTER},
    "1% loss": {"loss": 0.005},
    "50 ms, 1% loss": {"delay": QUARTER, "loss": 0.005},
    "10 Mbit/s": {"rate": 1e7},
    "50 ms, 1% loss, 10 Mbit/s": {"delay": QUARTER, "loss": 0.005, "rate": 1e7},
}
"""Settings of every way of each host; a packet goes two ways."""
RUN = [
    "quickstart",
    *("--model.name=model", "--model.dtype=float32", "--model.threads=1"),
    *("--collection.games_per_step=256", "--evaluation.every=0", "--evaluation.nash_conv=false"),
    *("--evaluation.games=4", "--evaluation.opponents=[]", "--run.save_every=1000"),
]


@contextmanager
def cluster(model: Path, places: dict[str, int]) -> Iterator[Nodes]:
    """Start hosts that have the model, with a cluster."""
    with Network(max(places.values())) as network:
        for host in network.hosts.values():
            shutil.copytree(model, host.home / "model")
        yield Nodes(network, sizes_for(places.items()))


def rows_of(run: Path) -> list[dict[str, Any]]:
    """Return what the run has logged."""
    path = run / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def bytes_between_hosts(nodes: Nodes) -> int:
    """Return the bytes that arrived so far."""
    return sum(row[-1] for row in nodes.network.counts()["arrived"])


def measure(model: Path, name: str, updates: int, staleness: int) -> list[str]:
    """Train on a network; return a row of the table."""
    with cluster(model, TOGETHER if name == "one host" else PLACES) as nodes:
        for number in nodes.network.hosts:
            nodes.network.change(number, **NETWORKS[name])
        length = [f"--learning.steps={updates}", f"--collection.max_staleness={staleness}"]
        command, run = nodes.train("measured", *RUN, *length), nodes.runs / "measured"
        started = command.wait_until(lambda: len(rows_of(run)) > 0)
        first, before = len(rows_of(run)), bytes_between_hosts(nodes)
        ended = started and command.wait_until(lambda: len(rows_of(run)) >= updates)
        sent, lost = bytes_between_hosts(nodes) - before, nodes.network.counts()["lost"]
        code, said = command.end()
        if code != 0 or not ended:
            sys.exit(said)
        rows = rows_of(run)
    seconds = median(later["wall_time"] - one["wall_time"] for one, later in pairwise(rows))
    parts = [median(row[f"time/{part}_seconds"] for row in rows[1:]) for part in ("play", "learn")]
    figures = [f"{256 / seconds:.1f}", *(f"{one:.2f}" for one in (seconds, *parts))]
    return [name, *figures, f"{sent / (updates - first) / 1e6:.2f}", str(lost)]


def main() -> None:
    """Measure every network in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--updates", type=int, default=12)
    parser.add_argument("--staleness", type=int, default=0)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    chosen = parser.parse_args()
    header = ["network", "games/s", "s an update", "playing", "learning", "MB an update", "packets lost"]
    rows = []
    with TemporaryDirectory() as directory:
        model = save_playing_model(Path(directory) / "model")
        for name in chosen.networks:
            rows.append(measure(model, name, chosen.updates, chosen.staleness))
            print(rows[-1], file=sys.stderr)
    print(f"actors request these cores and GPUs: {REQUESTS}; staleness {chosen.staleness}\n")
    print_table(header, rows)


if __name__ == "__main__":
    main()
