"""Functions that each database spells its own way."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import GenericFunction


class whole(GenericFunction[int]):
    """The whole part of a number that is not negative: casts cut in SQLite, and round in PostgreSQL."""

    type = sa.BigInteger()
    inherit_cache = True
    name = "whole"


@compiles(whole)
def _cut(element: whole, compiler: Any, **options: Any) -> str:
    return f"CAST({compiler.process(element.clauses, **options)} AS INTEGER)"


@compiles(whole, "postgresql")
def _floored(element: whole, compiler: Any, **options: Any) -> str:
    return f"CAST(floor({compiler.process(element.clauses, **options)}) AS BIGINT)"
