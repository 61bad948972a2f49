"""A Ray cluster of three nodes on this machine, in a process of its own: prints its address, and is told by lines.

They say that they have 1, 3 and 1 GPUs: Ray then hands out shares of what is not there.
`lose` kills the node that was added last, with all that runs and lies there; the end of the input ends the cluster.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster


def main() -> None:
    """Serve until the input ends."""
    gpus = (1, 3, 1)
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
