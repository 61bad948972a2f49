"""Client methods, one file each: how a client trains, chosen by `[client] name = ...` and combined with any rule.

    from fedsim.algorithms.clients.fedprox import fedprox
    method = fedprox(mu=0.1)     # a fedsim.training.client_method.ClientMethod

A factory is `name(*, <options>) -> ClientMethod`.
"""
