"""Texts among a flow's parameters that may be URIs: those with credentials are refused.

Prefect keeps parameters in its database, and checks them by their JSON schema before it does.
"""

from typing import Annotated

from pydantic import Field

from albert_core.contract.credentials import WITHOUT_CREDENTIALS

Address = Annotated[str, Field(json_schema_extra={"pattern": WITHOUT_CREDENTIALS})]
"""A path, a URI or a name."""
