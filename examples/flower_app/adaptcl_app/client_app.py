"""The node: Flower's ClientApp with AdaptCL's training."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from adaptcl.flower import train

from .task import CODEC, SEED, build_model, node_data

app = ClientApp()


@app.train()
def answer(message: Message, context: Context) -> Message:
    part = int(context.node_config["partition-id"])
    parts = int(context.node_config["num-partitions"])
    return train(
        message, context, model=build_model(), data=node_data(part, parts), codec=CODEC, seed=SEED
    )
