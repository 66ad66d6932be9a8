from workbench.state_formats import BLOCK, ITEM_BYTES, MOMENTS, MomentTensor, StateFormat, moment_bytes

__all__ = ["BLOCK", "ITEM_BYTES", "MOMENTS", "MomentTensor", "StateFormat", "moment_bytes"]
