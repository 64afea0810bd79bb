"""Names and addresses of hosts."""

from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Return whether a host's name or address is a loopback one, which no other machine can reach."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
