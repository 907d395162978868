package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.InputStreamReader;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import javax.security.auth.callback.Callback;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.QuotaViolationException;
import org.apache.kafka.common.metrics.Sensor;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.TokenBucket;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.JaasContext;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallback;
import org.apache.kafka.common.security.oauthbearer.internals.OAuthBearerClientInitialResponse;
import org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler;
import org.apache.kafka.common.security.scram.internals.ScramFormatter;
import org.apache.kafka.common.security.scram.internals.ScramMessages;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.internals.CidrUtils;
import org.apache.kafka.server.quota.QuotaUtils;

/** Questions to Kafka's classes of security, one in JSON on each line of standard input; an answer for each. */
public final class Security {
    private static final ObjectMapper JSON = new ObjectMapper();

    private Security() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode question = JSON.readTree(line);
            Object answer;
            try {
                answer = answer(question);
            } catch (InvocationTargetException error) {
                answer = Map.of("error", error.getCause().getClass().getSimpleName());
            } catch (Exception error) {
                answer = Map.of("error", error.getClass().getSimpleName(), "text", String.valueOf(error.getMessage()));
            }
            System.out.println("answer " + JSON.writeValueAsString(answer));
        }
    }

    private static Object answer(JsonNode question) throws Exception {
        return switch (question.get("op").asText()) {
            case "acls" -> acls(question);
            case "rate" -> rate(question);
            case "limits" -> limits(question);
            case "map" -> map(question);
            case "jaas" -> jaas(question);
            case "subject" -> subject(question);
            case "cidr" -> cidr(question);
            case "initial" -> initial(question);
            case "unsecured" -> unsecured(question);
            case "first" -> first(question);
            case "last" -> last(question);
            default -> throw new IllegalArgumentException(question.get("op").asText());
        };
    }

    // --- ACLs

    private static Object acls(JsonNode question) throws Exception {
        try (StandardAuthorizer authorizer = new StandardAuthorizer(); Metrics metrics = new Metrics()) {
            authorizer.withPluginMetrics(new PluginMetricsImpl(metrics, new LinkedHashMap<>()));
            authorizer.configure(Map.of(
                "super.users", question.get("super").asText(),
                "allow.everyone.if.no.acl.found", question.get("open").asText()));
            Map<Uuid, StandardAcl> acls = new HashMap<>();
            for (JsonNode row : question.get("acls")) {
                acls.put(Uuid.randomUuid(), new StandardAcl(
                    ResourceType.fromString(row.get(0).asText()), row.get(1).asText(),
                    PatternType.fromString(row.get(2).asText()), row.get(3).asText(), row.get(4).asText(),
                    AclOperation.fromString(row.get(5).asText()), AclPermissionType.fromString(row.get(6).asText())));
            }
            authorizer.loadSnapshot(acls);
            authorizer.completeInitialLoad();
            List<Boolean> answers = new ArrayList<>();
            for (JsonNode row : question.get("requests")) {
                AuthorizableRequestContext context = context(row.get(0).asText(), row.get(1).asText());
                AclOperation operation = AclOperation.fromString(row.get(2).asText());
                ResourceType type = ResourceType.fromString(row.get(3).asText());
                String verdict = row.get(4).isNull()
                    ? authorizer.authorizeByResourceType(context, operation, type).toString()
                    : authorizer.authorize(context, List.of(new Action(operation,
                        new ResourcePattern(type, row.get(4).asText(), PatternType.LITERAL), 1, true, true))).get(0).toString();
                answers.add(verdict.equals("ALLOWED"));
            }
            List<Integer> found = new ArrayList<>();
            for (JsonNode row : question.get("filters")) {
                AclBindingFilter filter = new AclBindingFilter(
                    new ResourcePatternFilter(ResourceType.fromString(row.get(0).asText()), text(row.get(1)),
                        PatternType.fromString(row.get(2).asText())),
                    new AccessControlEntryFilter(text(row.get(3)), text(row.get(4)),
                        AclOperation.fromString(row.get(5).asText()), AclPermissionType.fromString(row.get(6).asText())));
                int count = 0;
                for (AclBinding binding : authorizer.acls(filter)) {
                    count++;
                }
                found.add(count);
            }
            return Map.of("answers", answers, "found", found);
        }
    }

    private static String text(JsonNode node) {
        return node.isNull() ? null : node.asText();
    }

    private static AuthorizableRequestContext context(String name, String host) throws Exception {
        return new ScriptClient(new KafkaPrincipal("User", name), "client", InetAddress.getByName(host), 12);
    }

    private static Object cidr(JsonNode question) {
        String pattern = question.get("pattern").asText();
        String problem = null;
        try {
            CidrUtils.validate(pattern);
        } catch (IllegalArgumentException error) {
            problem = error.getMessage();
        }
        List<Boolean> in = new ArrayList<>();
        for (JsonNode host : question.get("hosts")) {
            in.add(CidrUtils.isInRange(host.asText(), pattern));
        }
        Map<String, Object> answer = new HashMap<>();
        answer.put("problem", problem);
        answer.put("in", in);
        return answer;
    }

    // --- quotas

    private static Object rate(JsonNode question) {
        boolean bucket = question.get("bucket").asBoolean();
        double bound = question.get("bound").asDouble();
        List<Object> answers = new ArrayList<>();
        try (Metrics metrics = new Metrics()) {
            MetricConfig config = new MetricConfig().timeWindow(question.get("window").asLong(), TimeUnit.SECONDS)
                .samples(question.get("samples").asInt()).quota(new Quota(bound, true));
            Sensor sensor = metrics.sensor("sensor");
            sensor.add(metrics.metricName("name", "group"), bucket ? new TokenBucket() : new Rate(), config);
            for (JsonNode step : question.get("steps")) {
                long now = step.get(0).asLong();
                try {
                    if (bucket) {
                        sensor.checkQuotas(now);
                        sensor.record(step.get(1).asDouble(), now, false);
                    } else {
                        sensor.record(step.get(1).asDouble(), now, true);
                    }
                    answers.add(0);
                } catch (QuotaViolationException error) {
                    answers.add(bucket
                        ? Math.round(-error.value() / error.bound() * 1000)
                        : QuotaUtils.throttleTime(error, now));
                }
            }
        }
        return answers;
    }

    /** The bounds that ClientQuotaManager finds; the class comes with a broker's class path. */
    private static Object limits(JsonNode question) throws Exception {
        Class<?> type = Class.forName("org.apache.kafka.server.quota.ClientQuotaManager");
        Class<?> configs = Class.forName("org.apache.kafka.server.config.ClientQuotaManagerConfig");
        Class<?> kind = Class.forName("org.apache.kafka.server.quota.QuotaType");
        Class<?> time = Class.forName("org.apache.kafka.common.utils.Time");
        List<Double> answers = new ArrayList<>();
        try (Metrics metrics = new Metrics()) {
            Constructor<?> constructor = type.getConstructor(configs, Metrics.class, kind, time, String.class);
            Object manager = constructor.newInstance(configs.getConstructor().newInstance(), metrics,
                kind.getField("PRODUCE").get(null), time.getField("SYSTEM").get(null), "test");
            Method update = type.getMethod("updateQuota", Optional.class, Optional.class, Optional.class);
            for (JsonNode row : question.get("quotas")) {
                update.invoke(manager, entity(type, row.get(0), "UserEntity", "DEFAULT_USER_ENTITY"),
                    entity(type, row.get(1), "ClientIdEntity", "DEFAULT_USER_CLIENT_ID"),
                    Optional.of(new Quota(row.get(2).asDouble(), true)));
            }
            Method quota = type.getMethod("quota", String.class, String.class);
            for (JsonNode row : question.get("clients")) {
                answers.add(((Quota) quota.invoke(manager, row.get(0).asText(), row.get(1).asText())).bound());
            }
            type.getMethod("shutdown").invoke(manager);
        }
        return answers;
    }

    private static Optional<?> entity(Class<?> type, JsonNode name, String inner, String byDefault) throws Exception {
        if (name.isNull()) {
            return Optional.empty();
        }
        if (name.asText().isEmpty()) {
            return Optional.of(type.getField(byDefault).get(null));
        }
        return Optional.of(Class.forName(type.getName() + "$" + inner).getConstructor(String.class).newInstance(name.asText()));
    }

    // --- names

    private static Object map(JsonNode question) {
        SslPrincipalMapper mapper = SslPrincipalMapper.fromRules(question.get("rules").asText());
        List<String> names = new ArrayList<>();
        for (JsonNode name : question.get("names")) {
            try {
                names.add(mapper.getName(name.asText()));
            } catch (Exception error) {
                names.add(null);
            }
        }
        return names;
    }

    private static Object subject(JsonNode question) throws Exception {
        byte[] certificate = Base64.getDecoder().decode(question.get("certificate").asText());
        X509Certificate read = (X509Certificate) CertificateFactory.getInstance("X.509")
            .generateCertificate(new ByteArrayInputStream(certificate));
        return read.getSubjectX500Principal().getName();
    }

    // --- SASL

    private static Object jaas(JsonNode question) {
        JaasContext context = JaasContext.loadServerContext(new ListenerName("PLAINTEXT"), "PLAIN",
            Map.of("plain.sasl.jaas.config", new Password(question.get("text").asText())));
        AppConfigurationEntry entry = context.configurationEntries().get(0);
        return Map.of("module", entry.getLoginModuleName(), "options", new TreeMap<>(entry.getOptions()));
    }

    private static byte[] bytes(JsonNode question) {
        return Base64.getDecoder().decode(question.get("bytes").asText());
    }

    private static Object initial(JsonNode question) throws Exception {
        OAuthBearerClientInitialResponse response = new OAuthBearerClientInitialResponse(bytes(question));
        return List.of(response.tokenValue(), response.authorizationId());
    }

    private static Object unsecured(JsonNode question) throws Exception {
        Map<String, String> options = new HashMap<>();
        question.get("options").fields().forEachRemaining(each -> options.put(each.getKey(), each.getValue().asText()));
        OAuthBearerUnsecuredValidatorCallbackHandler handler = new OAuthBearerUnsecuredValidatorCallbackHandler();
        handler.configure(Map.of(), "OAUTHBEARER", List.of(new AppConfigurationEntry(
            "module", AppConfigurationEntry.LoginModuleControlFlag.REQUIRED, options)));
        OAuthBearerValidatorCallback callback = new OAuthBearerValidatorCallback(question.get("token").asText());
        handler.handle(new Callback[] {callback});
        return callback.token() == null
            ? Map.of("status", callback.errorStatus(), "scope", String.valueOf(callback.errorScope()))
            : List.of(callback.token().principalName(), callback.token().lifetimeMs());
    }

    private static Object first(JsonNode question) throws Exception {
        ScramMessages.ClientFirstMessage message = new ScramMessages.ClientFirstMessage(bytes(question));
        return List.of(ScramFormatter.username(message.saslName()), message.nonce(), message.authorizationId());
    }

    private static Object last(JsonNode question) throws Exception {
        ScramMessages.ClientFinalMessage message = new ScramMessages.ClientFinalMessage(bytes(question));
        return List.of(message.nonce(), Base64.getEncoder().encodeToString(message.proof()));
    }
}
