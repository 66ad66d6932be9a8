"""Where units lie: their memory in each tier, and the files of the disk tier."""
