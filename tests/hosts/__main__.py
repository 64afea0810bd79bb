"""Start hosts with a node of Ray in each, and a command in the first: ``python -m hosts 3 [COMMAND...]``."""

import sys

from hosts.inside import MOST_HOSTS
from hosts.network import Network, why_not
from hosts.nodes import Nodes

SIZE = (2, 0)


def main() -> None:
    """Run the command, by default a shell, and stop the hosts when it ends."""
    hosts, *command = sys.argv[1:] or [""]
    if not hosts.isdecimal() or not 1 <= int(hosts) <= MOST_HOSTS:
        sys.exit(f"error: give the number of hosts, 1 to {MOST_HOSTS}, and a command")
    if reason := why_not():
        sys.exit(f"error: {reason}")
    with Network(int(hosts)) as network:
        nodes = Nodes(network, dict.fromkeys(network.hosts, SIZE))
        print(f"{hosts} hosts; the cluster is at {nodes.address}, which is this host", file=sys.stderr)
        sys.exit(network[1].start(*(command or ["bash"]), env=nodes.environment).wait())


if __name__ == "__main__":
    main()
