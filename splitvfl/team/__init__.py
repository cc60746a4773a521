"""The workers of one party: several processes that train as one."""
