"""What exporting needs torch for: weights in another dtype or in other files, a merged adapter, and the look at the
result. `workbench.export` is the entry, and imports these when it has to.
"""
