"""What libraries prepare for each engine, client or worker anew, prepared once a process; each test makes its own.

Most tests open a catalog of their own, thus an engine of its own, and half of their time was the compiling of the same
few hundred statements anew. SQLAlchemy caches what it compiled in the engine, under a key that holds the dialect.
A client of S3 reads 0.04 s long the files that describe the service. A Temporal worker tries each of its workflows in
the sandbox before it starts.
"""

from functools import cache
from typing import Any, Final

from botocore import loaders, session
from sqlalchemy import Engine, create_engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.util import LRUCache
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from logstore.catalog.engine import database_connections

_DIALECTS: Final = (SQLiteDialect_pysqlite, PGDialect_psycopg)
_COMPILED_STATEMENTS: Final = LRUCache[Any, Any](4000)


def share_compiled_statements() -> None:
    """Let all engines of the catalog share one cache: a dialect of one kind is as good as another, on one server."""
    for dialect in _DIALECTS:
        dialect.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[method-assign]
        dialect.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]
    database_connections.create_engine = _create_caching_engine  # type: ignore[attr-defined]


def share_s3_service_descriptions() -> None:
    """Let all clients of S3 have one reader of botocore's files, as the clients of one session have."""
    session.create_loader = cache(loaders.create_loader)


def validate_each_workflow_once() -> None:
    """Let a class that the sandbox has taken be good for later workers too."""
    prepare, validated_classes = SandboxedWorkflowRunner.prepare_workflow, set[type]()

    def once(self: SandboxedWorkflowRunner, definition: Any) -> None:
        if definition.cls not in validated_classes:
            prepare(self, definition)
            validated_classes.add(definition.cls)

    SandboxedWorkflowRunner.prepare_workflow = once  # type: ignore[assignment,method-assign]


def _create_caching_engine(*arguments: Any, **options: Any) -> Engine:
    engine = create_engine(*arguments, **options)
    engine._compiled_cache = _COMPILED_STATEMENTS
    return engine
