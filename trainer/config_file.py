"""A YAML file of flags -> typed values. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainer.coerce import nearest, shown, typed
from trainer.config import KEYS
from trainer.errors import UserError
from trainer.flags import ROWS


def read_config_file(path: str) -> dict[str, Any]:
    """Read a YAML file of canonical keys into typed values."""
    import yaml

    where = f"--config {shown(path)}"
    try:
        with open(path, encoding="utf-8") as stream:
            content = yaml.safe_load(stream)
    except OSError as error:
        raise UserError(f"{where}: {error.strerror}{_nearby(path)}") from None
    except (
        Exception
    ) as error:  # not YAMLError alone: a date like 2026-99-99, `!!bool maybe` or deep nesting raise others
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{where} is no readable YAML: {reason[:300]}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{where} must hold `key: value` lines, found a {type(content).__name__}")
    for key in content:
        if key not in KEYS:
            name = shown(key)
            canonical = next((row.key for row in ROWS if f"--{name[1:-1].replace('_', '-')}" in row.flags), None)
            hint = f"; it is spelled {canonical} here" if canonical else nearest(name[1:-1], KEYS)
            raise UserError(f"{where}: unknown key {name}{hint}")
    try:
        return typed(content)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _nearby(path: str) -> str:
    folder = Path(path).parent
    try:
        names = sorted(entry.name for entry in folder.glob("*.y*ml"))
    except (OSError, ValueError):
        return ""
    return f"; {shown(str(folder))} holds {', '.join(map(shown, names[:8]))}" if names else ""
