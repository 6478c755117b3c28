"""Messages per second of a Flower simulation whose sites send back what they get.

python -m benchmarks.flower_echo ROUNDS SITES BYTES; a part of the benchmark `flower`.
"""

from __future__ import annotations

import sys
import time

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedgram.deploy.flower.transport import ASK, FlowerTransport

ROUNDS, SITES, BYTES = map(int, sys.argv[1:]) if len(sys.argv) == 4 else (1, 1, 100)
server, client = ServerApp(), ClientApp()


@client.query(ASK)
def echo(message: Message, context: Context) -> Message:
    del context
    return Message(message.content, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    del context
    transport, content = FlowerTransport(grid), b"x" * BYTES
    while len(transport.nodes()) < SITES:
        transport.wait(0.1)
    asked(transport, content)  # workers have started
    start = time.perf_counter()
    for _ in range(ROUNDS):
        asked(transport, content)
    print(2 * ROUNDS * SITES / (time.perf_counter() - start), flush=True)


def asked(transport: FlowerTransport, content: bytes) -> None:
    """Ask each site once, and wait for all answers."""
    waiting = {transport.send(node, content, patience=600) for node in transport.nodes()}
    while waiting:
        waiting -= {ticket for ticket, _ in transport.receive(list(waiting))}


if __name__ == "__main__":
    run_simulation(server, client, SITES, backend_config={"client_resources": {"num_cpus": 1}})
