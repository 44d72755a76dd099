import com.alibaba.fastjson.JSON;
import java.io.PrintWriter;
import java.util.*;
import org.apache.rocketmq.client.consumer.*;
import org.apache.rocketmq.common.message.*;

/**
 * Writes messages that RocketMQ holds for later as JSON lines, for `from_rocketmq.py`. Each line has the fields of
 * `mqadmin exportMessage`, and storeTimestamp, at which the delay levels begin. Tried with RocketMQ 5.1.4:
 *
 * java -cp "$ROCKETMQ_HOME/lib/*" RocketMqExport.java NAMESERVER:9876 rmq_sys_wheel_timer timer.jsonl
 * java -cp "$ROCKETMQ_HOME/lib/*" RocketMqExport.java NAMESERVER:9876 SCHEDULE_TOPIC_XXXX levels.jsonl 2
 *
 * The last argument, for SCHEDULE_TOPIC_XXXX: how many hours back to begin; at least the longest delay level.
 */
public class RocketMqExport {
    private static final String LEVELS = "SCHEDULE_TOPIC_XXXX";

    public static void main(String[] words) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("duemq-export");
        consumer.setNamesrvAddr(words[0]);
        consumer.start();
        long written = 0;
        try (PrintWriter out = new PrintWriter(words[2], "UTF-8")) {
            for (MessageQueue queue : queues(consumer, words[1])) {
                long end = consumer.maxOffset(queue), next = consumer.minOffset(queue);
                if (words.length > 3) {
                    next = consumer.searchOffset(queue, System.currentTimeMillis() - Long.parseLong(words[3]) * 3_600_000L);
                }
                while (next < end) {
                    PullResult found = consumer.pull(queue, "*", next, 32);
                    if (found.getMsgFoundList() != null) {
                        for (MessageExt message : found.getMsgFoundList()) {
                            out.println(line(message));
                            written++;
                        }
                    }
                    if (found.getNextBeginOffset() <= next) {
                        throw new IllegalStateException(queue + " at " + next + ": " + found.getPullStatus());
                    }
                    next = found.getNextBeginOffset();
                }
            }
        }
        System.out.println(written + " messages in " + words[2]);
        consumer.shutdown();
    }

    /** No route is published for the timer's topic, which has one queue on each broker. */
    private static Collection<MessageQueue> queues(DefaultMQPullConsumer consumer, String topic) throws Exception {
        Set<MessageQueue> levels = consumer.fetchSubscribeMessageQueues(LEVELS);
        if (topic.equals(LEVELS)) {
            return levels;
        }
        Set<MessageQueue> queues = new TreeSet<>();
        for (MessageQueue queue : levels) {
            consumer.maxOffset(queue); // only so that the client looks up the address of this broker
            queues.add(new MessageQueue(topic, queue.getBrokerName(), 0));
        }
        return queues;
    }

    private static String line(MessageExt message) {
        Map<String, Object> line = new TreeMap<>();
        line.put("topic", message.getTopic());
        line.put("properties", new TreeMap<>(message.getProperties()));
        line.put("msgId", message.getMsgId());
        line.put("queueOffset", message.getQueueOffset());
        line.put("storeTimestamp", message.getStoreTimestamp());
        line.put("bodyFormat", "base64");
        line.put("body", Base64.getEncoder().encodeToString(message.getBody()));
        return JSON.toJSONString(line);
    }
}
