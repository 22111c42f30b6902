"""The peers' job on pfl-research: its simulated backend, its FedAvg, its PyTorch model.

The setup is that of pfl-research's CIFAR-10 benchmark. pfl-research has no type information.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor
from torch.nn import functional as F

from benchmarks.peers.shared_job import (
    CNN,
    Images,
    PeerAnswer,
    evaluate_model,
    first_model,
    read_job,
    some_images,
)


class PflCNN(CNN):
    """The CNN with the two methods that pfl-research requires."""

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        self.train()
        return F.cross_entropy(self(images), labels)

    @torch.no_grad()
    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
        self.eval()
        loss = F.cross_entropy(self(images), labels, reduction="sum").item()
        return {"loss": Weighted(loss, len(labels))}


class ProgressWatch(TrainingProcessCallback):  # type: ignore[misc]
    """Records the end of each round and tests the model."""

    def __init__(self, answer: PeerAnswer, test: Images) -> None:
        self._answer, self._test = answer, test

    def after_central_iteration(
        self, aggregate_metrics: Any, model: Any, *, central_iteration: int
    ) -> tuple[bool, Any]:
        self._answer.end_round(evaluate_model(model.pytorch_model, self._test)[1])
        return False, Metrics()


def run(folder: Path) -> None:
    """Run the job and write the answer to the folder."""
    job, train, test = read_job(folder)
    device = torch.device(job.device)
    os.environ["PFL_PYTORCH_DEVICE"] = job.device  # else it takes any GPU there is
    torch.backends.cuda.matmul.allow_tf32 = True  # as adaptcl does
    torch.manual_seed(job.seed)
    np.random.seed(job.seed)  # its samplers use it
    users = {
        user: tuple(each.to(device) for each in train.of(user, job)) for user in range(job.users)
    }
    data = FederatedDataset(
        lambda user: PyTorchTensorDataset(users[user], user_id=str(user)),
        get_user_sampler("random", list(users)),
    )
    network = PflCNN()
    network.load_state_dict(first_model(job).state_dict())
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    answer = PeerAnswer()
    answer.start()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds + 1,
            train_cohort_size=job.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(
            training_data=data, val_data=None, postprocessors=[WeightByUser()]
        ),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=job.learning_rate, local_num_epochs=1, local_batch_size=job.batch
        ),
        callbacks=[ProgressWatch(answer, some_images(test, job))],
    )
    answer.write(folder, "pfl", model.pytorch_model, test)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
