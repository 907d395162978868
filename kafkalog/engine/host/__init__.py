"""Many partitions on several disks: holds log directories, and recognizes them."""
