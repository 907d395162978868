"""Who a client is, what it may do and how much: SASL, TLS, ACLs and quotas of a server."""
