"""How right the plan is: predicted memory and time of many configurations beside what they then take."""
