"""Whose the output of a run is: several catalogs may keep theirs under one `bulk_dir`.

The mark stands before any output of the run does, and the first catalog that leaves one has the run id there.
"""

import os
from pathlib import Path

_MARK = "catalog"


def owner_of(folder: Path) -> str | None:
    """Id of the catalog that marked the folder of a run, or None."""
    try:
        return (folder / _MARK).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def mark(folder: Path, catalog_id: str) -> str:
    """Mark the folder unless it is marked, as a whole; id of the catalog whose it is."""
    new = folder / f".{_MARK}.{os.getpid()}.{os.urandom(4).hex()}"
    new.write_text(catalog_id, encoding="utf-8")
    try:
        os.link(new, folder / _MARK)
    except FileExistsError:
        return owner_of(folder) or catalog_id
    finally:
        new.unlink()
    return catalog_id
