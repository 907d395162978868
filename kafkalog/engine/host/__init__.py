"""Many partitions on many disks: log directories as this process holds them, and what looks like one."""
