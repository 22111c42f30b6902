"""The peers' job on adaptcl, through its public interface."""

from __future__ import annotations

import sys
from pathlib import Path

import adaptcl
from adaptcl.events import Event, RoundFinished
from benchmarks.peers.shared_job import PeerAnswer, first_model, read_job, some_images


def run(folder: Path) -> None:
    """Run the job and write the answer to the folder."""
    job, train, test = read_job(folder)
    part = some_images(test, job)
    answer = PeerAnswer()

    def listen(event: Event) -> None:
        if isinstance(event, RoundFinished):
            answer.end_round(event.record.accuracy or 0.0)

    answer.start()
    result = adaptcl.run(
        first_model(job),
        [train.of(user, job) for user in range(job.users)],
        (part.inputs, part.labels),
        train_time=1.0,  # given, so that it is not measured
        strategy="fedavg",
        participants=job.cohort,
        rounds=job.rounds,
        epochs=1.0,
        batch_size=job.batch,
        learning_rate=job.learning_rate,
        momentum=0.0,
        weight_decay=0.0,
        seed=job.seed,
        device=job.device,
        listeners=[listen],
    )
    answer.write(folder, "adaptcl", result.model, test)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
