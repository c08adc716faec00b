"""Hook of hatchling: writes docs/reference/contract.md, which git does not have, into the source distribution."""

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ContractHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """The page is read from the tests, so it needs nothing that is not installed here."""
        sys.path.insert(0, self.root)
        from docs.reference.contract import contract_page

        page = Path(self.root, "docs", "reference", "contract.md")
        page.write_text(contract_page(), encoding="utf-8")
        build_data["artifacts"].append("/docs/reference/contract.md")
