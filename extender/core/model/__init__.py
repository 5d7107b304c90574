"""Basic values: ids, quantities, nodes, pods, groups, the cluster view, errors; imports nothing of ours outside this folder."""
