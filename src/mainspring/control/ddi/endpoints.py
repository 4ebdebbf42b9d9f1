"""What robots call over HTTP: documents of hawkBit's DDI, files with ranges, and what they read of TUF."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from fastapi import HTTPException, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from mainspring.control.control import Control
from mainspring.control.service.robots.devices import DeviceCall, Devices
from mainspring.domain.answers import Enrolled, RobotClaim
from mainspring.domain.answers.policies.releases import PIECE_BYTES_MAX, ReleaseFile
from mainspring.domain.answers.policies.robots import DEVICE_HEADER
from mainspring.domain.codec import decode, encode
from mainspring.domain.errors import NotAllowed
from mainspring.domain.routes import Calls, Route

_RANGE = re.compile(r"bytes=([0-9]{1,18})?-([0-9]{1,18})?")
_HAL = "application/hal+json"  # What hawkBit answers.
_FILE = "application/octet-stream"
_MD5SUM = ".MD5SUM"


def _call(request: Request, tenant: str, robot: str) -> DeviceCall:
    base = str(request.base_url).rstrip("/")
    return DeviceCall(
        robot=robot,
        method=request.method,
        path=request.url.path,
        authorization=request.headers.get("Authorization", ""),
        device=request.headers.get(DEVICE_HEADER, ""),
        address=request.client.host if request.client else "",
        base=f"{base}/{tenant}/controller/v1/{robot}",
    )


def _served(
    answer: Callable[..., Any],
) -> Callable[..., Response]:
    """Returns what serves a call of a robot: what it answers as a document of DDI, nothing as an empty body."""

    def serve(*, request: Request, tenant: str, robot: str, **given: Any) -> Response:
        try:
            made = answer(_control(request).devices, _call(request, tenant, robot), request=request, **given)
        except NotAllowed as error:
            raise HTTPException(401, detail=error) from error
        if isinstance(made, Response):
            return made
        if made is None or isinstance(made, bool):
            return Response(status_code=410 if made is False else 200)  # "Gone", as hawkBit says of what is over.
        return JSONResponse(made, media_type=_HAL)

    return serve


def _control(request: Request) -> Control:
    return cast(Control, request.app.state.control)


def _claim(*, request: Request, body: bytes) -> Response:
    address = request.client.host if request.client else ""
    made: Enrolled = _control(request).robots.claim(decode(RobotClaim, body), address=address)
    return Response(encode(made), media_type="application/json")


def _trust(devices: Devices, call: DeviceCall, *, request: Request, file: str) -> Response:
    devices.enter(call, counted=False)
    return Response(_control(request).releases.metadata(file), media_type=_FILE)


def _target(devices: Devices, call: DeviceCall, *, request: Request, folder: str, name: str) -> Response:
    devices.enter(call, counted=False)
    begin, end = range_of(request.headers.get("Range", ""), 1 << 50) or (0, PIECE_BYTES_MAX)
    limit = max(0, min(PIECE_BYTES_MAX, end - begin))
    piece = _control(request).releases.piece(folder, name, offset=begin, limit=limit)
    return Response(piece, status_code=206 if begin or "Range" in request.headers else 200, media_type=_FILE)


def _artifact(devices: Devices, call: DeviceCall, *, request: Request, module: str, file: str) -> Response:
    if file.endswith(_MD5SUM):
        return Response(devices.checksum(call, module, file.removesuffix(_MD5SUM)), media_type="text/plain")
    return _ranged(request, devices.artifact(call, module, file))


def _ranged(request: Request, file: ReleaseFile) -> Response:
    """Returns a file or the range of it that is asked for. Source: RFC 9110, section 14."""
    size, etag = file.size_bytes, f'"{file.sha256}"'
    asked = request.headers.get("Range", "")
    if request.headers.get("If-Range", etag) != etag:  # Another file than the client has a part of.
        asked = ""
    headers = {"Accept-Ranges": "bytes", "ETag": etag, "Content-Disposition": f'attachment; filename="{file.path}"'}
    found = range_of(asked, size)
    if asked and found is None:
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{size}"})
    begin, end = found or (0, size)
    headers["Content-Length"] = str(end - begin)
    if asked:
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
    pieces = _control(request).digests.pieces(file, begin, end)
    return StreamingResponse(pieces, status_code=206 if asked else 200, headers=headers, media_type=_FILE)


def range_of(asked: str, size: int) -> tuple[int, int] | None:
    """Returns where a range begins and ends, None for one that is none, or outside.

    Args:
        asked: HTTP's header, of one range.
        size: Of the whole.
    """
    found = _RANGE.fullmatch(asked.replace(" ", ""))
    if found is None or found.group(1) is found.group(2) is None:
        return None
    if found[1] is None:
        begin, end = max(0, size - int(found[2])), size
    else:
        begin, end = int(found[1]), size if found[2] is None else min(size, int(found[2]) + 1)
    return (begin, end) if begin < end else None


_DDI: Mapping[Route[..., Any], Callable[..., Any]] = {
    Calls.ddi_poll: lambda devices, call, request: devices.poll(call),
    Calls.ddi_config: lambda devices, call, request, body: devices.configure(call, body),
    Calls.ddi_deployment: lambda devices, call, request, action: devices.deployment(call, action),
    Calls.ddi_feedback: lambda devices, call, request, action, body: devices.feedback(call, action, body),
    Calls.ddi_installed: lambda devices, call, request, action: devices.deployment(call, action, what="installed"),
    Calls.ddi_cancel: lambda devices, call, request, action: devices.cancelled(call, action),
    Calls.ddi_cancel_feedback: lambda devices, call, request, action, body: devices.feedback(
        call, action, body, of_cancel=True
    ),
    Calls.ddi_confirmations: lambda devices, call, request: devices.confirmations(call),
    Calls.ddi_auto_confirm: lambda devices, call, request, body: devices.confirm_all(call, on=True),
    Calls.ddi_no_auto_confirm: lambda devices, call, request: devices.confirm_all(call, on=False),
    Calls.ddi_confirmation: lambda devices, call, request, action: devices.deployment(
        call, action, what="confirmation"
    ),
    Calls.ddi_confirm: lambda devices, call, request, action, body: devices.confirm(call, action, body),
    Calls.ddi_artifacts: lambda devices, call, request, module: JSONResponse(
        devices.artifacts(call, module), media_type=_HAL
    ),
    Calls.ddi_artifact: _artifact,
    Calls.device_trust: _trust,
    Calls.device_target: _target,
}
DEVICE_ENDPOINTS: Mapping[Route[..., Any], Callable[..., Any]] = {
    Calls.claim_robot: _claim,
    **{route: _served(answer) for route, answer in _DDI.items()},
}
