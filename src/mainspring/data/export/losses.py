"""What formats lose alike: what layers are, cameras that are encoded again, what raw logs say beside."""

from __future__ import annotations

from collections.abc import Collection

from mainspring.data.export.survey import ExportSurvey, Look
from mainspring.data.readers.log import LOG_SUFFIXES


def common_losses(
    survey: ExportSurvey,
    codecs: tuple[str, ...],
    *,
    stills: Collection[Look],
    reordered: bool = True,
    logs: bool = True,
) -> tuple[str, ...]:
    """Returns what a format loses that copies video of some codecs.

    Args:
        survey: What goes out.
        codecs: The codecs it copies.
        stills: Pictures it holds as they are.
        reordered: Whether it takes packets in another order than their frames.
        logs: Whether the other topics of raw logs are lost.
    """
    lost = [
        f"layer {layer}: its columns {', '.join(columns)} go out as the episode's own; what made them does not"
        for layer, columns in survey.layers.items()
    ]
    for camera in survey.features.cameras:
        reasons: dict[str, int] = {}
        for episode in survey.episodes:
            track = episode.track(camera.name)
            why = track.why_again(codecs, reordered=reordered) if track and track.look not in stills else ""
            if why:
                reasons[why] = reasons.get(why, 0) + 1
        for why, count in sorted(reasons.items()):
            lost.append(f"camera {camera.name}: encoded again in {count} episodes, with a loss: {why}")
        if any(track.jumps for one in survey.episodes for track in one.tracks if track.camera == camera.name):
            lost.append(f"camera {camera.name}: its own rate; it has a picture for each step instead")
    raw = sum(any(file.name.lower().endswith(LOG_SUFFIXES) for file in one.row.raw) for one in survey.episodes)
    if logs and raw:
        lost.append(f"raw logs of {raw} episodes: camera_info, transforms, URDF and other topics stay behind")
    return tuple(lost)
