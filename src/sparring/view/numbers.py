"""Numbers as short texts."""


def number_text(value: float, *, percent: bool = False) -> str:
    """Return a number in at most about six characters; ``percent`` is for shares between 0 and 1."""
    if percent:
        return f"{100 * value:.0f}%" if value in (0, 1) or 0.1 <= value <= 0.995 else f"{100 * value:.1f}%"
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.1f}M"
    if size >= 1e4:
        return f"{value / 1e3:.0f}k"
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if size >= 1e-3 else f"{value:.0e}"


def duration_text(seconds: float) -> str:
    """Return a time span in its two largest units."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where needed."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
