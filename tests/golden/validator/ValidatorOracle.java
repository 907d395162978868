// Asks Apache Kafka's LogValidator: one case a line on stdin, its answer a line on stdout (see cases.txt).
//   javac -cp 'jars/*' ValidatorOracle.java && java -cp '.:jars/*' ValidatorOracle
// Case: records hex|source codec|target codec|level|compacted|to magic|timestamp type|before max|after max|
//       leader epoch|origin|now|first offset|max record bytes.
// Answer: OK|records hex|max timestamp|size changed|temporary bytes|converted|next offset|append time, or
//         REC|class|message|index:message..., or ERR|class|message; last the five counters of MetricsRecorder.
import org.apache.kafka.common.record.internal.*;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.compress.*;
import org.apache.kafka.common.utils.*;
import org.apache.kafka.common.utils.internals.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.requests.ProduceResponse;
import org.apache.kafka.storage.internals.log.*;
import java.nio.ByteBuffer;
import java.io.*;
import java.util.*;
public class ValidatorOracle {
  static Compression comp(int id, Integer level){ switch(id){ case 0: return Compression.NONE; case 1: { var b=Compression.gzip(); return level==null? b.build(): b.level(level).build(); } case 2: return Compression.snappy().build(); case 3: { var b=Compression.lz4(); return level==null? b.build(): b.level(level).build(); } default: { var b=Compression.zstd(); return level==null? b.build(): b.level(level).build(); } } }
  public static void main(String[] a) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in)); String line;
    PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), false);
    while((line=in.readLine())!=null){
      String[] f=line.split("\\|",-1);
      byte[] data=HexFormat.of().parseHex(f[0]);
      long now=Long.parseLong(f[11]);
      Time time=(Time)java.lang.reflect.Proxy.newProxyInstance(ValidatorOracle.class.getClassLoader(), new Class[]{Time.class}, (p,m,ar)-> m.getName().equals("milliseconds")? (Object)now : m.getName().equals("nanoseconds")? (Object)0L : null);
      int[] mc=new int[5];
      LogValidator.MetricsRecorder mr=new LogValidator.MetricsRecorder(){ public void recordInvalidMagic(){mc[0]++;} public void recordInvalidOffset(){mc[1]++;} public void recordInvalidSequence(){mc[2]++;} public void recordInvalidChecksums(){mc[3]++;} public void recordNoKeyCompactedTopic(){mc[4]++;} };
      String res;
      PrimitiveRef.LongRef ref=PrimitiveRef.ofLong(Long.parseLong(f[12]));
      try {
        var v=new LogValidator(MemoryRecords.readableRecords(ByteBuffer.wrap(data)), new TopicPartition("t",3), time, CompressionType.forId(Integer.parseInt(f[1])), comp(Integer.parseInt(f[2]), f[3].isEmpty()?null:Integer.valueOf(f[3])), f[4].equals("1"), Byte.parseByte(f[5]), TimestampType.forName(f[6]), Long.parseLong(f[7]), Long.parseLong(f[8]), Integer.parseInt(f[9]), AppendOrigin.valueOf(f[10]), Integer.parseInt(f[13])).validateMessagesAndAssignOffsets(ref, mr, BufferSupplier.NO_CACHING);
        ByteBuffer b=((MemoryRecords)v.validatedRecords()).buffer().duplicate(); byte[] o=new byte[b.remaining()]; b.get(o);
        res="OK|"+HexFormat.of().formatHex(o)+"|"+v.maxTimestampMs()+"|"+v.messageSizeMaybeChanged()+"|"+v.recordValidationStats().temporaryMemoryBytes()+"|"+v.recordValidationStats().numRecordsConverted()+"|"+ref.value+"|"+v.logAppendTimeMs();
      } catch(RecordValidationException e){ StringBuilder sb=new StringBuilder("REC|"+e.invalidException().getClass().getSimpleName()+"|"+e.invalidException().getMessage()); for(var r: e.recordErrors()) sb.append("|"+r.batchIndex+":"+r.message); res=sb.toString();
      } catch(Throwable e){ res="ERR|"+e.getClass().getSimpleName()+"|"+e.getMessage(); }
      out.println((res+"|"+Arrays.toString(mc)).replace("\n"," "));
    }
    out.flush();
  }
}
