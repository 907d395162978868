"""The identity of a client, its rights and its quotas: SASL, TLS, ACLs and quotas of a server."""
