"""Shift workers: online during their breaks."""

from fedsim.common.units import US
from fedsim.worlds.scenario import Clock, Life, Me, Scenario, duration_option, number_option


def shifts(*, shift: str = "8h", rest: str = "30min", reliability: float = 0.9) -> Scenario:
    """Workers who rest once in every shift; some rests are skipped."""
    shift_us, rest_us = duration_option("shift", shift), duration_option("rest", rest)
    number_option("reliability", reliability, 0, 1)

    def client(env: Clock, me: Me) -> Life:
        me.about("crew", ("early", "late", "night")[me.id % 3])
        me.write("compute", 0, me.horizon_us, 0.02 * me.rng.lognormal(0, 0.5))  # seconds per sample
        me.write("uplink", 0, me.horizon_us, 1e6)  # bytes per second
        yield env.timeout(int(me.rng.integers(shift_us)))
        while True:
            if me.rng.random() < reliability:
                me.online(env.now, env.now + rest_us)
            if me.rng.random() < 0.01:
                me.fault(env.now, env.now + 5 * US)
            yield env.timeout(max(shift_us, rest_us))

    return Scenario(client)


if __name__ == "__main__":
    from fedsim.worlds.scenario import make_trace

    made = make_trace(f"{__file__}:shifts", {"rest": "1h"}, clients=50, horizon_us=4 * 86400 * US, seed=3)
    print(f"{len(made.spans('online').client)} breaks of {made.clients} workers in four days")
