"""A line chart as SVG text, both axes logarithmic."""

import math
from dataclasses import dataclass

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 70, 250, 20, 60
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
INK = "#555555"


@dataclass(frozen=True)
class Line:
    """Points with a name; all coordinates are positive."""

    name: str
    points: list[tuple[float, float]]
    dashed: bool = False


class _Axis:
    """Maps values to pixels; ``ticks`` are powers of two."""

    def __init__(self, values: list[float], start: float, end: float) -> None:
        self.low = math.floor(math.log2(min(values)))
        self.high = max(math.ceil(math.log2(max(values))), self.low + 1)
        self.start, self.end = start, end

    def place(self, value: float) -> float:
        share = (math.log2(value) - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        return [2.0**power for power in range(self.low, self.high + 1)]


def line_chart(lines: list[Line], x_title: str, y_title: str) -> str:
    """Draw the lines with a legend on the right."""
    points = [point for line in lines for point in line.points]
    x_axis = _Axis([x for x, _ in points], LEFT, WIDTH - RIGHT)
    y_axis = _Axis([y for _, y in points], HEIGHT - BOTTOM, TOP)
    parts = [_grid(x_axis, y_axis, x_title, y_title)]
    for number, line in enumerate(lines):
        parts.append(_line(line, COLOURS[number % len(COLOURS)], x_axis, y_axis, TOP + 12 + 22 * number))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        f'font-size="12" fill="{INK}">'
    )
    background = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    return "\n".join([head, background, *parts, "</svg>"]) + "\n"


def _grid(x_axis: _Axis, y_axis: _Axis, x_title: str, y_title: str) -> str:
    parts = []
    for tick in x_axis.ticks():
        x = x_axis.place(tick)
        parts.append(f'<path d="M{x} {TOP}V{HEIGHT - BOTTOM}" stroke="#dddddd"/>')
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{_text(tick)}</text>')
    for tick in y_axis.ticks():
        y = y_axis.place(tick)
        parts.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{_text(tick)}</text>')
    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text x="{middle_x}" y="{HEIGHT - 16}" text-anchor="middle">{x_title}</text>')
    turned = f'transform="rotate(-90 16 {middle_y})"'
    parts.append(f'<text x="16" y="{middle_y}" text-anchor="middle" {turned}>{y_title}</text>')
    return "\n".join(parts)


def _text(tick: float) -> str:
    return f"{tick:,.0f}" if tick >= 1 else f"{tick:g}"


def _line(line: Line, colour: str, x_axis: _Axis, y_axis: _Axis, legend_y: float) -> str:
    places = [(x_axis.place(x), y_axis.place(y)) for x, y in line.points]
    dash = ' stroke-dasharray="6 4"' if line.dashed else ""
    style = f'fill="none" stroke="{colour}" stroke-width="2"{dash}'
    legend_x = WIDTH - RIGHT + 16
    return "\n".join(
        [
            f'<polyline points="{" ".join(f"{x},{y}" for x, y in places)}" {style}/>',
            *(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in places),
            f'<path d="M{legend_x} {legend_y - 4}h28" {style}/>',
            f'<text x="{legend_x + 36}" y="{legend_y}">{line.name}</text>',
        ]
    )
