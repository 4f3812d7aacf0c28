"""The generated modules are those of the `.proto` files."""

from pathlib import Path

import grpc_tools
import pytest
from grpc_tools import protoc

_ROOT = Path(__file__).parents[3]
_PROTOS = _ROOT / "logstore/pulsar/protos"


@pytest.mark.parametrize("source", sorted(path.name for path in _PROTOS.glob("*.proto")))
def test_generated_modules_are_current(source: str, tmp_path: Path) -> None:
    """`make protos` writes them anew."""
    options = ["-I", str(_ROOT), "-I", str(Path(grpc_tools.__file__).parent / "_proto")]
    code = protoc.main(["protoc", *options, f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(_PROTOS / source)])
    assert code == 0
    for suffix in ("_pb2.py", "_pb2.pyi"):
        name = source.replace(".proto", suffix)
        assert (tmp_path / "logstore/pulsar/protos" / name).read_text() == (_PROTOS / name).read_text()
