"""Who gives agents credentials of the object store, and what of the server's environment they then do without."""

from __future__ import annotations

from collections.abc import Mapping

from mainspring.app.base.home import Config
from mainspring.objects import Grants

_OF_S3 = "AWS_"  # What all variables begin with that S3's clients read.
# Those of them that say where a store is, and nothing of who asks. obstore takes them as options, in small letters.
_WHERE = (
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
)


def grants_of(config: Config, environment: Mapping[str, str]) -> Grants | None:
    """Returns who gives agents credentials, None where they use what their environment has.

    Args:
        environment: This process's own.

    Raises:
        Unavailable: A package is missing.
    """
    if not config.objects_role:
        return None
    from mainspring.objects.sts import RoleSessions  # Nothing but a server with a role needs botocore.

    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION", "")
    options = {name.lower(): environment[name] for name in _WHERE if environment.get(name)}
    return RoleSessions(config.objects, role=config.objects_role, region=region, options=options)


def agents_environment(config: Config, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns what agents, and engines on hosts, may have of the server's environment.

    Args:
        environment: This process's own.
    """
    return {name: value for name, value in environment.items() if not (config.objects_role and name.startswith(_OF_S3))}
