"""Learning problems by name: one module each, whose factory returns a `fedsim.data.federated_data.Task`.

    from fedsim import plugins
    task = plugins.build("task", "digits", {}, clients=10, seed=0, data_dir=None)
    task.x.shape                 # (1797, 1, 8, 8)

A factory is `name(*, clients, seed, data_dir, <options>) -> Task`. `clients` and `seed` matter only to tasks
that are generated or draw their clients; `data_dir` only to those read from files.
"""
