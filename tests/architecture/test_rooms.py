"""Packages of the log store."""

import tomllib

from tests.architecture.source import ROOT, modules

_CONTRACT = "Rules and values import no service, no port and no catalog"


def test_module_of_the_log_store_is_a_port_a_service_the_catalog_or_held_to_be_pure() -> None:
    """A new module of rules that the contract does not name could import a port or the catalog unseen."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (pure,) = [one["source_modules"] for one in contracts if one["name"] == _CONTRACT]
    names = [".".join(module.path.relative_to(ROOT).with_suffix("").parts) for module in modules("logstore")]
    rest = [
        name
        for name in names
        if not name.startswith(("logstore.ports", "logstore.catalog")) and ".services." not in name
    ]
    unheld = {name for name in rest if not name.startswith(tuple(pure)) and not name.endswith(".__init__")}
    assert unheld == set()
