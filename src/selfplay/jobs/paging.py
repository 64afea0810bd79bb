"""Pages of a list, as OpenAI's list routes return them."""

from collections.abc import Sequence
from typing import Any

from selfplay.inference.server_schema import ApiError


def page(objects: Sequence[dict[str, Any]], after: str | None, limit: int) -> dict[str, Any]:
    """Return the ``limit`` objects that follow the one with id ``after``, as a list object.

    Raises:
        ApiError: no object has that id.
    """
    first = 0
    if after is not None:
        ids = [one["id"] for one in objects]
        if after not in ids:
            raise ApiError(400, f"after: there is no {after!r:.100} in this list", param="after")
        first = ids.index(after) + 1
    data = objects[first : first + limit]
    return {
        "object": "list",
        "data": list(data),
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": first + limit < len(objects),
    }
