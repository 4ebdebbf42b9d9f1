"""Records episodes of the scripted expert on the simulated arm: `python -m mainspring record`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from mainspring.robots.recorder import record_episodes


def main() -> int:
    """Records, shows progress on stderr, and prints one JSON line of what came of it; returns the exit code."""
    parser = argparse.ArgumentParser(description="Records episodes of the scripted expert as MCAP files.")
    parser.add_argument("--episodes", type=int, required=True, help="how many to record")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--seed", type=int, default=0, help="of the starts")
    words = parser.parse_args()

    def progress(finished: int) -> None:
        print(f"\r{finished} of {words.episodes} episodes", end="", file=sys.stderr, flush=True)

    recorded = record_episodes(words.out, count=words.episodes, seed=words.seed, progress=progress)
    print(file=sys.stderr)
    facts = {
        "episodes": len(recorded),
        "successes": sum(episode.success for episode in recorded),
        "steps": sum(episode.steps for episode in recorded),
    }
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
