"""Every label defense at its best: what it keeps at the same leak, and whether there is a better one."""
