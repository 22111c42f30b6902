"""The network: the same strategies on real machines, carried by Flower.

Flower provides the fleet protocol with its TLS, node keys, heartbeats and chunked transfer of
objects, and the link state that keeps messages. Its parts that move code are not used. The server's
port speaks the fleet protocol and nothing else, so there is no address at which a run could be
submitted or a key registered. A worker asks for messages, never for an app, so it only runs what
its owner installed. The process that trains is the one that talks to the server, so model and data
stay loaded from the first task to the last.

    keys                   who may take part
    invitation             how a worker joins a run, if its model is the server's
    trial                  whether both models compute the same
    agreement              what workers tell of their data to a server that has none
    messages               tasks and updates
    frames                 one message as bytes
    gate                   whether an update makes sense for its task
    server/
        network_transport  the network under the loop
        remote_transport   what it has in common with the one over Flower's grid
        introduction       what workers tell, asked for and put in words
        attendance         with how many a run may begin, and what they hear of the others
        farewell           the last message to all workers
        patience           workers that fail, and workers that are late
        fleet              messages to and from workers
        port               the web server
        admission          which requests it takes
        connections        how many connections may be open
        link_state         what the server knows of nodes and their messages
    worker/
        worker_process     connect, carry out tasks, connect again
        node               one connection to the server
        local_data         the data of the worker's machine
        memory_store       what a worker remembers between tasks
"""

import os

# Flower reads these when it is imported. It must not phone home, and must not send pieces that are
# larger than a request to the server may be.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
os.environ.setdefault("FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", str(2**20))
