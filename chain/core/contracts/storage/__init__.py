"""The Storage contract: nodes, committees, certificates, leases, prices."""
