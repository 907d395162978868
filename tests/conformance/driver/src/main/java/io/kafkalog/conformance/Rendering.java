package io.kafkalog.conformance;

import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.Comparator;
import java.util.List;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.record.internal.Records;
import org.apache.kafka.storage.internals.log.BatchMetadata;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogOffsetMetadata;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateEntry;
import org.apache.kafka.storage.internals.log.TimestampOffset;
import org.apache.kafka.storage.internals.log.UnifiedLog;

/** Kafka's values as the result lines show them. */
final class Rendering {
    private Rendering() {
    }

    static ObjectNode state(UnifiedLog log) {
        ObjectNode state = Json.object();
        state.put("log_start", log.logStartOffset());
        state.put("local_log_start", log.localLogStartOffset());
        state.put("leo", log.logEndOffset());
        state.put("hw", log.highWatermark());
        state.put("lso", log.lastStableOffset());
        Json.put(state, "first_unstable", log.firstUnstableOffset());
        state.put("recovery_point", log.recoveryPoint());
        state.put("size", log.size());
        Json.put(state, "latest_epoch", log.latestEpoch());
        state.put("producers", log.producerIdCount());
        state.put("map_end", log.latestProducerStateEndOffset());
        ArrayNode segments = state.putArray("segments");
        for (LogSegment segment : log.logSegments()) {
            segments.add(Json.numbers(segment.baseOffset(), segment.size()));
        }
        return state;
    }

    static ObjectNode append(LogAppendInfo info) {
        ObjectNode node = Json.object();
        node.put("first_offset", info.firstOffset());
        node.put("last_offset", info.lastOffset());
        node.put("num_messages", info.numMessages());
        node.put("max_timestamp", info.maxTimestamp());
        node.put("log_append_time", info.logAppendTime());
        node.put("log_start_offset", info.logStartOffset());
        node.put("source_compression", info.sourceCompression().name);
        node.put("valid_bytes", info.validBytes());
        Json.put(node, "last_leader_epoch", info.lastLeaderEpoch());
        node.put("records_converted", info.recordValidationStats().numRecordsConverted());
        node.put("leader_hw_change", info.leaderHwChange().name());
        return node;
    }

    static ObjectNode read(FetchDataInfo info) throws IOException {
        LogOffsetMetadata start = info.fetchOffsetMetadata;
        ObjectNode node = Json.object();
        node.put("offset", start.messageOffset);
        node.put("segment_base", start.segmentBaseOffset);
        node.put("position", start.relativePositionInSegment);
        node.put("first_entry_incomplete", info.firstEntryIncomplete);
        ByteBuffer bytes = bytes(info.records);
        node.put("size", info.records.sizeInBytes());
        node.put("sha256", Json.sha256(bytes));
        ArrayNode batches = node.putArray("batches");
        for (RecordBatch batch : info.records.batches()) {
            batches.add(Json.numbers(batch.baseOffset(), batch.lastOffset()));
        }
        if (info.abortedTransactions.isPresent()) {
            ArrayNode aborted = node.putArray("aborted");
            for (FetchResponseData.AbortedTransaction transaction : info.abortedTransactions.get()) {
                aborted.add(Json.numbers(transaction.producerId(), transaction.firstOffset()));
            }
        } else {
            node.putNull("aborted");
        }
        return node;
    }

    private static ByteBuffer bytes(Records records) throws IOException {
        if (records instanceof MemoryRecords memory) {
            return memory.buffer();
        }
        ByteBuffer buffer = ByteBuffer.allocate(records.sizeInBytes());
        ((FileRecords) records).readInto(buffer, 0);
        return buffer;
    }

    static ArrayNode segments(UnifiedLog log) throws IOException {
        ArrayNode list = Json.array();
        for (LogSegment segment : log.logSegments()) {
            ObjectNode node = list.addObject();
            node.put("base", segment.baseOffset());
            node.put("size", segment.size());
            node.put("index_entries", segment.offsetIndex().entries());
            node.put("index_last_offset", segment.offsetIndex().lastOffset());
            node.put("index_max_entries", segment.offsetIndex().maxEntries());
            node.put("time_entries", segment.timeIndex().entries());
            node.put("time_last_ts", segment.timeIndex().lastEntry().timestamp());
            node.put("time_last_offset", segment.timeIndex().lastEntry().offset());
            TimestampOffset max = segment.readMaxTimestampAndOffsetSoFar();
            node.put("max_ts", max.timestamp());
            node.put("offset_of_max_ts", max.offset());
            node.put("first_batch_ts", segment.getFirstBatchTimestamp());
            node.put("next_offset", segment.readNextOffset());
        }
        return list;
    }

    static ArrayNode producers(UnifiedLog log) {
        ArrayNode list = Json.array();
        List<ProducerStateEntry> entries = log.producerStateManager().activeProducers().values().stream()
            .sorted(Comparator.comparingLong(ProducerStateEntry::producerId))
            .toList();
        for (ProducerStateEntry entry : entries) {
            ObjectNode node = list.addObject();
            node.put("pid", entry.producerId());
            node.put("epoch", entry.producerEpoch());
            node.put("coordinator_epoch", entry.coordinatorEpoch());
            node.put("last_ts", entry.lastTimestamp());
            node.put("last_offset", entry.lastDataOffset());
            Json.put(node, "txn_first", entry.currentTxnFirstOffset());
            ArrayNode batches = node.putArray("batches");
            for (BatchMetadata batch : entry.batchMetadata()) {
                batches.add(Json.numbers(
                    batch.firstSeq(), batch.lastSeq(), batch.firstOffset(), batch.lastOffset(), batch.timestamp()));
            }
        }
        return list;
    }
}
