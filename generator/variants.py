"""A profile as it reads for a box without some of its optional tiers.

An item of a list says `needs_tier` or `without_tier`; a text is a mapping `{tier, with, without}`. What is not true of the box
goes, and nothing of these marks is left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

MARKS = ("needs_tier", "without_tier")
WORDING = frozenset({"tier", "with", "without"})
_GONE = object()


def optional_tiers(profile: dict) -> list[str]:
    """Names of the tiers that one can rent without."""
    return [tier["name"] for tier in profile["storage"]["tiers"] if tier.get("optional")]


def variant(profile: dict, without: tuple[str, ...]) -> dict:
    """The profile's data for a box without these tiers; tiers keep their places, for paths of fields count them."""
    return _told(profile, without) if optional_tiers(profile) else profile


def is_wording(value: Any) -> bool:
    """True for a text that depends on a tier."""
    return isinstance(value, dict) and "tier" in value and WORDING >= value.keys()


def stays(item: Any, without: tuple[str, ...]) -> bool:
    """False for an item of a list that is not true of a box without these tiers."""
    if not isinstance(item, dict):
        return True
    if is_wording(item):
        return ("without" if item["tier"] in without else "with") in item
    return item.get("needs_tier") not in without and ("without_tier" not in item or item["without_tier"] in without)


def _told(value: Any, without: tuple[str, ...]) -> Any:
    if isinstance(value, list):
        return [_told(item, without) if isinstance(item, (dict, list)) else item for item in value if stays(item, without)]
    if is_wording(value):
        return value.get("without" if value["tier"] in without else "with", _GONE)
    found = {}
    for key, item in value.items():
        if isinstance(item, (dict, list)):
            item = _told(item, without)
        if item is not _GONE and key not in MARKS:
            found[key] = item
    return found


def marked(value: Any, path: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Every item and text that depends on a tier, with its path."""
    if isinstance(value, dict):
        if "needs_tier" in value or "without_tier" in value or is_wording(value):
            yield path, value
        for key, item in value.items():
            if isinstance(item, (dict, list)):
                yield from marked(item, (*path, key))
    else:
        for index, item in enumerate(value):
            if isinstance(item, (dict, list)):
                yield from marked(item, (*path, index))
