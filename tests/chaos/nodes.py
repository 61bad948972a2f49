"""A Ray cluster of three nodes on this machine, in a process of its own: prints its address, and is told by lines.

They say that they have 1, 3 and 1 GPUs: Ray then hands out shares of what is not there.
`lose` kills the node that was added last, with all that runs and lies there; the end of the input ends the cluster.
"""

from __future__ import annotations

import sys
from unittest.mock import patch

from ray.cluster_utils import Cluster

from fedsim.execution import lean_ray

AGENT = "--dashboard_agent_command"
PORTS = {name: port for name, port in lean_ray._PORTS.items() if port == -1}
"""Of what that agent serves. The other agent is there: workers that join a cluster bring packages of their own."""


def main() -> None:
    """Serve until the input ends."""
    gpus = (1, 3, 1)
    with patch.multiple(lean_ray, _AGENTS=(AGENT,), _PORTS=PORTS), lean_ray.fewer_helpers(None):
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": gpus[0]})
        nodes = [cluster.add_node(num_cpus=1, num_gpus=n) for n in gpus[1:]]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "lose":
            cluster.remove_node(nodes.pop(), allow_graceful=False)
            print("lost", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
