"""A CUDA device without a GPU: torch's CUDA streams, events and memory in Python, on which `CudaDevice` runs unchanged.

    with VirtualCuda(Order.RANDOM, seed=3) as cuda:
        engine = OffloadEngine(model, device="cuda")
        ...
    cuda.races  # pairs of operations that touched the same bytes and had no order

Every operation on device memory is put off: it is queued on the current stream and carried out later, with the data of
then, in an order that an adversarial `Order` chooses among those that CUDA allows. Freed memory is handed out again at
once. So a missing event or wait shows as other bits, and as a race whatever the order was.

It lacks: CUDA's kernels and their rounding, its real allocator, its driver, its speed.
"""

from workbench.virtual_cuda.cuda import VirtualCuda
from workbench.virtual_cuda.streams import Order

__all__ = ["Order", "VirtualCuda"]
