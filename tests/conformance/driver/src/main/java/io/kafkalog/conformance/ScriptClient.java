package io.kafkalog.conformance;

import java.net.InetAddress;
import java.net.UnknownHostException;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;

/** The client of a script's request. */
public record ScriptClient(KafkaPrincipal principal, String clientId, InetAddress clientAddress, int requestVersion)
        implements AuthorizableRequestContext {
    /** A client at 127.0.0.1 without authentication. */
    public ScriptClient(String clientId, int requestVersion) {
        this(KafkaPrincipal.ANONYMOUS, clientId, local(), requestVersion);
    }

    private static InetAddress local() {
        try {
            return InetAddress.getByName("127.0.0.1"); // without a name, unlike the loopback address
        } catch (UnknownHostException error) {
            throw new IllegalStateException(error);
        }
    }

    @Override
    public String listenerName() {
        return "PLAINTEXT";
    }

    @Override
    public SecurityProtocol securityProtocol() {
        return SecurityProtocol.PLAINTEXT;
    }

    @Override
    public int requestType() {
        return 0;
    }

    @Override
    public int correlationId() {
        return 0;
    }
}
