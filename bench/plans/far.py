"""The steps of `duemq bench far`: messages that wait for weeks, and their targets."""

from duemq.bench.plans.bench_steps import BenchStep
from duemq.bench.report.figures import Target

DAYS = 60.0
_AHEAD_H = 24.0
_WAITING = {"get_p99": Target(20), "cancel_p99": Target(20), "serving_s": Target(5)}


def pending_step(count: int, ahead_h: float = _AHEAD_H, days: float = DAYS) -> BenchStep:
    """Messages that wait for weeks; they are sent in batches."""
    targets = {
        "fill_rate": Target(50_000, at_least=True),
        "rss_peak_mib": Target(600),
        "disk_ratio": Target(0.6),
        **_WAITING,
    }
    title = f"pending: {count:,} over {days:.3g} days"
    return BenchStep("pending", title, {"count": count, "ahead_h": ahead_h, "days": days}, targets)


def load_step(count: int, rate: float = 2_000) -> BenchStep:
    """A very full window that is sealed and loaded again."""
    title = f"load: a window of {count:,}, while {rate:,.0f} msg/s are delivered"
    # One window ahead instead of two, to wait as little as possible.
    settings = {"delay_files.seal_windows": "1", "delay_files.seal_rows": str(max(count // 2, 1))}
    return BenchStep("load", title, {"count": count, "rate": rate}, {"late_p99": Target(100)}, settings=settings)


def wheel_step(count: int) -> BenchStep:
    """The wheel alone, without a server."""
    return BenchStep("wheel", f"wheel: {count:,} within 30 minutes", {"count": count}, {"held_kib": Target(1024)})


def import_step(count: int, days: float = DAYS, deliver_s: float = 60.0, link: bool = False) -> BenchStep:
    """Messages that are imported from files."""
    title = f"import: {count:,} from files, over {days:.3g} days"
    title += ", linked" if link else ""
    parameters = {"count": count, "days": days, "deliver_s": deliver_s, "link": link}
    return BenchStep("import", title, parameters, {"rss_peak_mib": Target(1024), **_WAITING})


def find_step(
    count: int, looked_up: int = 2_000, ahead_h: float = _AHEAD_H, days: float = DAYS, *,
    indexed: bool = True, labelled: bool = False, at_rest: bool = True,
) -> BenchStep:  # fmt: skip
    """Messages with different keys, which are found by key. Without `indexed`, only their cost is measured."""
    title = f"find: {count:,} over {days:.3g} days" + (", labelled" if labelled else "")
    title += "" if indexed else ", without an index"
    parameters = {
        "count": count, "ahead_h": ahead_h, "days": days, "looked_up": looked_up, "indexed": indexed,
        "labelled": labelled, "at_rest": at_rest,
    }  # fmt: skip
    settings = {"index.topics": "*"} if indexed else {}
    return BenchStep("find", title, parameters, {"find_p99": Target(20)}, settings=settings)


def everything(quick: bool) -> list[BenchStep]:
    """The steps for all figures of the far future in docs/explain/benchmarks.md. `quick`: hundreds of thousands of
    messages instead of millions."""
    if quick:
        return [
            pending_step(50_000, days=1 / 24),
            pending_step(200_000, days=1 / 24),
            find_step(200_000, 500, days=1 / 24),
            load_step(200_000),
            wheel_step(1_800_000),
            import_step(200_000, days=0.5, deliver_s=0.0),
        ]
    return [
        *(pending_step(count) for count in (1_000_000, 5_000_000, 20_000_000)),
        *(find_step(count) for count in (1_000_000, 10_000_000)),
        load_step(2_000_000),
        wheel_step(18_000_000),
        import_step(100_000_000),
    ]
