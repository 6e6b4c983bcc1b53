"""How large the votes of few-shot episodes are on disk (docs/reference/results.md).

python benchmarks/episode_file.py        # 100 episodes of 7,180 test images, three settings; seconds
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from workload import hard

from histobench.roi.protocols.few_shot import few_shot
from histobench.roi.results.episode_predictions import EpisodePredictions, episode_file


def main() -> int:
    """Play the episodes, write their votes, print the size of each setting."""
    w = hard(dim=512, n_train=9_000)
    result = few_shot(
        w.train, w.train_labels, w.test, w.test_labels, n_classes=w.n_classes, n_way=[], n_shot=[1, 16, 256],
        n_iter=100,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for setting in result.settings:
            path = Path(folder) / f"{setting.name}.npz"
            with episode_file(path) as file:
                votes = EpisodePredictions(setting.votes, w.test_labels.numpy(), setting.episodes.classes)
                file.add(setting.name, votes)
            accuracy = float(setting.episode_metrics["accuracy"].mean())
            print(f"{setting.name}: {100 * accuracy:.0f} % right, {path.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
