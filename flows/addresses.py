"""Texts among a flow's parameters that may be URIs: those with credentials are refused.

Prefect keeps parameters in its database, and checks them by their JSON schema before it does.
"""

from typing import Annotated

from pydantic import Field

WITHOUT_CREDENTIALS = (
    r"^(?![\s\S]*(?:://[^\s/?#]*:[^\s/?#]*@|https?://[^\s/?#]+@|"
    r"[?&](?:[Xx]-[A-Za-z]+-(?:[Ss]ignature|[Cc]redential|[A-Za-z-]*[Tt]oken)|[Ss]ig|[Ss]ignature|"
    r"\w*[Tt]oken|\w*[Pp]assword|\w*[Ss]ecret|(?:\w+_)?[Aa]pi_?[Kk]ey)=))"
)
"""As Prefect's server and its pages in the browser both read it; what `has_credentials` finds."""

Address = Annotated[str, Field(json_schema_extra={"pattern": WITHOUT_CREDENTIALS})]
"""A path, a URI or a name."""
