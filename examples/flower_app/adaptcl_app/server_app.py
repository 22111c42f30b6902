"""The server: Flower's ServerApp with AdaptCL as its strategy."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from adaptcl.flower import AdaptCL
from adaptcl.training.objectives.evaluation import score

from .task import CODEC, SEED, build_model, test_data

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    model, test = build_model(), test_data()

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        judged = build_model()
        judged.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": score(judged, test).metrics["accuracy"]})

    strategy = AdaptCL(
        model,
        test.batch(torch.arange(2))[0],
        workers=int(context.run_config["workers"]),
        codec=CODEC,
        seed=SEED,
        epochs=1.0,
        batch_size=32,
        learning_rate=0.05,
        strength=0.5,
        pruning_interval=2,
    )
    strategy.start(
        grid,
        ArrayRecord(model.state_dict()),
        num_rounds=int(context.run_config["rounds"]),
        evaluate_fn=evaluate,
    )
