"""The places where the lane between ranks orders something, and the situation in which each is missed.

As in `test_ordering.py`, whose tests run each of them on two ranks with a virtual GPU.
"""

BETWEEN_RANKS: dict[str, str] = {
    "CudaDevice.communicating: wait_event": "ranks",
    "CudaDevice.communicating: stream": "ranks",
    "CudaDevice.communicating: record": "ranks",
    "CudaDevice.communicating: synchronize": "ranks",
    "RankTasks.reduce: communicating": "ranks",
    "RankTasks.reduce: wait": "ranks",
    "RankTasks.gather: communicating": "ranks, weight read last",
    "RankTasks.gather: wait": "ranks",
    "RankTasks.gather_all: record_event": "ranks, state on the device",
    "StepTasks.gather: record_event": "ranks, state on the device",
    "Ranks.gather: wait": "ranks",
    "WeightPrefetcher._gather: communicating": "ranks, weights on the host",
    "WeightPrefetcher._gather: wait": "ranks, weights on the host",
}
