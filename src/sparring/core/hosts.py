"""Names and addresses of hosts."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Return whether no other machine can reach a host's name or address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
