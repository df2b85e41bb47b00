"""Fair shares of one cluster for its experiments: the plan, the scheduler plugin, the driver."""
