"""Client-side methods by name: how a client trains, chosen by `[client] name = ...` and free to meet any rule.

    from fedsim.algorithms.clients.fedprox import fedprox
    method = fedprox(mu=0.1)     # a fedsim.training.client_method.ClientMethod

A factory is `name(*, <options>) -> ClientMethod`.
"""
