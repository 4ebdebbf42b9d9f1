"""Export losses that formats share: layers, cameras encoded again or without their rate, what raw logs say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from mainspring.data.export.survey import EpisodeSeen, ExportSurvey, TrackSeen

_NAMED_MAX = 8


def common_losses(
    survey: ExportSurvey, why_again: Callable[[EpisodeSeen, TrackSeen], str] | None, *, stepped: bool = True
) -> tuple[str, ...]:
    """Returns what a format loses.

    Args:
        survey: What goes out.
        why_again: Says why a track is encoded again, "" when it is not; None for a format of single pictures.
        stepped: Whether cameras have a picture for each step, whatever their own rate, and raw logs stay behind.
    """
    lost = [
        f"layer {layer}: its columns {', '.join(columns)} go out as the episode's own; what made them does not"
        for layer, columns in survey.layers.items()
    ]
    for camera in survey.features.cameras:
        pairs = [(one, track) for one in survey.episodes if (track := one.track(camera.name)) is not None]
        reasons = Counter(why for pair in pairs if (why := why_again(*pair))) if why_again else {}
        lost += [
            f"camera {camera.name}: encoded again in {count} episodes, with a loss: {why}"
            for why, count in sorted(reasons.items())
        ]
        if stepped and any(track.jumps for _, track in pairs):
            lost.append(f"camera {camera.name}: its own rate; it has a picture for each step instead")
    if stepped and survey.beside:
        more = f" and {len(survey.beside) - _NAMED_MAX} more" if len(survey.beside) > _NAMED_MAX else ""
        lost.append(f"raw logs: {', '.join(survey.beside[:_NAMED_MAX])}{more} stay behind; mcap takes them along")
    return tuple(lost)
