"""SimPy programs that write worlds, one scenario per file, named after it.

    from fedsim.worlds.scenario import make_trace
    from fedsim.worlds.world import Work, World

    hour = 3_600_000_000  # microseconds
    trace = make_trace("diurnal", {"night_share": 0.6}, clients=1000, horizon_us=168 * hour, seed=1, after_end="repeat")
    world = World(trace)
    world.online(2 * hour).sum()                   # 424 of 1000 clients; it is 2 a.m. in the first zone
    world.outcome(0, 2 * hour, Work(5e6, 600, 5e6))  # a job of client 0 is done nine seconds later

On the command line: `fedsim trace make scenarios/diurnal.toml -o week.parquet`, then `fedsim trace show week.parquet`.
`docs/write_scenario.md` shows how to write one.
"""
