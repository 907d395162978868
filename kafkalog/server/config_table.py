# ruff: noqa: E501 (a line is a setting)
"""Kafka's settings of a broker and of a group: names, types, defaults and bounds, as facts.

A line is `name TYPE default`, and then words. `cluster-wide` or `per-broker` says how the setting may be changed while the
broker runs, and `internal` that Kafka does not show it. `1..` or `1..9` are bounds, and `a|b` the allowed values. A
group's setting has `=name`, the broker's setting that it overrides. A default of `null` is none, `''` is the empty text,
and `required` has none. Source: AbstractKafkaConfig, DynamicBrokerConfig, GroupConfig (4.4.0).
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

BROKER = """
add.partitions.to.txn.retry.backoff.max.ms INT 100 0..
add.partitions.to.txn.retry.backoff.ms INT 20 1..
advertised.listeners LIST null
alter.config.policy.class.name CLASS null
alter.log.dirs.replication.quota.window.num INT 11 1..
alter.log.dirs.replication.quota.window.size.seconds INT 1 1..
authorizer.class.name STRING ''
auto.create.topics.enable BOOLEAN true
auto.leader.rebalance.enable BOOLEAN true
background.threads INT 10 cluster-wide 1..
broker.heartbeat.interval.ms INT 2000
broker.id INT -1
broker.rack STRING null
broker.session.timeout.ms INT 9000
client.quota.callback.class CLASS null
compression.gzip.level INT -1 cluster-wide
compression.lz4.level INT 9 cluster-wide 1..17
compression.type STRING producer cluster-wide uncompressed|zstd|lz4|snappy|gzip|producer
compression.zstd.level INT 3 cluster-wide -131072..22
config.providers LIST '' cluster-wide
connection.failed.authentication.delay.ms INT 100 0..
connections.max.idle.ms LONG 600000
connections.max.reauth.ms LONG 0
controlled.shutdown.enable BOOLEAN true
controller.listener.names LIST required
controller.performance.always.log.threshold.ms LONG 2000 internal 0..
controller.performance.sample.period.ms LONG 60000 internal 100..
controller.quorum.append.linger.ms INT 25 0..
controller.quorum.auto.join.enable BOOLEAN false
controller.quorum.bootstrap.servers LIST ''
controller.quorum.election.backoff.max.ms INT 1000 0..
controller.quorum.election.timeout.ms INT 1000 0..
controller.quorum.fetch.max.bytes INT 1048576 1..
controller.quorum.fetch.snapshot.max.bytes INT 1048576 1..
controller.quorum.fetch.timeout.ms INT 2000 0..
controller.quorum.request.timeout.ms INT 2000 0..
controller.quorum.retry.backoff.ms INT 20 0..
controller.quorum.voters LIST ''
controller.quota.window.num INT 11 1..
controller.quota.window.size.seconds INT 1 1..
controller.socket.timeout.ms INT 30000
cordoned.log.dirs LIST '' per-broker
create.topic.policy.class.name CLASS null
default.replication.factor INT 1
delegation.token.expiry.check.interval.ms LONG 3600000 1..
delegation.token.expiry.time.ms LONG 86400000 1..
delegation.token.max.lifetime.ms LONG 604800000 1..
delegation.token.secret.key PASSWORD null
delete.records.purgatory.purge.interval.requests INT 1
delete.topic.enable BOOLEAN true
early.start.listeners LIST null
errors.deadletterqueue.auto.create.topics.enable BOOLEAN false cluster-wide
errors.deadletterqueue.topic.name.prefix STRING dlq. cluster-wide
fetch.max.bytes INT 57671680 1024..
fetch.purgatory.purge.interval.requests INT 1000
follower.fetch.last.tiered.offset.enable BOOLEAN false cluster-wide
group.consumer.assignment.interval.ms INT 1000 cluster-wide 0..
group.consumer.assignor.offload.enable BOOLEAN true cluster-wide internal
group.consumer.assignors LIST uniform,range
group.consumer.heartbeat.interval.ms INT 5000 1..
group.consumer.max.assignment.interval.ms INT 15000 0..
group.consumer.max.heartbeat.interval.ms INT 15000 1..
group.consumer.max.session.timeout.ms INT 60000 1..
group.consumer.max.size INT 2147483647 1..
group.consumer.migration.policy STRING bidirectional
group.consumer.min.assignment.interval.ms INT 0 0..
group.consumer.min.heartbeat.interval.ms INT 5000 1..
group.consumer.min.session.timeout.ms INT 45000 1..
group.consumer.regex.refresh.interval.ms INT 600000 internal 10000..
group.consumer.session.timeout.ms INT 45000 1..
group.coordinator.append.linger.ms INT -1 -1..
group.coordinator.background.threads INT 2 1..
group.coordinator.cached.buffer.max.bytes INT 1048588 cluster-wide 524288..
group.coordinator.rebalance.protocols LIST classic,consumer,streams consumer|classic|share|streams
group.coordinator.threads INT 4 1..
group.initial.rebalance.delay.ms INT 3000
group.max.session.timeout.ms INT 1800000
group.max.size INT 2147483647 1..
group.min.session.timeout.ms INT 6000
group.share.assignment.interval.ms INT 1000 cluster-wide 0..
group.share.assignor.offload.enable BOOLEAN true cluster-wide internal
group.share.assignors LIST simple
group.share.delivery.count.limit INT 5 2..10
group.share.dlq.manager.class.name STRING org.apache.kafka.server.share.dlq.DefaultShareGroupDLQManager internal
group.share.heartbeat.interval.ms INT 5000 1..
group.share.initialize.retry.interval.ms INT 30000 internal 1..
group.share.max.assignment.interval.ms INT 15000 0..
group.share.max.delivery.count.limit INT 10 5..25
group.share.max.heartbeat.interval.ms INT 15000 1..
group.share.max.partition.max.record.locks INT 4000 2000..10000
group.share.max.record.lock.duration.ms INT 60000 30000..3600000
group.share.max.session.timeout.ms INT 60000 1..
group.share.max.share.sessions INT 2000 1..
group.share.max.size INT 200 1..1000
group.share.min.assignment.interval.ms INT 0 0..
group.share.min.delivery.count.limit INT 2 2..5
group.share.min.heartbeat.interval.ms INT 5000 1..
group.share.min.partition.max.record.locks INT 100 100..2000
group.share.min.record.lock.duration.ms INT 15000 1000..30000
group.share.min.session.timeout.ms INT 45000 1..
group.share.partition.max.record.locks INT 2000 100..10000
group.share.persister.class.name STRING org.apache.kafka.server.share.persister.DefaultStatePersister internal
group.share.record.lock.duration.ms INT 30000 1000..3600000
group.share.session.timeout.ms INT 45000 1..
group.streams.acceptable.recovery.lag LONG 10000 internal 0..
group.streams.assignment.interval.ms INT 1000 cluster-wide 0..
group.streams.assignor.offload.enable BOOLEAN true cluster-wide internal
group.streams.assignors LIST sticky
group.streams.heartbeat.interval.ms INT 5000 1..
group.streams.initial.rebalance.delay.ms INT 3000 0..
group.streams.max.assignment.interval.ms INT 15000 0..
group.streams.max.heartbeat.interval.ms INT 15000 1..
group.streams.max.session.timeout.ms INT 60000 1..
group.streams.max.size INT 2147483647 1..
group.streams.max.standby.replicas INT 2 0..
group.streams.max.warmup.replicas INT 20 internal 0..
group.streams.min.assignment.interval.ms INT 0 0..
group.streams.min.heartbeat.interval.ms INT 5000 1..
group.streams.min.session.timeout.ms INT 45000 1..
group.streams.min.task.offset.interval.ms INT 15000 internal 1..
group.streams.num.standby.replicas INT 0 0..
group.streams.num.warmup.replicas INT 2 internal 0..
group.streams.rack.aware.assignment.tags LIST ''
group.streams.session.timeout.ms INT 45000 1..
group.streams.task.offset.interval.ms INT 60000 internal 1..
group.streams.topology.description.plugin.class CLASS null
initial.broker.registration.timeout.ms INT 60000
inter.broker.listener.name STRING null
internal.metadata.delete.delay.millis LONG 60000 internal
internal.metadata.log.segment.bytes INT null internal
internal.metadata.max.batch.size.in.bytes INT 8388608 internal
kafka.metrics.polling.interval.secs INT 10 1..
kafka.metrics.reporters LIST ''
leader.imbalance.check.interval.seconds LONG 300 1..
listener.security.protocol.map STRING SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT per-broker
listeners LIST PLAINTEXT://:9092 per-broker
log.cleaner.backoff.ms LONG 15000 cluster-wide 0..
log.cleaner.dedupe.buffer.size LONG 134217728 cluster-wide
log.cleaner.delete.retention.ms LONG 86400000 cluster-wide 0..
log.cleaner.enable BOOLEAN true
log.cleaner.io.buffer.load.factor DOUBLE 0.9 cluster-wide
log.cleaner.io.buffer.size INT 524288 cluster-wide 0..
log.cleaner.io.max.bytes.per.second DOUBLE 1.7976931348623157E308 cluster-wide
log.cleaner.max.compaction.lag.ms LONG 9223372036854775807 cluster-wide 1..
log.cleaner.min.cleanable.ratio DOUBLE 0.5 cluster-wide 0..1
log.cleaner.min.compaction.lag.ms LONG 0 cluster-wide 0..
log.cleaner.threads INT 1 cluster-wide 0..
log.cleanup.policy LIST delete cluster-wide compact|delete
log.dir LIST /tmp/kafka-logs
log.dir.failure.timeout.ms LONG 30000 1..
log.dirs LIST null
log.flush.interval.messages LONG 9223372036854775807 cluster-wide 1..
log.flush.interval.ms LONG null cluster-wide
log.flush.offset.checkpoint.interval.ms INT 60000 0..
log.flush.scheduler.interval.ms LONG 9223372036854775807
log.flush.start.offset.checkpoint.interval.ms INT 60000 0..
log.index.interval.bytes INT 4096 cluster-wide 0..
log.index.size.max.bytes INT 10485760 cluster-wide 4..
log.initial.task.delay.ms LONG 30000 internal 0..
log.local.retention.bytes LONG -2 cluster-wide -2..
log.local.retention.ms LONG -2 cluster-wide -2..
log.message.timestamp.after.max.ms LONG 3600000 cluster-wide 0..
log.message.timestamp.before.max.ms LONG 9223372036854775807 cluster-wide 0..
log.message.timestamp.type STRING CreateTime cluster-wide CreateTime|LogAppendTime
log.preallocate BOOLEAN false cluster-wide
log.remote.copy.lag.bytes LONG -1 cluster-wide -1..
log.remote.copy.lag.ms LONG 0 cluster-wide -1..
log.retention.bytes LONG -1 cluster-wide
log.retention.check.interval.ms LONG 300000 1..
log.retention.hours INT 168
log.retention.minutes INT null
log.retention.ms LONG null cluster-wide
log.roll.hours INT 168 1..
log.roll.jitter.hours INT 0 0..
log.roll.jitter.ms LONG null cluster-wide
log.roll.ms LONG null cluster-wide
log.segment.bytes INT 1073741824 cluster-wide 1048576..
log.segment.delete.delay.ms LONG 60000 cluster-wide 0..
max.connection.creation.rate INT 2147483647 cluster-wide 0..
max.connections INT 2147483647 cluster-wide 0..
max.connections.per.ip INT 2147483647 cluster-wide 0..
max.connections.per.ip.overrides STRING '' cluster-wide
max.decompressed.message.bytes INT 2147483639 cluster-wide 1..2147483639
max.incremental.fetch.session.cache.slots INT 1000 0..
max.request.partition.size.limit INT 2000 1..
message.max.bytes INT 1048588 cluster-wide 0..
metadata.log.dir STRING null
metadata.log.max.record.bytes.between.snapshots LONG 20971520 1..
metadata.log.max.snapshot.interval.ms LONG 3600000 0..
metadata.log.segment.bytes INT 1073741824 8388608..
metadata.log.segment.ms LONG 604800000
metadata.max.idle.interval.ms INT 500 0..
metadata.max.retention.bytes LONG 104857600
metadata.max.retention.ms LONG 604800000
metric.reporters LIST org.apache.kafka.common.metrics.JmxReporter cluster-wide
metrics.num.samples INT 2 1..
metrics.recording.level STRING INFO
metrics.sample.window.ms LONG 30000 1..
min.insync.replicas INT 1 cluster-wide 1..
node.id INT required 0..
num.io.threads INT 8 cluster-wide 1..
num.network.threads INT 3 cluster-wide 1..
num.partitions INT 1 1..
num.recovery.threads.per.data.dir INT 2 cluster-wide 1..
num.replica.alter.log.dirs.threads INT null
num.replica.fetchers INT 1 cluster-wide 1..
offset.metadata.max.bytes INT 4096
offsets.commit.timeout.ms INT 5000 1..
offsets.load.buffer.size INT 5242880 1..
offsets.retention.check.interval.ms LONG 600000 1..
offsets.retention.minutes INT 10080 1..
offsets.topic.compression.codec INT 0
offsets.topic.num.partitions INT 50 1..
offsets.topic.replication.factor SHORT 3 1..
offsets.topic.segment.bytes INT 104857600 1..
principal.builder.class CLASS org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder per-broker
process.roles LIST required broker|controller
producer.id.expiration.check.interval.ms INT 600000 internal 1..
producer.id.expiration.ms INT 86400000 cluster-wide 1..
producer.purgatory.purge.interval.requests INT 1000
queued.max.request.bytes LONG -1
queued.max.requests INT 500 1..
quota.window.num INT 11 1..
quota.window.size.seconds INT 1 1..
remote.fetch.max.wait.ms INT 500 cluster-wide 1..
remote.list.offsets.request.timeout.ms LONG 30000 cluster-wide 1..
remote.log.index.file.cache.total.size.bytes LONG 1073741824 cluster-wide 1..
remote.log.index.file.cache.ttl.ms LONG 900000 internal -1..
remote.log.manager.copier.thread.pool.size INT 10 cluster-wide 1..
remote.log.manager.copy.max.bytes.per.second LONG 9223372036854775807 cluster-wide 1..
remote.log.manager.copy.quota.window.num INT 11 1..
remote.log.manager.copy.quota.window.size.seconds INT 1 1..
remote.log.manager.expiration.thread.pool.size INT 10 cluster-wide 1..
remote.log.manager.fetch.max.bytes.per.second LONG 9223372036854775807 cluster-wide 1..
remote.log.manager.fetch.quota.window.num INT 11 1..
remote.log.manager.fetch.quota.window.size.seconds INT 1 1..
remote.log.manager.follower.thread.pool.size INT 2 cluster-wide 1..
remote.log.manager.task.interval.ms LONG 30000 1..
remote.log.manager.task.retry.backoff.max.ms LONG 30000 internal 1..
remote.log.manager.task.retry.backoff.ms LONG 500 internal 1..
remote.log.manager.task.retry.jitter DOUBLE 0.2 internal 0..0.5
remote.log.manager.thread.pool.size INT 2 1..
remote.log.metadata.custom.metadata.max.bytes INT 128 0..
remote.log.metadata.manager.class.name STRING org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
remote.log.metadata.manager.class.path STRING null
remote.log.metadata.manager.impl.prefix STRING rlmm.config.
remote.log.metadata.manager.listener.name STRING null
remote.log.reader.max.pending.tasks INT 100 1..
remote.log.reader.threads INT 10 cluster-wide 1..
remote.log.storage.manager.class.name STRING null
remote.log.storage.manager.class.path STRING null
remote.log.storage.manager.impl.prefix STRING rsm.config.
remote.log.storage.system.enable BOOLEAN false
replica.fetch.backoff.ms INT 1000 0..
replica.fetch.max.bytes INT 1048576 0..
replica.fetch.min.bytes INT 1
replica.fetch.response.max.bytes INT 10485760 0..
replica.fetch.wait.max.ms INT 500
replica.high.watermark.checkpoint.interval.ms LONG 5000
replica.lag.time.max.ms LONG 30000
replica.selector.class STRING null
replica.socket.receive.buffer.bytes INT 65536
replica.socket.timeout.ms INT 30000
replication.quota.window.num INT 11 1..
replication.quota.window.size.seconds INT 1 1..
request.timeout.ms INT 30000
sasl.client.callback.handler.class CLASS null
sasl.enabled.mechanisms LIST GSSAPI per-broker
sasl.jaas.config PASSWORD null per-broker
sasl.kerberos.kinit.cmd STRING /usr/bin/kinit per-broker
sasl.kerberos.min.time.before.relogin LONG 60000 per-broker
sasl.kerberos.principal.to.local.rules LIST DEFAULT per-broker
sasl.kerberos.service.name STRING null per-broker
sasl.kerberos.ticket.renew.jitter DOUBLE 0.05 per-broker
sasl.kerberos.ticket.renew.window.factor DOUBLE 0.8 per-broker
sasl.login.callback.handler.class CLASS null
sasl.login.class CLASS null
sasl.login.connect.timeout.ms INT null
sasl.login.read.timeout.ms INT null
sasl.login.refresh.buffer.seconds SHORT 300 per-broker
sasl.login.refresh.min.period.seconds SHORT 60 per-broker
sasl.login.refresh.window.factor DOUBLE 0.8 per-broker
sasl.login.refresh.window.jitter DOUBLE 0.05 per-broker
sasl.login.retry.backoff.max.ms LONG 10000
sasl.login.retry.backoff.ms LONG 100
sasl.mechanism.controller.protocol STRING GSSAPI
sasl.mechanism.inter.broker.protocol STRING GSSAPI per-broker
sasl.oauthbearer.allow.unverified.audience BOOLEAN false
sasl.oauthbearer.allow.unverified.issuer BOOLEAN false
sasl.oauthbearer.assertion.algorithm STRING RS256
sasl.oauthbearer.assertion.claim.aud STRING null
sasl.oauthbearer.assertion.claim.exp.seconds INT 300 0..86400
sasl.oauthbearer.assertion.claim.iss STRING null
sasl.oauthbearer.assertion.claim.jti.include BOOLEAN false
sasl.oauthbearer.assertion.claim.nbf.seconds INT 60 0..3600
sasl.oauthbearer.assertion.claim.sub STRING null
sasl.oauthbearer.assertion.file STRING null
sasl.oauthbearer.assertion.private.key.file STRING null
sasl.oauthbearer.assertion.private.key.passphrase PASSWORD null
sasl.oauthbearer.assertion.template.file STRING null
sasl.oauthbearer.client.credentials.client.id STRING null
sasl.oauthbearer.client.credentials.client.secret PASSWORD null
sasl.oauthbearer.clock.skew.seconds INT 30
sasl.oauthbearer.expected.audience LIST ''
sasl.oauthbearer.expected.issuer STRING null
sasl.oauthbearer.jwks.endpoint.refresh.ms LONG 3600000
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms LONG 10000
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms LONG 100
sasl.oauthbearer.jwks.endpoint.url STRING null
sasl.oauthbearer.jwt.retriever.class CLASS org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
sasl.oauthbearer.jwt.validator.class CLASS org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
sasl.oauthbearer.scope STRING null
sasl.oauthbearer.scope.claim.name STRING scope
sasl.oauthbearer.sub.claim.name STRING sub
sasl.oauthbearer.token.endpoint.url STRING null
sasl.server.callback.handler.class CLASS null
sasl.server.max.receive.size INT 524288
security.inter.broker.protocol STRING PLAINTEXT PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL
security.providers STRING null
server.max.startup.time.ms LONG 9223372036854775807 internal 0..
share.coordinator.append.linger.ms INT -1 -1..
share.coordinator.cached.buffer.max.bytes INT 1048588 cluster-wide 524288..
share.coordinator.cold.partition.snapshot.interval.ms INT 300000 internal 1..
share.coordinator.load.buffer.size INT 5242880 1..
share.coordinator.snapshot.update.records.per.snapshot INT 500 0..500
share.coordinator.state.topic.compression.codec INT 0
share.coordinator.state.topic.min.isr SHORT 2 1..
share.coordinator.state.topic.num.partitions INT 50 1..
share.coordinator.state.topic.prune.interval.ms INT 300000 internal 1..
share.coordinator.state.topic.replication.factor SHORT 3 1..
share.coordinator.state.topic.segment.bytes INT 104857600 1..
share.coordinator.threads INT 1 1..
share.coordinator.write.timeout.ms INT 5000 1..
share.fetch.purgatory.purge.interval.requests INT 1000
socket.connection.setup.timeout.max.ms LONG 30000
socket.connection.setup.timeout.ms LONG 10000
socket.listen.backlog.size INT 50 1..
socket.receive.buffer.bytes INT 102400
socket.request.max.bytes INT 104857600 1..
socket.send.buffer.bytes INT 102400
ssl.allow.dn.changes BOOLEAN false
ssl.allow.san.changes BOOLEAN false
ssl.cipher.suites LIST '' per-broker
ssl.client.auth STRING none per-broker required|requested|none
ssl.enabled.protocols LIST TLSv1.2,TLSv1.3 per-broker
ssl.endpoint.identification.algorithm STRING https per-broker
ssl.engine.factory.class CLASS null per-broker
ssl.key.password PASSWORD null per-broker
ssl.keymanager.algorithm STRING SunX509 per-broker
ssl.keystore.certificate.chain PASSWORD null per-broker
ssl.keystore.key PASSWORD null per-broker
ssl.keystore.location STRING null per-broker
ssl.keystore.password PASSWORD null per-broker
ssl.keystore.type STRING JKS per-broker
ssl.principal.mapping.rules STRING DEFAULT
ssl.protocol STRING TLSv1.3 per-broker
ssl.provider STRING null per-broker
ssl.secure.random.implementation STRING null per-broker
ssl.trustmanager.algorithm STRING PKIX per-broker
ssl.truststore.certificates PASSWORD null per-broker
ssl.truststore.location STRING null per-broker
ssl.truststore.password PASSWORD null per-broker
ssl.truststore.type STRING JKS per-broker
telemetry.max.bytes INT 1048576 1..
transaction.abort.timed.out.transaction.cleanup.interval.ms INT 10000 1..
transaction.max.timeout.ms INT 900000 1..
transaction.partition.verification.enable BOOLEAN true cluster-wide
transaction.remove.expired.transaction.cleanup.interval.ms INT 3600000 1..
transaction.state.log.load.buffer.size INT 5242880 1..
transaction.state.log.min.isr INT 2 1..
transaction.state.log.num.partitions INT 50 1..
transaction.state.log.replication.factor SHORT 3 1..
transaction.state.log.segment.bytes INT 104857600 1..
transaction.two.phase.commit.enable BOOLEAN false
transactional.id.expiration.ms INT 604800000 1..
unclean.leader.election.enable BOOLEAN false cluster-wide
unclean.leader.election.interval.ms LONG 300000 internal 1..
unstable.api.versions.enable BOOLEAN false internal
unstable.feature.versions.enable BOOLEAN false internal
"""

GROUP = """
consumer.assignment.interval.ms INT 1000 0.. =group.consumer.assignment.interval.ms
consumer.assignor.offload.enable BOOLEAN true internal =group.consumer.assignor.offload.enable
consumer.heartbeat.interval.ms INT 5000 1.. =group.consumer.heartbeat.interval.ms
consumer.session.timeout.ms INT 45000 1.. =group.consumer.session.timeout.ms
errors.deadletterqueue.copy.record.enable BOOLEAN false
errors.deadletterqueue.topic.name STRING ''
share.assignment.interval.ms INT 1000 0.. =group.share.assignment.interval.ms
share.assignor.offload.enable BOOLEAN true internal =group.share.assignor.offload.enable
share.auto.offset.reset STRING latest latest|earliest|by_duration:PnDTnHnMn.nS
share.delivery.count.limit INT 5 2.. =group.share.delivery.count.limit
share.heartbeat.interval.ms INT 5000 1.. =group.share.heartbeat.interval.ms
share.isolation.level STRING read_uncommitted read_committed|read_uncommitted
share.partition.max.record.locks INT 2000 100.. =group.share.partition.max.record.locks
share.record.lock.duration.ms INT 30000 1000.. =group.share.record.lock.duration.ms
share.renew.acknowledge.enable BOOLEAN true
share.session.timeout.ms INT 45000 1.. =group.share.session.timeout.ms
streams.acceptable.recovery.lag LONG 10000 0.. internal =group.streams.acceptable.recovery.lag
streams.assignment.interval.ms INT 1000 0.. =group.streams.assignment.interval.ms
streams.assignor.name STRING null =group.streams.assignors
streams.assignor.offload.enable BOOLEAN true internal =group.streams.assignor.offload.enable
streams.heartbeat.interval.ms INT 5000 1.. =group.streams.heartbeat.interval.ms
streams.initial.rebalance.delay.ms INT 3000 0.. =group.streams.initial.rebalance.delay.ms
streams.num.standby.replicas INT 0 0.. =group.streams.num.standby.replicas
streams.num.warmup.replicas INT 2 0.. internal =group.streams.num.warmup.replicas
streams.rack.aware.assignment.tags LIST '' =group.streams.rack.aware.assignment.tags
streams.session.timeout.ms INT 45000 1.. =group.streams.session.timeout.ms
streams.task.offset.interval.ms INT 60000 1.. internal =group.streams.task.offset.interval.ms
"""

CLIENT_METRICS = """
interval.ms INT 300000 100..3600000
match LIST ''
metrics LIST ''
"""


class ConfigRow(NamedTuple):
    """One line of a table. `low` and `high` are bounds of a number, `allowed` the values of a text or of a list."""

    name: str
    type: str
    default: str | None
    mode: str = ""
    is_internal: bool = False
    low: float | None = None
    high: float | None = None
    allowed: tuple[str, ...] = ()
    of_broker: str = ""

    @property
    def is_sensitive(self) -> bool:
        """Whether its value is never shown."""
        return self.type in SENSITIVE


# A setting of an unknown type may be a secret.
SENSITIVE = ("PASSWORD", "UNKNOWN")
_BOUNDS = re.compile(r"(-?[\d.]+)\.\.(-?[\d.]*)")


def _row(line: str) -> ConfigRow:
    name, kind, default, *rest = line.split()
    row = ConfigRow(name, kind, {"null": None, "required": None, "''": ""}.get(default, default))
    for each in rest:
        bounds = _BOUNDS.fullmatch(each)
        if bounds:
            row = row._replace(low=float(bounds[1]), high=float(bounds[2]) if bounds[2] else None)
        elif each in ("cluster-wide", "per-broker"):
            row = row._replace(mode=each)
        elif each == "internal":
            row = row._replace(is_internal=True)
        elif each.startswith("="):
            row = row._replace(of_broker=each[1:])
        else:
            row = row._replace(allowed=tuple(each.split("|")))
    return row


def _rows(table: str) -> dict[str, ConfigRow]:
    return {row.name: row for row in map(_row, table.strip().splitlines())}


@functools.cache
def broker_rows() -> dict[str, ConfigRow]:
    """Returns the settings of a broker by name."""
    return _rows(BROKER)


@functools.cache
def group_rows() -> dict[str, ConfigRow]:
    """Returns the settings of a group by name."""
    return _rows(GROUP)


@functools.cache
def client_metrics_rows() -> dict[str, ConfigRow]:
    """Returns the settings of a subscription of client metrics by name."""
    return _rows(CLIENT_METRICS)
