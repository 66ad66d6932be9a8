"""What each verb of the command line does, one file a family; `table.py` lists them all."""
