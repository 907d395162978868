"""The settings of a server's security, under Kafka's names and with Kafka's defaults, except `sasl.enabled.mechanisms`.

`setup` reads them for each listener: `listener.name.<listener>.<mechanism>.<key>` wins over
`listener.name.<listener>.<key>`, over `<mechanism>.<key>`, over `<key>`.
Source: BrokerSecurityConfigs, SslConfigs, SaslConfigs, QuotaConfig, StandardAuthorizer (4.4.0).
"""

from __future__ import annotations

from kafkalog.config import ConfigKey

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SCOPED = ("sasl.jaas.config", "sasl.server.callback.handler.class", "connections.max.reauth.ms")  # by mechanism too
SECRETS = ("password", "sasl.jaas.config", "ssl.keystore.key", "users")


def _key(name: str, kind: str, default: object, why: str) -> ConfigKey:
    return ConfigKey(name, kind, default, why)


SASL_KEYS = (
    _key("users.file", "STRING", None, "A file with a line `alice:secret` for each user of PLAIN and SCRAM."),
    # Kafka's default is GSSAPI, which kafkalog does not have.
    _key(
        "sasl.enabled.mechanisms", "LIST", "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512", "The mechanisms that clients may use."
    ),
    _key("sasl.jaas.config", "STRING", None, "The login module of a mechanism, with its options."),
    _key("sasl.server.callback.handler.class", "STRING", None, "How a mechanism checks what clients send."),
    _key("sasl.server.max.receive.size", "INT", 524_288, "The largest frame before a client is known."),
    _key("connections.max.reauth.ms", "LONG", 0, "How long a session lasts without a new authentication; 0: no end."),
    _key("sasl.oauthbearer.jwks.endpoint.url", "STRING", None, "The keys of tokens: https://... or file:///..."),
    _key("sasl.oauthbearer.jwks.endpoint.refresh.ms", "LONG", 3_600_000, "How often the keys are read again."),
    _key("sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", "LONG", 100, "The first wait after a failed read."),
    _key("sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", "LONG", 10_000, "The longest wait."),
    _key("sasl.oauthbearer.expected.audience", "LIST", (), "The audiences of which a token must name one."),
    _key("sasl.oauthbearer.expected.issuer", "STRING", None, "The issuer that a token must have."),
    _key("sasl.oauthbearer.allow.unverified.audience", "BOOLEAN", False, "Whether any audience will do."),
    _key("sasl.oauthbearer.allow.unverified.issuer", "BOOLEAN", False, "Whether any issuer will do."),
    _key("sasl.oauthbearer.clock.skew.seconds", "INT", 30, "How far the provider's clock may be off."),
    _key("sasl.oauthbearer.scope.claim.name", "STRING", "scope", "The claim that has the scopes."),
    _key("sasl.oauthbearer.sub.claim.name", "STRING", "sub", "The claim that has the principal."),
)
TLS_KEYS = (
    _key("ssl.keystore.type", "STRING", "JKS", "PEM, PKCS12, or JKS: a PEM file, or a PKCS12 file that Java calls so."),
    _key("ssl.keystore.location", "STRING", None, "The file with the server's key and certificates."),
    _key("ssl.keystore.password", "STRING", None, "Its password; not for PEM."),
    _key("ssl.key.password", "STRING", None, "The password of the key."),
    _key("ssl.keystore.key", "STRING", None, "The key itself, as PEM."),
    _key("ssl.keystore.certificate.chain", "STRING", None, "The certificates themselves, as PEM."),
    _key("ssl.truststore.type", "STRING", "JKS", "As ssl.keystore.type."),
    _key("ssl.truststore.location", "STRING", None, "The file with the certificates that sign those of clients."),
    _key("ssl.truststore.password", "STRING", None, "Its password; not for PEM."),
    _key("ssl.truststore.certificates", "STRING", None, "These certificates themselves, as PEM."),
    _key("ssl.client.auth", "STRING", "none", "Whether clients need a certificate: none, requested or required."),
    _key("ssl.enabled.protocols", "LIST", "TLSv1.2,TLSv1.3", "The versions of TLS."),
    _key("ssl.protocol", "STRING", "TLSv1.3", "The newest version of TLS."),
    _key("ssl.cipher.suites", "LIST", (), "The cipher suites of TLS 1.2; by default OpenSSL's."),
    _key("ssl.principal.mapping.rules", "STRING", "DEFAULT", "From a certificate's name to the principal's."),
)
AUTHORIZER_KEYS = (
    _key("authorizer.class.name", "STRING", "", f"{STANDARD_AUTHORIZER}, or StandardAuthorizer, to check ACLs."),
    _key("super.users", "STRING", "", "Principals that may do everything, as `User:admin;User:other`."),
    _key("allow.everyone.if.no.acl.found", "BOOLEAN", False, "Whether a resource without ACLs is open to everybody."),
)
QUOTA_KEYS = (
    _key("quota.window.num", "INT", 11, "How many windows a quota looks back."),
    _key("quota.window.size.seconds", "INT", 1, "The length of a window."),
    _key("controller.quota.window.num", "INT", 11, "The same for controller_mutation_rate."),
    _key("controller.quota.window.size.seconds", "INT", 1, "The length of its window."),
)
SECURITY_KEYS = (*SASL_KEYS, *TLS_KEYS, *AUTHORIZER_KEYS, *QUOTA_KEYS)
