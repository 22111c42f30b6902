"""The peers' job on Flower's simulation: a client app, a server app, its FedAvg, and Ray below.

Each of Ray's actors has one core, so as many run side by side as there are cores.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn import functional as F

from benchmarks.peers.shared_job import (
    CNN,
    Images,
    PeerAnswer,
    PeersJob,
    evaluate_model,
    first_model,
    read_job,
    some_images,
)

_FOLDER = "ADAPTCL_PEERS_FOLDER"
"""The environment variable that gives Ray's actors the job's folder."""

client = ClientApp()


@cache
def job_and_images() -> tuple[PeersJob, Images, Images]:
    """The job and its images, read once in each process."""
    return read_job(Path(os.environ[_FOLDER]))


@client.train()
def train(message: Message, context: Context) -> Message:
    job, users, _ = job_and_images()
    if job.device == "cpu":
        torch.set_num_threads(1)
    model = CNN()
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    model.to(job.device).train()
    inputs, labels = users.of(int(context.node_config["partition-id"]), job)
    inputs, labels = inputs.to(job.device), labels.to(job.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=job.learning_rate)
    for begin in range(0, job.samples, job.batch):
        chosen = slice(begin, begin + job.batch)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    content = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": job.samples}),
        }
    )
    return Message(content=content, reply_to=message)


server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """FedAvg with a sample of the users each round."""
    job, _, test = job_and_images()
    part = some_images(test, job)
    model = first_model(job).to(job.device)
    answer = PeerAnswer()

    def end_round(round_: int, arrays: ArrayRecord) -> MetricRecord | None:
        model.load_state_dict(arrays.to_torch_state_dict())
        if round_ == 0:
            answer.start()
        else:
            answer.end_round(evaluate_model(model, part)[1])
        return None

    strategy = FedAvg(
        fraction_train=job.cohort / job.users,
        fraction_evaluate=0.0,
        min_train_nodes=job.cohort,
        min_available_nodes=job.users,
    )
    strategy.start(
        grid, ArrayRecord(model.state_dict()), num_rounds=job.rounds, evaluate_fn=end_round
    )
    answer.write(Path(os.environ[_FOLDER]), "flower", model, test)


def run(folder: Path) -> None:
    """Run the job and write the answer to the folder."""
    os.environ[_FOLDER] = str(folder)
    job, _, _ = job_and_images()
    cores = os.cpu_count() or 1
    share = 0.0 if job.device == "cpu" else 1.0 / cores
    run_simulation(
        server,
        client,
        num_supernodes=job.users,
        backend_config={
            "init_args": {"num_cpus": cores},
            "client_resources": {"num_cpus": 1, "num_gpus": share},
        },
    )


if __name__ == "__main__":
    # Ray's actors must find these functions by their module's name, not in "__main__".
    from benchmarks.peers import flower_side

    flower_side.run(Path(sys.argv[1]))
