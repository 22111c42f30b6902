"""The network engine: the same strategies on real machines, carried by Flower.

What is Flower's: the fleet protocol with its TLS, node keys, heartbeats and chunked transfer of
objects, and the link state that keeps messages. What is not used of it: the parts that move code.
The server's port speaks the fleet protocol and nothing else, so there is no address at which a
run could be submitted or a key registered; and a worker asks for messages, never for an app, so
it runs what its owner installed. The process that trains is the one that speaks with the server,
warm from the first task to the last.

    keys            who may take part
    fleet           the server's end: messages to and from workers
    port            where they come in
    doorkeeper      what is let in
    link            what it knows of workers and messages
    objects         where the parts of messages are kept
    engine          the loop of every engine, on the real clock
    reunion         how long it waits for workers that took part before
    node            a worker's end
    uplink          in what pieces its answers travel
    parts           what is made of pieces that somebody sent
    own_data        its data, made to fit the server's model
    fingerprint     whether its model is the server's
    joining         who hears why a worker cannot take part
    worker_process  what a worker process does
    frames, messages, told, reading, printable   what the two say to each other, as bytes and back
"""

import os

# Flower reads these when it is imported. It must not phone home, and must not send workers pieces
# that are larger than a request to the server may be.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
os.environ.setdefault("FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", str(2**20))
