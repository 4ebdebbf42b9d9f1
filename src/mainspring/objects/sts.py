"""Grants of S3: sessions of a role, each held to a policy of its own, by AWS's security token service or one like it.

Checked on Ceph's gateway, version 16, which wants a policy without blanks and knows no actions but S3's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, final
from urllib.parse import urlsplit

from mainspring.domain.errors import NotAllowed, Unavailable
from mainspring.domain.wire import StoreCredentials
from mainspring.objects.grants import Access

SESSION_S = 3_600  # The longest that every role allows, also one that is taken on by another role.
CALL_LIMIT_S = 5.0
TRIES_MAX = 2
POLICY_LETTERS_MAX = 2_048  # Source: AWS STS API Reference, AssumeRole, parameter `Policy`.
_HOLDER_LETTERS = 64
_READS = ("s3:GetObject",)
_WRITES = (*_READS, "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload")


@final
class RoleSessions:
    """`Grants` for an S3 store. Whose credentials it uses itself, and where it calls, botocore finds as ever.

    Args:
        url: `s3://bucket/prefix`.
        role: ARN of the role, which may do with the store whatever agents may.
        region: Of the token service; "" for what botocore finds.
        options: Where the store is, for those who get credentials.

    Raises:
        Unavailable: botocore is not installed.
    """

    def __init__(self, url: str, *, role: str, region: str, options: Mapping[str, str]) -> None:
        try:
            from botocore.config import Config
            from botocore.session import get_session
        except ImportError as error:
            raise Unavailable(
                "give agents credentials of a role",
                got="no package 'botocore'",
                next_step="pip install 'mainspring[sts]'",
            ) from error
        parts = urlsplit(url)
        self._bucket, self._prefix = parts.netloc, parts.path.strip("/")
        self._role = role
        self._options = dict(options)
        self._client = get_session().create_client(
            "sts",
            region_name=region or None,
            config=Config(
                connect_timeout=CALL_LIMIT_S, read_timeout=CALL_LIMIT_S, retries={"total_max_attempts": TRIES_MAX}
            ),
        )

    def grant(self, access: Access, *, holder: str) -> StoreCredentials:
        """See `Grants.grant`."""
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

        self.check(access)
        attempted = "take on the role of agents"
        try:
            given = self._client.assume_role(
                RoleArn=self._role,
                RoleSessionName=f"mainspring-{holder}"[:_HOLDER_LETTERS],
                DurationSeconds=SESSION_S,
                Policy=self._policy(access),
            )["Credentials"]
        except ClientError as error:
            said = error.response.get("Error", error.response)  # Ceph's gateway has them one level higher.
            got = f"{said.get('Code')}: {said.get('Message') or 'no more words'}"
            passing = error.response["ResponseMetadata"]["HTTPStatusCode"] >= 500 or "Throttl" in got
            raise (Unavailable if passing else NotAllowed)(attempted, on=self._role, got=got) from error
        except NoCredentialsError as error:
            raise NotAllowed(
                attempted, on=self._role, got="no credentials", next_step="start the server with those of the lab"
            ) from error
        except BotoCoreError as error:
            raise Unavailable(attempted, on=self._role, got=str(error)) from error
        return StoreCredentials(
            access_key_id=given["AccessKeyId"],
            secret_access_key=given["SecretAccessKey"],
            session_token=given["SessionToken"],
            lasts_s=SESSION_S,
            options=self._options,
        )

    def check(self, access: Access) -> None:
        """See `Grants.check`: what a session is for is written in so many letters."""
        letters = len(self._policy(access))
        if letters > POLICY_LETTERS_MAX:
            raise NotAllowed(
                "get one session of the object store for all that is to be read",
                on=self._bucket,
                got=f"a policy of {letters} letters",
                wanted=f"at most {POLICY_LETTERS_MAX}",
                next_step="name fewer under 'reads'",
            )

    def _policy(self, access: Access) -> str:
        """Returns what a session may do of what the role may.

        Source: AWS IAM User Guide, "Policies and permissions": a session may do what both role and policy allow.
        """
        bucket = f"arn:{self._role.split(':')[1]}:s3:::{self._bucket}"
        root = f"{self._prefix}/" if self._prefix else ""
        kinds = (access.writes, access.reads, access.named)
        writes, reads, named = ([f"{root}{folder}/*" for folder in folders] for folders in kinds)
        readable = [*reads, *named, *(f"{root}{key}" for key in access.objects)]
        statements: list[Mapping[str, Any]] = [
            _allowed(_WRITES, [f"{bucket}/{each}" for each in writes]),
            _allowed(_READS, [f"{bucket}/{each}" for each in readable]),
            # A folder is listed by its name with the last "/": whoever may list "a/*" may not list "ab".
            {
                **_allowed(("s3:ListBucket",), [bucket] if writes or reads else []),
                "Condition": {"StringLike": {"s3:prefix": [*writes, *reads]}},
            },
            # What the role may do beside, such as use the key of an encrypted bucket, for which Ceph has no word.
            {"Effect": "Allow", "NotAction": ["s3:*", "sts:*", "iam:*"], "Resource": ["*"]},
        ]
        kept = [each for each in statements if each["Resource"]]
        return json.dumps({"Version": "2012-10-17", "Statement": kept}, separators=(",", ":"))


def _allowed(actions: Sequence[str], on: Sequence[str]) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": list(actions), "Resource": list(on)}
